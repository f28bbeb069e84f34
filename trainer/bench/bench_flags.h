// The flags of zero_train's benchmark.
#ifndef TRAINER_BENCH_BENCH_FLAGS_H_
#define TRAINER_BENCH_BENCH_FLAGS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/engine_flags.h"
#include "invariants/suite/run_case.h"

namespace shardproof {

struct BenchFlags {
  bool bench = false;
  int64_t bench_steps = 60;
  int64_t warmup_steps = 10;
};

struct BenchRequest {
  std::vector<RunDescription> runs = {};  // one a mode row; how many steps they say does not matter
  EngineRequest engine = {};
  int64_t bench_steps = 60;
  int64_t warmup_steps = 10;
  bool table = false;  // the table on stdout; else the JSON there and the table on stderr
};

// --bench, --bench_steps, --warmup_steps. `raw` outlives Parse.
void DeclareBenchFlags(BenchFlags& raw, Flags& flags);

// After Parse, and whether or not --bench was given. InvalidArgument in one line: a flag of the
// benchmark without --bench; --bench with an engine that has no GPUs to time, or with --steps or
// --observe, which it has no use for.
absl::Status CheckBenchFlags(const BenchFlags& raw, EngineKind engine, const Flags& flags);

}  // namespace shardproof

#endif  // TRAINER_BENCH_BENCH_FLAGS_H_
