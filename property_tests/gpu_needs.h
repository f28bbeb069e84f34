// What cases need of this machine's GPUs.
#ifndef PROPERTY_TESTS_GPU_NEEDS_H_
#define PROPERTY_TESTS_GPU_NEEDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "invariants/suite/run_case.h"

namespace shardproof {

// Of a step, and of ranks that wait for each other. The cases are small.
inline constexpr absl::Duration kGpuCaseTimeout = absl::Seconds(30);

bool AnyNeedsGpus(const std::vector<EngineKind>& engines);

// Whether a run of `ranks` ranks can be executed by each of the engines, with `gpus` as UsableGpus
// (invariants/suite/cuda_case.h) says; its error, or FailedPrecondition that names the engine, the
// ranks and the GPUs.
absl::Status CheckGpusFor(const std::vector<EngineKind>& engines, int32_t ranks,
                          const absl::StatusOr<int32_t>& gpus);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_GPU_NEEDS_H_
