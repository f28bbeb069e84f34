// A campaign on this machine's GPUs, for programs that link them.
#ifndef PROPERTY_TESTS_GPU_CASES_H_
#define PROPERTY_TESTS_GPU_CASES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "invariants/suite/run_case.h"
#include "property_tests/campaign.h"

namespace shardproof {

// For a campaign on an engine that needs GPUs, what judges its cases on those of this machine; runs
// of `cuda` have no more ranks than there are GPUs. Other campaigns stay as they are. The error of
// UsableGpus (invariants/suite/cuda_case.h) where there is no GPU.
absl::Status UseGpus(CampaignOptions& options);

// The same with `gpus` as what UsableGpus says and `factory` as what makes the engines.
absl::Status UseGpus(const absl::StatusOr<int32_t>& gpus, const DeviceEngineFactory& factory,
                     CampaignOptions& options);
}  // namespace shardproof

#endif  // PROPERTY_TESTS_GPU_CASES_H_
