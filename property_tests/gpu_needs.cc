#include "property_tests/gpu_needs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace shardproof {

bool AnyNeedsGpus(const std::vector<EngineKind>& engines) {
  return std::any_of(engines.begin(), engines.end(), NeedsGpus);
}

absl::Status CheckGpusFor(const std::vector<EngineKind>& engines, int32_t ranks,
                          const absl::StatusOr<int32_t>& gpus) {
  for (const EngineKind engine : engines) {
    if (!NeedsGpus(engine)) continue;
    if (!gpus.ok()) return gpus.status();
    if (engine != EngineKind::kCuda || ranks <= *gpus) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the cuda engine needs a GPU a rank, ", ranks, " in this run, and ", *gpus,
                     *gpus == 1 ? " was found" : " were found",
                     "; accepted are runs of fewer ranks, and the cuda_shared engine"));
  }
  return absl::OkStatus();
}

}  // namespace shardproof
