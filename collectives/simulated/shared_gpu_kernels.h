// What each collective does to its members' buffers on one GPU. For shared_gpu_world.cc only.
//
// This header has plain types only: nvcc reads it, and Abseil is not for nvcc.
#ifndef COLLECTIVES_SIMULATED_SHARED_GPU_KERNELS_H_
#define COLLECTIVES_SIMULATED_SHARED_GPU_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardproof {

inline constexpr int kSharedGpuMaxMembers = 512;

// Passed to a kernel by value: nothing to allocate, and nothing to keep until the kernel has run.
struct SharedGpuBuffers {
  int members = 0;
  int root = 0;  // member index, of a broadcast
  int64_t elements = 0;
  const void* send[kSharedGpuMaxMembers];
  void* recv[kSharedGpuMaxMembers];
};

// Buffers as collectives/communicator.h says, in place too: an element is read on all members
// before it is written on any, and no thread reads what another writes. Sums add members
// 0, 1, ... and round each partial sum to the element type. They enqueue one kernel on a stream
// of the current device, none for 0 elements, and return what the launch returned.
cudaError_t AllReduceInRankOrder(const SharedGpuBuffers& buffers, bool float64,
                                 cudaStream_t stream);
cudaError_t ReduceScatterInRankOrder(const SharedGpuBuffers& buffers, bool float64,
                                     cudaStream_t stream);
cudaError_t AllGatherOnDevice(const SharedGpuBuffers& buffers, bool float64, cudaStream_t stream);
cudaError_t BroadcastOnDevice(const SharedGpuBuffers& buffers, bool float64, cudaStream_t stream);

}  // namespace shardproof

#endif  // COLLECTIVES_SIMULATED_SHARED_GPU_KERNELS_H_
