// Shared by the kernels: launches that return their own error, indices, sums of a block.
#ifndef TRAINER_ENGINES_CUDA_LAUNCH_CUH_
#define TRAINER_ENGINES_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace shardproof::cuda {

constexpr int kThreads = 256;

// Enough blocks to fill any device several times over; kernels stride over the rest.
constexpr int64_t kMaxBlocks = 4096;

inline int64_t CeilDivide(int64_t value, int64_t by) { return (value + by - 1) / by; }

// The blocks for one thread per item; at least one.
inline unsigned BlocksFor(int64_t items) {
  const int64_t blocks = CeilDivide(items, kThreads);
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks > kMaxBlocks ? kMaxBlocks : blocks));
}

// <<<>>> leaves its error to cudaGetLastError, which also reports those of other calls.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                   cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// Loads kernels now, in this order, until one fails.
template <typename... Kernels>
cudaError_t Load(Kernels... kernels) {
  cudaError_t error = cudaSuccess;
  cudaFuncAttributes attributes;
  ((error = error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, kernels)), ...);
  return error;
}

// Of the thread in the grid, and of the grid: the start and the step of a grid-stride loop.
__device__ inline int64_t GridThread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t GridThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// The sum of `value` over the kBlockThreads threads of the block, in a fixed order. Valid in
// thread 0. Every thread of the block calls it, once in a kernel.
template <int kBlockThreads>
__device__ inline double BlockSum(double value) {
  constexpr int kWarp = 32;
  static_assert(kBlockThreads % kWarp == 0 && kBlockThreads <= kWarp * kWarp);
  __shared__ double sums[kBlockThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0) {
    for (double warp_sum : sums) sum += warp_sum;
  }
  return sum;
}

}  // namespace shardproof::cuda

#endif  // TRAINER_ENGINES_CUDA_LAUNCH_CUH_
