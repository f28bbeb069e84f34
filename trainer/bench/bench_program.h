// What zero_train does with --bench: measures and prints.
#ifndef TRAINER_BENCH_BENCH_PROGRAM_H_
#define TRAINER_BENCH_BENCH_PROGRAM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/launch/job.h"
#include "trainer/bench/bench_flags.h"

namespace shardproof {

// On GPUs. `job` and `device` as in CudaBenchOptions (cuda_bench.h), whose errors these are too;
// rank 0 alone prints. InvalidArgument for an engine without GPUs.
absl::Status RunBenchProgram(const BenchRequest& request, Job* job, int32_t device);

}  // namespace shardproof

#endif  // TRAINER_BENCH_BENCH_PROGRAM_H_
