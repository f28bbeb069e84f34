// MakeCudaEngine where there is no CUDA to build it with.
#include "absl/status/status.h"
#include "trainer/engines/cuda/cuda_engine.h"

namespace shardproof {

absl::StatusOr<std::unique_ptr<CudaEngine>> MakeCudaEngine(const RunDescription&, EngineParts,
                                                           DeviceWorld&, const CudaOptions&) {
  return absl::UnavailableError(
      "this build has no CUDA engine: the CUDA toolkit or NCCL was not found when it was built; "
      "use the cpu, provenance or accounting engine, or set CUDA_HOME and NCCL_HOME and build "
      "again");
}

}  // namespace shardproof
