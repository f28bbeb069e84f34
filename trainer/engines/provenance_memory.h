// OriginBuffer: a buffer whose elements are origins instead of floats.
//
// It holds runs: elements whose origins continue each other are one entry, so that a correct step
// costs as many entries as there are pieces of tensors, whatever the number of elements.
#ifndef TRAINER_ENGINES_PROVENANCE_MEMORY_H_
#define TRAINER_ENGINES_PROVENANCE_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "invariants/observation/origin.h"

namespace shardproof {

// Appends `run`, as part of the run before it from `begin` on if it goes on there. Empty runs are
// left out.
void AppendRun(const OriginRun& run, size_t begin, std::vector<OriginRun>& runs);

class OriginBuffer {
 public:
  // `unallocated` is what the buffer holds before its first allocation.
  OriginBuffer(int64_t elements, const Origin& unallocated) : elements_(elements) {
    Fill(unallocated);
  }

  int64_t elements() const { return elements_; }
  // Every element gets this origin, which has no element that counts up.
  void Fill(const Origin& origin);
  // Appends the runs of `range`, which lies in the buffer. What is there from `begin` on may be
  // continued.
  void Read(ElementRange range, size_t begin, std::vector<OriginRun>& runs) const;
  // `runs` in place of the elements from `first` on; they end within the buffer.
  void Write(int64_t first, absl::Span<const OriginRun> runs);

  template <typename Fn>
  void ForEachOrigin(Fn fn) {
    for (Placed& placed : placed_) fn(placed.origin);
  }

 private:
  // From `first` to where the next one begins.
  struct Placed {
    int64_t first = 0;
    Origin origin;
  };
  size_t Holding(int64_t element) const;
  int64_t End(size_t index) const {
    return index + 1 < placed_.size() ? placed_[index + 1].first : elements_;
  }
  static void Append(const Placed& placed, std::vector<Placed>& to);

  int64_t elements_ = 0;
  std::vector<Placed> placed_;  // ascending; the first begins at 0
  std::vector<Placed> scratch_;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PROVENANCE_MEMORY_H_
