// cuda_case.h in a build without CUDA or NCCL.
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "invariants/suite/cuda_case.h"

namespace shardproof {

DeviceEngineFactory CudaEngineFactory(const CudaCaseOptions&) {
  return [](const RunDescription&, EngineKind engine, const EngineParts&,
            bool) -> absl::StatusOr<CaseEngine> {
    return absl::UnavailableError(absl::StrCat(
        "the ", Name(engine),
        " engine is not in this build: install CUDA and NCCL and build again, or use the cpu "
        "engine"));
  };
}

absl::StatusOr<int32_t> UsableGpus() {
  return absl::UnavailableError(
      "engines for GPUs are not in this build: install CUDA and NCCL and build again, or use the "
      "cpu engine");
}

}  // namespace shardproof
