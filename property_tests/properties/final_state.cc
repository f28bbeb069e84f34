#include "property_tests/properties/final_state.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cpu_engine.h"

namespace shardproof {
namespace {

constexpr int64_t kMemoryBytes = int64_t{1} << 40;

// Copies one rank's shards to their places; `seen` counts them.
void Collect(const RankState& state, std::vector<std::vector<float>>& parameters,
             std::vector<std::vector<bool>>& seen) {
  for (const StateSegment& segment : state.segments) {
    const bool wanted =
        segment.state == StateClass::kParameter && segment.tensor >= 0 && segment.values != nullptr;
    if (!wanted) continue;
    std::copy_n(segment.values, segment.range.count,
                parameters[segment.tensor].begin() + segment.range.first);
    std::fill_n(seen[segment.tensor].begin() + segment.range.first, segment.range.count, true);
  }
}

}  // namespace

absl::StatusOr<std::vector<std::vector<float>>> FinalParameters(const RunDescription& run) {
  SHARDPROOF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                              MakeCpuEngine(run, kMemoryBytes));
  const StepObservation* last = nullptr;
  for (int64_t step = 0; step < run.data.steps; ++step) {
    SHARDPROOF_ASSIGN_OR_RETURN(last, engine->Step());
  }
  std::vector<std::vector<float>> parameters;
  std::vector<std::vector<bool>> seen;
  for (const TensorSpec& tensor : run.model.tensors) {
    parameters.emplace_back(static_cast<size_t>(Elements(tensor)));
    seen.emplace_back(static_cast<size_t>(Elements(tensor)), false);
  }
  for (const RankState& state : last->states) Collect(state, parameters, seen);
  for (size_t tensor = 0; tensor < seen.size(); ++tensor) {
    const auto hole = std::find(seen[tensor].begin(), seen[tensor].end(), false);
    if (hole == seen[tensor].end()) continue;
    return absl::InternalError(
        absl::StrCat("no rank shows element ", hole - seen[tensor].begin(), " of tensor ", tensor));
  }
  return parameters;
}

bool SameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t tensor = 0; tensor < a.size(); ++tensor) {
    if (a[tensor].size() != b[tensor].size()) return false;
    const size_t bytes = a[tensor].size() * sizeof(float);
    if (bytes > 0 && std::memcmp(a[tensor].data(), b[tensor].data(), bytes) != 0) return false;
  }
  return true;
}

}  // namespace shardproof
