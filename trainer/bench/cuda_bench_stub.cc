// Where CUDA or NCCL is missing when this is built.
#include "absl/status/status.h"
#include "trainer/bench/cuda_bench.h"

namespace shardproof {

absl::StatusOr<std::unique_ptr<BenchMachine>> MakeCudaBenchMachine(const CudaBenchOptions&) {
  return absl::UnavailableError(
      "a benchmark needs GPUs, and this build has no CUDA or no NCCL; accepted is a build where "
      "CUDA_HOME, or /usr/local/cuda, has both");
}

}  // namespace shardproof
