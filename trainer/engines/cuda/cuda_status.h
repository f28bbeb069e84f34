// From the return values of CUDA and cuBLAS to absl::Status that names the call.
#ifndef TRAINER_ENGINES_CUDA_CUDA_STATUS_H_
#define TRAINER_ENGINES_CUDA_CUDA_STATUS_H_

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/device_status.h"

namespace shardproof {

// Internal, with the call as it is written in the source and CUDA's words.
inline absl::Status CudaStatus(cudaError_t error, const char* call) {
  return DeviceStatus(error, call);
}

inline absl::Status CublasStatus(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cublasGetStatusString(status)));
}

}  // namespace shardproof

// Returns from the function with the error of a call that failed. No parameters: the call would be
// expanded before it is quoted.
#define SHARDPROOF_CUDA_OK SHARDPROOF_DEVICE_OK

#define SHARDPROOF_CUBLAS_OK(call)                                                     \
  do {                                                                                 \
    absl::Status shardproof_cublas_status = ::shardproof::CublasStatus((call), #call); \
    if (!shardproof_cublas_status.ok()) return shardproof_cublas_status;               \
  } while (false)

#endif  // TRAINER_ENGINES_CUDA_CUDA_STATUS_H_
