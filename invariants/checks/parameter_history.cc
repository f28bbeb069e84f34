#include "invariants/checks/parameter_history.h"

namespace shardproof {

void ParameterHistory::BeginStep() {
  first_step_ = !begun_;
  begun_ = true;
  entries_.resize(next_);  // what the last step did not show has no past
  next_ = 0;
}

const float* ParameterHistory::Previous(int32_t rank, const StateSegment& segment,
                                        const float* reference_previous) const {
  if (next_ >= entries_.size()) return first_step_ ? reference_previous : nullptr;
  const Entry& entry = entries_[next_];
  if (entry.rank != rank || entry.tensor != segment.tensor || entry.range != segment.range) {
    return nullptr;
  }
  return entry.equals_reference ? reference_previous : entry.copy.data();
}

void ParameterHistory::Remember(int32_t rank, const StateSegment& segment, bool equals_reference) {
  if (next_ >= entries_.size()) entries_.emplace_back();
  Entry& entry = entries_[next_++];
  entry.rank = rank;
  entry.tensor = segment.tensor;
  entry.range = segment.range;
  entry.equals_reference = equals_reference;
  if (!equals_reference) {
    entry.copy.assign(segment.values, segment.values + segment.range.count);
  }
}

void ParameterHistory::Forget() {
  entries_.clear();
  next_ = 0;
  begun_ = true;
  first_step_ = false;
}

}  // namespace shardproof
