// What zero_train was asked for: flags to a run. Apart from the program, so that tests reach it.
#ifndef TRAINER_TRAIN_REQUEST_H_
#define TRAINER_TRAIN_REQUEST_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/launch/launch_environment.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/engine_flags.h"
#include "trainer/bench/bench_flags.h"

namespace shardproof {

enum class TrainFormat : uint8_t { kTable, kJson };

struct TrainRequest {
  std::string help;  // not empty: --help was given, print this
  RunDescription run;
  EngineRequest engine;
  TrainFormat format = TrainFormat::kTable;
  std::string observe;                // the observation file to write; empty: none
  std::optional<BenchRequest> bench;  // --bench: this and nothing else; `run` is its first
};

// InvalidArgument or NotFound in one line that names the flag, its value and what is accepted;
// among them a --mode that names several rows, which only --bench takes, and what does not fit the
// processes that were launched.
absl::StatusOr<TrainRequest> ParseTrainRequest(int argc, const char* const* argv,
                                               const LaunchEnvironment& launch = {});

}  // namespace shardproof

#endif  // TRAINER_TRAIN_REQUEST_H_
