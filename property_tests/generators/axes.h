// The axes of the space of runs, and which of their values a campaign has seen.
//
// An axis has a few values, and every run has exactly one of them. Axes are read off the
// RunDescription that was made, not off what was meant to be drawn.
#ifndef PROPERTY_TESTS_GENERATORS_AXES_H_
#define PROPERTY_TESTS_GENERATORS_AXES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

struct Axis {
  absl::string_view name;
  std::vector<absl::string_view> values;
};

std::vector<Axis> AllAxes();

// By axis, the index of the run's value. `run` must be valid.
std::vector<int32_t> AxisValues(const RunDescription& run);

// The same in words: {"mode", "zero2"}, {"ties", "across_units"}, ...
std::vector<std::pair<absl::string_view, absl::string_view>> DescribeAxes(
    const RunDescription& run);

// How often each value, and each pair of values of two axes, was seen.
class Coverage {
 public:
  Coverage();
  void Add(const std::vector<int32_t>& values);
  void Add(const Coverage& other);

  const std::vector<Axis>& axes() const { return axes_; }
  int64_t Seen(size_t axis, size_t value) const { return seen_[first_[axis] + value]; }
  int64_t ValuesSeen() const;
  // Of those that the generator draws.
  int64_t ValuesPossible() const;
  // Pairs that no run can have (layout rows in mode replicated) are not counted.
  int64_t PairsSeen() const;
  int64_t PairsPossible() const;
  // Those that were seen all the same: axes.cc is wrong about them.
  std::vector<std::string> PairsWronglyExcluded() const;
  // "mode=replicated x layout=rows", of the possible ones.
  std::vector<std::string> PairsMissing() const;

  // One line an axis: how many of its values were seen, and each with its share of the runs.
  std::string Table() const;

 private:
  // Values of two axes, the first axis before the other.
  struct Pair {
    size_t axis = 0;
    size_t value = 0;
    size_t other = 0;
    size_t second = 0;
  };
  // Calls visit(pair) for every pair, the impossible ones too.
  template <typename Visit>
  void VisitPairs(Visit visit) const;
  bool IsPossible(const Pair& pair) const;
  bool IsSeen(const Pair& pair) const;
  std::string Text(const Pair& pair) const;
  size_t PairIndex(size_t a, size_t b) const { return a * seen_.size() + b; }

  std::vector<Axis> axes_;
  std::vector<size_t> first_;  // axis -> index of its first value in seen_
  std::vector<int64_t> seen_;
  std::vector<bool> pairs_;
  int64_t runs_ = 0;
};

}  // namespace shardproof

#endif  // PROPERTY_TESTS_GENERATORS_AXES_H_
