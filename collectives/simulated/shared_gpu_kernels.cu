#include <algorithm>
#include <cstdint>

#include "collectives/simulated/shared_gpu_kernels.h"

namespace shardproof {
namespace {

// A kernel takes 32764 bytes of parameters at most.
static_assert(sizeof(SharedGpuBuffers) <= 32764);

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1024;  // each thread then takes several elements

__device__ int64_t FirstIndex() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t IndexStride() { return int64_t{gridDim.x} * blockDim.x; }

template <typename T>
__device__ T SumOf(const SharedGpuBuffers& buffers, int64_t index) {
  T partial = static_cast<const T*>(buffers.send[0])[index];
  for (int member = 1; member < buffers.members; ++member) {
    partial += static_cast<const T*>(buffers.send[member])[index];
  }
  return partial;
}

template <typename T>
__device__ void GiveAll(const SharedGpuBuffers& buffers, int64_t index, T value) {
  for (int member = 0; member < buffers.members; ++member) {
    static_cast<T*>(buffers.recv[member])[index] = value;
  }
}

template <typename T>
__global__ void AllReduceKernel(const __grid_constant__ SharedGpuBuffers buffers) {
  for (int64_t i = FirstIndex(); i < buffers.elements; i += IndexStride()) {
    GiveAll(buffers, i, SumOf<T>(buffers, i));
  }
}

template <typename T>
__global__ void ReduceScatterKernel(const __grid_constant__ SharedGpuBuffers buffers) {
  const int64_t part = buffers.elements / buffers.members;
  for (int64_t i = FirstIndex(); i < buffers.elements; i += IndexStride()) {
    static_cast<T*>(buffers.recv[i / part])[i % part] = SumOf<T>(buffers, i);
  }
}

template <typename T>
__global__ void AllGatherKernel(const __grid_constant__ SharedGpuBuffers buffers) {
  const int64_t part = buffers.elements / buffers.members;
  for (int64_t i = FirstIndex(); i < buffers.elements; i += IndexStride()) {
    GiveAll(buffers, i, static_cast<const T*>(buffers.send[i / part])[i % part]);
  }
}

template <typename T>
__global__ void BroadcastKernel(const __grid_constant__ SharedGpuBuffers buffers) {
  for (int64_t i = FirstIndex(); i < buffers.elements; i += IndexStride()) {
    GiveAll(buffers, i, static_cast<const T*>(buffers.send[buffers.root])[i]);
  }
}

using Kernel = void (*)(SharedGpuBuffers);

cudaError_t Launch(Kernel kernel, const SharedGpuBuffers& buffers, cudaStream_t stream) {
  if (buffers.elements == 0) return cudaSuccess;
  const int64_t blocks = std::min((buffers.elements + kThreads - 1) / kThreads, kMaxBlocks);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(buffers);
  return cudaGetLastError();
}

}  // namespace

cudaError_t AllReduceInRankOrder(const SharedGpuBuffers& buffers, bool float64,
                                 cudaStream_t stream) {
  return Launch(float64 ? AllReduceKernel<double> : AllReduceKernel<float>, buffers, stream);
}

cudaError_t ReduceScatterInRankOrder(const SharedGpuBuffers& buffers, bool float64,
                                     cudaStream_t stream) {
  return Launch(float64 ? ReduceScatterKernel<double> : ReduceScatterKernel<float>, buffers,
                stream);
}

// Bits are moved as integers: a NaN keeps its payload.
cudaError_t AllGatherOnDevice(const SharedGpuBuffers& buffers, bool float64, cudaStream_t stream) {
  return Launch(float64 ? AllGatherKernel<uint64_t> : AllGatherKernel<uint32_t>, buffers, stream);
}

cudaError_t BroadcastOnDevice(const SharedGpuBuffers& buffers, bool float64, cudaStream_t stream) {
  return Launch(float64 ? BroadcastKernel<uint64_t> : BroadcastKernel<uint32_t>, buffers, stream);
}

}  // namespace shardproof
