// The machine of the benchmark: GPUs, the cuda engine, the floor and the witness of kernels.
#ifndef TRAINER_BENCH_CUDA_BENCH_H_
#define TRAINER_BENCH_CUDA_BENCH_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/job.h"
#include "invariants/run_description/vocabulary.h"
#include "trainer/bench/bench.h"

namespace shardproof {

struct CudaBenchOptions {
  WorldSize world_size;
  bool shared_gpu = false;  // all ranks on the first GPU, without NCCL
  // The processes of the ranks, one each, with a GPU of their own; null: all ranks are in this one.
  // Outlives the machine.
  Job* job = nullptr;
  int32_t device = 0;  // with a job: the CUDA ordinal of this process's GPU
  bool tf32 = false;
  absl::Duration timeout = absl::Seconds(120);  // of connecting, and of a step
};

// Its engines do not poison memory. The exposed time of collectives is observed where they are
// kernels of NCCL, and is 0 at one rank.
//
// Errors: those of CheckGpuRequirements (collectives/nccl/requirements.h): no GPU, too few,
// versions that do not fit; InvalidArgument for shared_gpu in several processes. Unavailable where
// this build has no CUDA.
absl::StatusOr<std::unique_ptr<BenchMachine>> MakeCudaBenchMachine(const CudaBenchOptions& options);

}  // namespace shardproof

#endif  // TRAINER_BENCH_CUDA_BENCH_H_
