// The worlds of the engines cuda and cuda_shared.
#ifndef TRAINER_ENGINES_CUDA_CUDA_WORLD_H_
#define TRAINER_ENGINES_CUDA_CUDA_WORLD_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "collectives/device_world.h"
#include "collectives/launch/job.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

struct CudaWorldOptions {
  // With a job, its number of ranks.
  WorldSize size;
  // cuda_shared: all ranks on GPU 0, without NCCL. Else cuda: a GPU a rank.
  bool shared_gpu = false;
  // The processes of the ranks, one each; null: all ranks are in this one. Outlives the world.
  Job* job = nullptr;
  int32_t device = 0;  // with a job: the CUDA ordinal of this process's GPU
};

// Errors: InvalidArgument for shared_gpu in several processes; those of CheckGpuRequirements
// (collectives/nccl/requirements.h): no GPU, too few, versions that do not fit; those of
// MakeNcclWorld and MakeSharedGpuWorld.
absl::StatusOr<std::unique_ptr<DeviceWorld>> MakeCudaWorld(const CudaWorldOptions& options);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_CUDA_WORLD_H_
