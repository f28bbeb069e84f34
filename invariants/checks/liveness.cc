#include "invariants/checks/liveness.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "invariants/checks/any_order.h"
#include "invariants/checks/describe.h"
#include "invariants/checks/float_bits.h"
#include "invariants/checks/parameter_history.h"

namespace shardproof {
namespace {

bool Moved(const float* after, const float* before, int64_t i) {
  return FloatBits(after[i]) != FloatBits(before[i]);
}

// What moved in a segment although it should not have, or the other way round.
struct Moves {
  int64_t count = 0;
  int64_t first = -1;
  void Add(int64_t i) {
    if (count++ == 0) first = i;
  }
};

class Liveness final : public Check {
 public:
  absl::string_view name() const override { return "liveness"; }
  void Begin(const RunDescription& run) override;
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override { return findings_.Finish(); }

 private:
  struct Copy {
    int32_t tensor = -1;
    int32_t rank = -1;
    ElementRange range;
    const float* values = nullptr;
  };

  bool HasEvidence(const StepObservation& observed, const ReferenceStep* reference);
  bool Judged(const RankState& state, const StateSegment& segment);
  void JudgeSegment(int32_t rank, const StateSegment& segment);
  void JudgeMoves(int32_t rank, const StateSegment& segment, const float* before);
  bool RoundingDecides(const StateSegment& segment, const float* before, int64_t i) const;
  void JudgeCopies();
  void JudgeCopiesOfTensor(absl::Span<const Copy> copies);
  bool SameOverlap(const Copy& a, const Copy& b);
  Violation Base(absl::string_view rule, int32_t rank, int32_t tensor, int64_t element) const;

