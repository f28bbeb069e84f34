#include "trainer/engines/cuda/cuda_world.h"

#include "absl/status/status.h"
#include "collectives/nccl/nccl_world.h"
#include "collectives/nccl/requirements.h"
#include "collectives/simulated/shared_gpu_world.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {

absl::StatusOr<std::unique_ptr<DeviceWorld>> MakeCudaWorld(const CudaWorldOptions& options) {
  if (options.shared_gpu) {
    if (options.job != nullptr) {
      return absl::InvalidArgumentError(
          "the cuda_shared engine has all ranks in one process; accepted in several is cuda");
    }
    SHARDPROOF_RETURN_IF_ERROR(CheckGpuRequirements(1));
    return MakeSharedGpuWorld(options.size, /*device=*/0);
  }
  // These ask for what they need themselves.
  if (options.job != nullptr) return MakeNcclWorld(*options.job, options.device);
  return MakeNcclWorld(options.size);
}

}  // namespace shardproof
