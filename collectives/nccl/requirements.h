// What a machine must have for the GPU engines: GPUs, and versions of CUDA and NCCL that fit.
#ifndef COLLECTIVES_NCCL_REQUIREMENTS_H_
#define COLLECTIVES_NCCL_REQUIREMENTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shardproof {

// The oldest NCCL whose calls are used: nonblocking communicators that can be finalized.
inline constexpr int kOldestNccl = 21800;  // as NCCL_VERSION_CODE: 2.18.0

// The major compute capability that the kernels are compiled for (`archs` in ci/rules/cuda.bzl);
// one of them launches a cluster of blocks, which no older GPU can.
inline constexpr int kOldestComputeMajor = 9;

// A version as people write it, of a number as CUDART_VERSION and as NCCL_VERSION_CODE.
std::string CudaVersionText(int version);  // 13020 is "13.2"
std::string NcclVersionText(int version);  // 22809 is "2.28.9", and 2708, of before 2.9, "2.7.8"

// A GPU as CUDA describes it: compute capability 9.0 has major 9 and minor 0.
struct GpuFacts {
  int device = 0;  // CUDA ordinal
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
};

// FailedPrecondition that names what was found and what is needed. `driver_error` is what CUDA said
// when it was asked for its GPUs, empty if it just counted them. Without a driver CUDA speaks of
// one that is too old, so nothing found is called no driver or no GPU, with CUDA's words.
absl::Status CheckGpuCount(int found, int needed, absl::string_view driver_error);

// `built` is the version of the CUDA runtime in this program, `driver` the newest that the driver
// supports, both as CUDART_VERSION (13020 is 13.2); 0: there is no driver. The driver must know the
// runtime's major version; minor versions of one major run on any driver of it.
absl::Status CheckCudaVersions(int built, int driver);

// `built` is the version of the header that this program was compiled with, `loaded` that of the
// library it runs with, both as NCCL_VERSION_CODE. Both of one major version, and the library not
// before kOldestNccl.
absl::Status CheckNcclVersions(int built, int loaded);

// FailedPrecondition that names the GPU, its compute capability and the needed one. `built` and
// `driver` as for CheckCudaVersions: GPUs of a later major than kOldestComputeMajor run what the
// driver compiles from PTX, and no driver reads the PTX of a CUDA newer than its own.
absl::Status CheckComputeCapability(const GpuFacts& gpu, int built, int driver);

// Asks CUDA and NCCL, and applies the checks: `gpus` GPUs are needed, those from ordinal 0 on.
// Programs print the error and exit 2.
absl::Status CheckGpuRequirements(int gpus);

// The same for a process that uses one GPU: those before it need only be there.
absl::Status CheckRequirementsOfGpu(int device);

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_REQUIREMENTS_H_