  const RunDescription* run_ = nullptr;
  std::vector<int64_t> elements_;
  const StepObservation* observed_ = nullptr;
  const ReferenceStep* reference_ = nullptr;
  bool any_differs_ = false;   // from the reference: only then can copies differ
  std::vector<char> differs_;  // by tensor
  std::vector<Copy> copies_;
  ParameterHistory history_;
  Findings findings_{"liveness"};
};

void Liveness::Begin(const RunDescription& run) {
  run_ = &run;
  elements_ = TensorElements(run.model);
}

bool Liveness::HasEvidence(const StepObservation& observed, const ReferenceStep* reference) {
  if (reference == nullptr || reference->tensors.size() != elements_.size()) {
    findings_.NotObserved(kNoReference);
    return false;
  }
  if (reference->step != observed.step) {
    findings_.NotObserved("the reference is of another step");
    return false;
  }
  if (RanksShown(observed.states) != run_->sharding.world_size.value) {
    findings_.NotObserved("the state of some ranks was not shown");
  }
  return true;
}

void Liveness::Step(const StepObservation& observed, const ReferenceStep* reference) {
  if (!HasEvidence(observed, reference)) {
    history_.Forget();
    return;
  }
  observed_ = &observed;
  reference_ = reference;
  if (any_differs_ || differs_.empty()) differs_.assign(elements_.size(), 0);
  any_differs_ = false;
  history_.BeginStep();
  bool shown = false;
  for (const RankState& state : observed.states) {
    for (const StateSegment& segment : state.segments) {
      if (!Judged(state, segment)) continue;
      shown = true;
      JudgeSegment(state.ranks.first, segment);
    }
  }
  if (any_differs_) JudgeCopies();
  if (shown) {
    findings_.Observed();
  } else {
    findings_.NotObserved("no values of parameters were shown");
  }
}

bool Liveness::Judged(const RankState& state, const StateSegment& segment) {
  if (segment.state != StateClass::kParameter || segment.tensor < 0) return false;
  if (segment.range.count <= 0 || !LiesInTensor(segment, elements_)) return false;
  const ReferenceTensor& tensor = reference_->tensors[segment.tensor];
  if (tensor.parameter == nullptr || tensor.previous_parameter == nullptr) return false;
  if (segment.values != nullptr) return true;
  findings_.NotObserved(
      absl::StrCat("rank ", state.ranks.first, " showed no values of its parameters"));
  return false;
}

// Same bits before and after as the reference: the same moves, without a look at elements.
void Liveness::JudgeSegment(int32_t rank, const StateSegment& segment) {
  const ReferenceTensor& tensor = reference_->tensors[segment.tensor];
  const float* reference_before = tensor.previous_parameter + segment.range.first;
  const float* before = history_.Previous(rank, segment, reference_before);
  const bool equal =
      SameBits(segment.values, tensor.parameter + segment.range.first, segment.range.count);
  if (before != nullptr && !(equal && before == reference_before)) {
    JudgeMoves(rank, segment, before);
  }
  if (!equal) {
    any_differs_ = true;
    differs_[segment.tensor] = 1;
  }
  history_.Remember(rank, segment, equal);
}

// Where sums have no fixed order, whether the element moves may hang on a rounding: the gradient
// cancels so far that its sign, or whether it is zero, is not known; or the gradient cancels those
// before it in the momentum so far; or the move is about an ulp.
bool Liveness::RoundingDecides(const StateSegment& segment, const float* before, int64_t i) const {
  const ReferenceTensor& tensor = reference_->tensors[segment.tensor];
  const int64_t element = segment.range.first + i;
  if (tensor.gradient != nullptr && tensor.gradient_magnitude != nullptr) {
    const double magnitude = tensor.gradient_magnitude[element];
    const auto lost = [&](float value) {
      return magnitude > 0 &&
             std::abs(static_cast<double>(value)) <= GradientTolerance(*run_, magnitude);
    };
    if (lost(tensor.gradient[element])) return true;
    if (tensor.exp_avg != nullptr && lost(tensor.exp_avg[element])) return true;
  }
  constexpr int64_t kAboutOne = 2;
  const auto small = [](int64_t ulp) { return ulp >= 0 && ulp <= kAboutOne; };
  return small(UlpDistance(segment.values[i], before[i])) &&
         small(UlpDistance(tensor.parameter[element], tensor.previous_parameter[element]));
}

void Liveness::JudgeMoves(int32_t rank, const StateSegment& segment, const float* before) {
  const ReferenceTensor& tensor = reference_->tensors[segment.tensor];
  const float* reference_after = tensor.parameter + segment.range.first;
  const float* reference_before = tensor.previous_parameter + segment.range.first;
  Moves stays;
  Moves strays;
  for (int64_t i = 0; i < segment.range.count; ++i) {
    const bool moved = Moved(segment.values, before, i);
    if (moved == Moved(reference_after, reference_before, i)) continue;
    if (observed_->any_order && RoundingDecides(segment, before, i)) continue;
    (moved ? strays : stays).Add(i);
  }
  const auto add = [&](const Moves& moves, bool stayed) {
    findings_.Add([&] {
      const int64_t i = moves.first;
      Violation violation =
          Base("an element moves in exactly the steps in which replicated training moves it", rank,
               segment.tensor, segment.range.first + i);
      violation.expected =
          absl::StrCat("a move from ", FloatText(before[i]), " as from ",
                       FloatText(reference_before[i]), " to ", FloatText(reference_after[i]));
      violation.actual = absl::StrCat("never updated in this step: ", moves.count, " of the ",
                                      segment.range.count, " elements on this rank stay");
      violation.likely_cause =
          "an optimizer that does not hold these elements, or a broadcast, gather or copy after "
          "the update that left them out";
      if (stayed) return violation;
      violation.expected = absl::StrCat("no move from ", FloatText(before[i]));
      violation.actual = absl::StrCat("moved to ", FloatText(segment.values[i]), ": ", moves.count,
                                      " of the ", segment.range.count, " elements on this rank");
      violation.likely_cause =
          "decay or an update of a tensor that is frozen or was not used, or "
          "a write into a neighbour's place";
      return violation;
    });
  };
  if (stays.count > 0) add(stays, true);
  if (strays.count > 0) add(strays, false);
}

void Liveness::JudgeCopies() {
  copies_.clear();
  for (const RankState& state : observed_->states) {
    for (const StateSegment& segment : state.segments) {
      if (!Judged(state, segment) || !differs_[segment.tensor]) continue;
      copies_.push_back({segment.tensor, state.ranks.first, segment.range, segment.values});
    }
  }
  std::stable_sort(copies_.begin(), copies_.end(), [](const Copy& a, const Copy& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.range.first < b.range.first;
  });
  for (size_t begin = 0; begin < copies_.size();) {
    size_t end = begin + 1;
    while (end < copies_.size() && copies_[end].tensor == copies_[begin].tensor) ++end;
    JudgeCopiesOfTensor(absl::MakeConstSpan(copies_).subspan(begin, end - begin));
    begin = end;
  }
}

// Each copy against the copies before it that it overlaps, until they have covered it: those
// were compared with each other already.
void Liveness::JudgeCopiesOfTensor(absl::Span<const Copy> copies) {
  for (size_t i = 1; i < copies.size(); ++i) {
    int64_t covered = copies[i].range.first;
    for (size_t j = 0; j < i && covered < copies[i].range.end(); ++j) {
      if (copies[j].range.end() <= covered) continue;
      if (!SameOverlap(copies[j], copies[i])) break;
      covered = copies[j].range.end();
    }
  }
}

bool Liveness::SameOverlap(const Copy& a, const Copy& b) {
  const int64_t first = std::max(a.range.first, b.range.first);
  const int64_t count = std::min(a.range.end(), b.range.end()) - first;
  if (count <= 0) return true;
  const float* in_a = a.values + (first - a.range.first);
  const float* in_b = b.values + (first - b.range.first);
  if (SameBits(in_a, in_b, count)) return true;
  int64_t i = 0;
  while (FloatBits(in_a[i]) == FloatBits(in_b[i])) ++i;
  findings_.Add([&] {
    Violation violation =
        Base("copies of a parameter on different ranks are bit-equal", b.rank, b.tensor, first + i);
    const float reference = reference_->tensors[b.tensor].parameter[first + i];
    violation.expected = absl::StrCat(FloatText(in_a[i]), ", as on rank ", a.rank);
    violation.actual = absl::StrCat(FloatText(in_b[i]), " on rank ", b.rank,
                                    "; replicated training has ", FloatText(reference));
    violation.likely_cause =
        "a reduction, broadcast or gather that did not reach one of the two ranks";
    return violation;
  });
  return false;
}

Violation Liveness::Base(absl::string_view rule, int32_t rank, int32_t tensor,
                         int64_t element) const {
  Violation violation;
  violation.rule = std::string(rule);
  violation.rank = rank;
  violation.step = observed_->step;
  violation.tensor = TensorName(run_->model, tensor);
  violation.element = element;
  return violation;
}

}  // namespace

std::unique_ptr<Check> MakeLiveness() { return std::make_unique<Liveness>(); }

}  // namespace shardproof
