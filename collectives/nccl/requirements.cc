#include "collectives/nccl/requirements.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "collectives/device_status.h"
#include "collectives/nccl/nccl_status.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

// Up to 2.8 a version's code had four digits.
int NcclMajor(int version) { return version < 10000 ? version / 1000 : version / 10000; }
int NcclMinor(int version) {
  return version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
}

}  // namespace

std::string CudaVersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string NcclVersionText(int version) {
  return absl::StrCat(NcclMajor(version), ".", NcclMinor(version), ".", version % 100);
}

absl::Status CheckGpuCount(int found, int needed, absl::string_view driver_error) {
  if (found >= needed && driver_error.empty()) return absl::OkStatus();
  std::string text = found == 0 ? "no NVIDIA driver or no GPU was found"
                                : absl::StrCat("only ", found, " GPUs were found");
  if (found == 1) text = "only 1 GPU was found";
  if (found > 0 && found >= needed) text = "the GPUs cannot be used";
  absl::StrAppend(&text, ", this run needs ", needed);
  if (!driver_error.empty()) absl::StrAppend(&text, "; CUDA says: ", driver_error);
  return absl::FailedPreconditionError(text);
}

absl::Status CheckCudaVersions(int built, int driver) {
  if (driver / 1000 >= built / 1000) return absl::OkStatus();
  const std::string needs =
      absl::StrCat("this program was built with CUDA ", CudaVersionText(built),
                   " and needs a driver that supports CUDA ", built / 1000, ".0 or newer");
  if (driver == 0) return absl::FailedPreconditionError(absl::StrCat("no CUDA driver: ", needs));
  return absl::FailedPreconditionError(
      absl::StrCat("the CUDA driver supports CUDA ", CudaVersionText(driver), ": ", needs));
}

absl::Status CheckNcclVersions(int built, int loaded) {
  if (NcclMajor(loaded) == NcclMajor(built) && loaded >= kOldestNccl) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "NCCL ", NcclVersionText(loaded), " was loaded, and this program was built with NCCL ",
      NcclVersionText(built), ": accepted are versions ", NcclMajor(built), ".x, and none before ",
      NcclVersionText(kOldestNccl)));
}

absl::Status CheckComputeCapability(const GpuFacts& gpu, int built, int driver) {
  const std::string what =
      absl::StrCat("GPU ", gpu.device, " (", gpu.name, ") has compute capability ",
                   gpu.compute_major, ".", gpu.compute_minor);
  if (gpu.compute_major < kOldestComputeMajor) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "; needed is ", kOldestComputeMajor, ".0 or newer"));
  }
  const bool compiled = gpu.compute_major == kOldestComputeMajor;
  if (compiled || driver / 10 >= built / 10) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, ", for which the driver compiles this program's kernels: they were built with CUDA ",
      CudaVersionText(built), ", needed is a driver that supports it, and this one supports CUDA ",
      CudaVersionText(driver)));
}

namespace {

// CUDA and NCCL are there in versions that fit, and so are `gpus` GPUs; of those, what one from
// ordinal `first` on is capable of.
absl::Status CheckGpus(int first, int gpus) {
  int driver = 0;
  SHARDPROOF_DEVICE_OK(cudaDriverGetVersion(&driver));
  int found = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  if (error != cudaSuccess) found = 0;
  // A driver that is too old is named with its version before CUDA's own words for it.
  if (driver != 0) SHARDPROOF_RETURN_IF_ERROR(CheckCudaVersions(CUDART_VERSION, driver));
  SHARDPROOF_RETURN_IF_ERROR(
      CheckGpuCount(found, gpus, error == cudaSuccess ? "" : cudaGetErrorString(error)));
  for (int device = first; device < gpus; ++device) {
    cudaDeviceProp properties;
    SHARDPROOF_DEVICE_OK(cudaGetDeviceProperties(&properties, device));
    SHARDPROOF_RETURN_IF_ERROR(CheckComputeCapability(
        {device, properties.name, properties.major, properties.minor}, CUDART_VERSION, driver));
  }
  int loaded = 0;
  SHARDPROOF_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&loaded), nullptr, "ncclGetVersion"));
  return CheckNcclVersions(NCCL_VERSION_CODE, loaded);
}

}  // namespace

absl::Status CheckGpuRequirements(int gpus) { return CheckGpus(0, gpus); }

absl::Status CheckRequirementsOfGpu(int device) { return CheckGpus(device, device + 1); }

}  // namespace shardproof
