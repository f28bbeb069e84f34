// DeviceMemory: owns one allocation on a device.
#ifndef TRAINER_ENGINES_CUDA_DEVICE_MEMORY_H_
#define TRAINER_ENGINES_CUDA_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "trainer/engines/cuda/cuda_status.h"

namespace shardproof {

class DeviceMemory {
 public:
  // Empty: data() is null.
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  // A failure to free has nobody to tell; a device in that state fails every later call.
  ~DeviceMemory() { static_cast<void>(cudaFree(data_)); }

  // On the current device, uninitialized, aligned to 256 bytes. 0 bytes: empty.
  // ResourceExhausted names `what`, the bytes asked for and those that are free.
  static absl::StatusOr<DeviceMemory> Allocate(int64_t bytes, absl::string_view what) {
    DeviceMemory memory;
    if (bytes == 0) return memory;
    const cudaError_t error = cudaMalloc(&memory.data_, static_cast<size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // it is reported here and must not be again
      size_t free = 0;
      size_t total = 0;
      SHARDPROOF_CUDA_OK(cudaMemGetInfo(&free, &total));
      return absl::ResourceExhaustedError(absl::StrCat(what, " needs ", bytes,
                                                       " bytes on the device, which has ", free,
                                                       " of ", total, " bytes free"));
    }
    if (error != cudaSuccess) return CudaStatus(error, "cudaMalloc");
    memory.bytes_ = bytes;
    return memory;
  }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_DEVICE_MEMORY_H_
