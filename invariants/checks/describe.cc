#include "invariants/checks/describe.h"

#include "absl/strings/str_cat.h"

namespace shardproof {
namespace {

template <typename T>
int64_t SumOfRanks(const std::vector<T>& parts) {
  int64_t sum = 0;
  for (const T& part : parts) sum += part.ranks.count;
  return sum;
}

std::string StagesText(const ModelDescription& model, const Event& event) {
  const int64_t stages = static_cast<int64_t>(model.stages.size());
  const int64_t last = int64_t{event.stage} + event.stage_count - 1;
  if (event.stage < 0 || last < event.stage || last >= stages) return "";
  if (last == event.stage) return model.stages[last].name;
  return absl::StrCat(model.stages[event.stage].name, " to ", model.stages[last].name);
}

std::string WhatText(const ModelDescription& model, const Event& event) {
  if (event.kind == EventKind::kCompute) {
    return absl::StrCat(Name(event.phase), " of ", StagesText(model, event));
  }
  const absl::string_view what =
      event.kind == EventKind::kCollective ? Name(event.collective) : Name(event.kind);
  const std::string set = event.tensor >= 0 ? TensorName(model, event.tensor)
                                            : SetName(model, event.unit, event.bucket);
  return set.empty() ? std::string(what) : absl::StrCat(what, " of ", set);
}

}  // namespace

const RankEvents* EventsOf(const StepObservation& observed, Rank rank) {
  for (const RankEvents& events : observed.events) {
    if (events.ranks.Contains(rank)) return &events;
  }
  return nullptr;
}

int64_t RanksShown(const std::vector<RankEvents>& events) { return SumOfRanks(events); }
int64_t RanksShown(const std::vector<RankState>& states) { return SumOfRanks(states); }

bool LiesInTensor(const StateSegment& segment, absl::Span<const int64_t> tensor_elements) {
  if (segment.tensor < 0 || static_cast<size_t>(segment.tensor) >= tensor_elements.size()) {
    return false;
  }
  const int64_t elements = tensor_elements[segment.tensor];
  const ElementRange& range = segment.range;
  return range.first >= 0 && range.count >= 0 && range.first <= elements &&
         range.count <= elements - range.first;
}

std::vector<int64_t> TensorElements(const ModelDescription& model) {
  std::vector<int64_t> elements;
  elements.reserve(model.tensors.size());
  for (const TensorSpec& tensor : model.tensors) elements.push_back(Elements(tensor));
  return elements;
}

std::string UnitName(const ModelDescription& model, int32_t unit) {
  if (unit < 0) return "";
  if (static_cast<size_t>(unit) >= model.units.size()) return absl::StrCat("unit ", unit);
  return model.units[unit].name;
}

std::string TensorName(const ModelDescription& model, int32_t tensor) {
  if (tensor < 0) return "";
  if (static_cast<size_t>(tensor) >= model.tensors.size()) return absl::StrCat("tensor ", tensor);
  return model.tensors[tensor].name;
}

std::string SetName(const ModelDescription& model, int32_t unit, int32_t bucket) {
  if (unit >= 0) return UnitName(model, unit);
  return bucket >= 0 ? absl::StrCat("bucket ", bucket) : "";
}

std::string BufferText(const ModelDescription& model, const RankEvents& events, int32_t buffer) {
  const BufferInfo* info = BufferOf(events, buffer);
  if (info == nullptr) return absl::StrCat("buffer ", buffer, ", which is not listed");
  const std::string set = SetName(model, info->unit, info->bucket);
  return absl::StrCat(Name(info->role), set.empty() ? "" : " of ", set, " (buffer ", buffer, ")");
}

std::string EventText(const ModelDescription& model, const RankEvents& events, int32_t index) {
  if (index < 0 || static_cast<size_t>(index) >= events.events.size()) {
    return absl::StrCat("event ", index);
  }
  const Event& event = events.events[index];
  return absl::StrCat("event ", index, " (", WhatText(model, event), ", ", Name(event.stream), ")");
}

}  // namespace shardproof
