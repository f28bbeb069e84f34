// What zero_train was asked for: flags to a run. Apart from the program, so that tests reach it.
#ifndef TRAINER_TRAIN_REQUEST_H_
#define TRAINER_TRAIN_REQUEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/run_case.h"

namespace shardproof {

enum class TrainFormat : uint8_t { kTable, kJson };

struct TrainRequest {
  std::string help;  // not empty: --help was given, print this
  RunDescription run;
  EngineKind engine = EngineKind::kCpu;
  TrainFormat format = TrainFormat::kTable;
  std::string observe;  // the observation file to write; empty: none
};

// InvalidArgument or NotFound in one line that names the flag, its value and what is accepted;
// among them a --mode that names several rows.
absl::StatusOr<TrainRequest> ParseTrainRequest(int argc, const char* const* argv);

}  // namespace shardproof

#endif  // TRAINER_TRAIN_REQUEST_H_
