// From the return values of CUDA to absl::Status that names the call.
#ifndef COLLECTIVES_DEVICE_STATUS_H_
#define COLLECTIVES_DEVICE_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace shardproof {

// Internal, with the call as it is written in the source and CUDA's words.
inline absl::Status DeviceStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(call, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error)));
}

}  // namespace shardproof

// Returns from the function with the error of a CUDA call that failed.
#define SHARDPROOF_DEVICE_OK(call)                                                     \
  do {                                                                                 \
    absl::Status shardproof_device_status = ::shardproof::DeviceStatus((call), #call); \
    if (!shardproof_device_status.ok()) return shardproof_device_status;               \
  } while (false)

#endif  // COLLECTIVES_DEVICE_STATUS_H_
