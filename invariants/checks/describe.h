// How checks name units, buffers and events in violations, and safe ways into the spans
// of an observation. Strings are made only for violations.
#ifndef INVARIANTS_CHECKS_DESCRIBE_H_
#define INVARIANTS_CHECKS_DESCRIBE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// The parts of `events` that belong to `event`. A span that leaves its vector is cut: a
// check reads observations of unknown trainers and must not crash on them.
inline absl::Span<const int32_t> WaitsOf(const RankEvents& events, const Event& event) {
  if (event.first_wait >= events.waits.size()) return {};
  return absl::MakeConstSpan(events.waits).subspan(event.first_wait, event.wait_count);
}
inline absl::Span<const Access> AccessesOf(const RankEvents& events, const Event& event) {
  if (event.first_access >= events.accesses.size()) return {};
  return absl::MakeConstSpan(events.accesses).subspan(event.first_access, event.access_count);
}

// Null for an index that is not in the list.
inline const BufferInfo* BufferOf(const RankEvents& events, int32_t buffer) {
  if (buffer < 0 || static_cast<size_t>(buffer) >= events.buffers.size()) return nullptr;
  return &events.buffers[buffer];
}
// The events of `rank`; null when they were not shown.
const RankEvents* EventsOf(const StepObservation& observed, Rank rank);

// How many ranks the parts of an observation stand for.
int64_t RanksShown(const std::vector<RankEvents>& events);
int64_t RanksShown(const std::vector<RankState>& states);

// Whether the segment is of a tensor of the model and lies within it.
bool LiesInTensor(const StateSegment& segment, absl::Span<const int64_t> tensor_elements);

// Elements of each tensor.
std::vector<int64_t> TensorElements(const ModelDescription& model);

// "layers.2" or "unit 7" when the model has no such unit; "" for -1.
std::string UnitName(const ModelDescription& model, int32_t unit);
std::string TensorName(const ModelDescription& model, int32_t tensor);
// The unit's name, else "bucket 3", else "".
std::string SetName(const ModelDescription& model, int32_t unit, int32_t bucket);
// "unsharded_parameter of layers.2 (buffer 5)".
std::string BufferText(const ModelDescription& model, const RankEvents& events, int32_t buffer);
// "event 17 (backward of layers.2, compute)".
std::string EventText(const ModelDescription& model, const RankEvents& events, int32_t index);

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_DESCRIBE_H_
