#include "trainer/engines/provenance_memory.h"

#include <algorithm>

namespace shardproof {

void AppendRun(const OriginRun& run, size_t begin, std::vector<OriginRun>& runs) {
  if (run.count <= 0) return;
  if (runs.size() > begin && Advanced(runs.back().origin, runs.back().count) == run.origin) {
    runs.back().count += run.count;
  } else {
    runs.push_back(run);
  }
}

void OriginBuffer::Fill(const Origin& origin) {
  placed_.clear();
  if (elements_ > 0) placed_.push_back({0, origin});
}

// The entry that covers the element.
size_t OriginBuffer::Holding(int64_t element) const {
  const auto after =
      std::upper_bound(placed_.begin(), placed_.end(), element,
                       [](int64_t at, const Placed& placed) { return at < placed.first; });
  return static_cast<size_t>(after - placed_.begin()) - 1;
}

void OriginBuffer::Read(ElementRange range, size_t begin, std::vector<OriginRun>& runs) const {
  if (range.count <= 0) return;
  for (size_t i = Holding(range.first); i < placed_.size() && placed_[i].first < range.end(); ++i) {
    const int64_t from = std::max(range.first, placed_[i].first);
    const int64_t to = std::min(range.end(), End(i));
    AppendRun({to - from, Advanced(placed_[i].origin, from - placed_[i].first)}, begin, runs);
  }
}

void OriginBuffer::Append(const Placed& placed, std::vector<Placed>& to) {
  if (!to.empty() && Advanced(to.back().origin, placed.first - to.back().first) == placed.origin) {
    return;
  }
  to.push_back(placed);
}

// Replaces the entries that `runs` touch, and one on each side, with which they may continue.
void OriginBuffer::Write(int64_t first, absl::Span<const OriginRun> runs) {
  int64_t end = first;
  for (const OriginRun& run : runs) end += run.count;
  if (end == first) return;
  size_t low = Holding(first);
  if (low > 0) --low;
  const size_t last = Holding(end - 1);
  const size_t high = std::min(last + 2, placed_.size());
  scratch_.clear();
  for (size_t i = low; i < high && placed_[i].first < first; ++i) Append(placed_[i], scratch_);
  int64_t at = first;
  for (const OriginRun& run : runs) {
    if (run.count > 0) Append({at, run.origin}, scratch_);
    at += run.count;
  }
  if (End(last) > end)
    Append({end, Advanced(placed_[last].origin, end - placed_[last].first)}, scratch_);
  for (size_t i = last + 1; i < high; ++i) Append(placed_[i], scratch_);
  const size_t common = std::min(high - low, scratch_.size());
  std::copy_n(scratch_.begin(), common, placed_.begin() + low);
  if (common < scratch_.size()) {
    placed_.insert(placed_.begin() + low + common, scratch_.begin() + common, scratch_.end());
  } else {
    placed_.erase(placed_.begin() + low + common, placed_.begin() + high);
  }
}

}  // namespace shardproof
