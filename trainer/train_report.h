// What zero_train prints: the table in parts, as they become known, and the JSON.
#ifndef TRAINER_TRAIN_REPORT_H_
#define TRAINER_TRAIN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "invariants/report/figures.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/run_case.h"

namespace shardproof {

// The table's beginning: the run, and the head of the losses.
std::string TrainHeading(const RunDescription& run, EngineKind engine);

// One line of losses. Steps count from 0, as everywhere in reports.
std::string LossLine(int64_t step, double loss);

// The table's rest: state by rank (ranks that are alike share a line), collectives of one rank,
// and memory; all of the last step.
std::string TrainTables(const StepFigures& last_step);

// One object, schema "shardproof.train/1"; ends in a newline. `losses` by step; unset where
// the engine computes no values.
std::string TrainJson(const RunDescription& run, absl::string_view engine,
                      const std::vector<std::optional<double>>& losses,
                      const StepFigures& last_step);

}  // namespace shardproof

#endif  // TRAINER_TRAIN_REPORT_H_
