#include "property_tests/gpu_cases.h"

#include <algorithm>
#include <vector>

#include "invariants/suite/cuda_case.h"
#include "property_tests/gpu_needs.h"
#include "property_tests/judge_case.h"

namespace shardproof {
namespace {

// As the generator draws them where nothing is fixed.
constexpr int32_t kMostRanks = 8;

}  // namespace

absl::Status UseGpus(CampaignOptions& options) {
  if (!AnyNeedsGpus(options.engines)) return absl::OkStatus();
  return UseGpus(UsableGpus(), CudaEngineFactory({.timeout = kGpuCaseTimeout}), options);
}

absl::Status UseGpus(const absl::StatusOr<int32_t>& gpus, const DeviceEngineFactory& factory,
                     CampaignOptions& options) {
  if (!AnyNeedsGpus(options.engines)) return absl::OkStatus();
  if (!gpus.ok()) return gpus.status();
  const std::vector<EngineKind>& engines = options.engines;
  if (std::find(engines.begin(), engines.end(), EngineKind::kCuda) != engines.end()) {
    for (int32_t ranks = 1; ranks <= std::min(*gpus, kMostRanks); ++ranks) {
      options.limits.world_sizes.push_back(ranks);
    }
  }
  options.judge = [factory](const RunDescription& run, EngineKind engine) {
    return JudgeCase(run, {.engine = engine, .make_device_engine = factory});
  };
  return absl::OkStatus();
}

}  // namespace shardproof
