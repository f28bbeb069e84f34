#include "invariants/checks/numeric_equivalence.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "invariants/checks/any_order.h"
#include "invariants/checks/clip_equivalence.h"
#include "invariants/checks/describe.h"
#include "invariants/checks/float_bits.h"
#include "invariants/checks/observed_updates.h"
#include "invariants/checks/parameter_drift.h"
#include "invariants/checks/parameter_history.h"

namespace shardproof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr char kDiverged[] = "replicated training diverged too: lower the learning rate";

double Magnitude(double value) { return std::isnan(value) ? kInfinity : std::abs(value); }

double Relative(double error, double scale) {
  if (error == 0) return 0;
  return scale == 0 || std::isinf(error) ? kInfinity : error / scale;
}

// NaN differs from everything, -0 from 0.
bool Differs(float actual, float expected) {
  return FloatBits(actual) != FloatBits(expected) || std::isnan(actual);
}

struct Difference {
  int64_t first = -1;  // of the elements that differ; -1: none
  double max_abs = 0;
};

Difference Compare(const float* actual, const float* expected, int64_t count) {
  Difference difference;
  for (int64_t i = 0; i < count; ++i) {
    if (!Differs(actual[i], expected[i])) continue;
    if (difference.first < 0) difference.first = i;
    const double apart = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    difference.max_abs = std::max(difference.max_abs, Magnitude(apart));
  }
  return difference;
}

double Update(const float* after, const float* before, int64_t i) {
  return static_cast<double>(after[i]) - static_cast<double>(before[i]);
}

const float* ReferenceValues(const ReferenceTensor& tensor, StateClass state) {
  switch (state) {
    case StateClass::kParameter:
      return tensor.parameter;
    case StateClass::kReducedGradient:
      return tensor.gradient;
    case StateClass::kExpAvg:
      return tensor.exp_avg;
    case StateClass::kExpAvgSq:
      return tensor.exp_avg_sq;
  }
  return nullptr;
}

const char* Rule(StateClass state) {
  switch (state) {
    case StateClass::kParameter:
      return "every parameter has the bits of replicated training";
    case StateClass::kReducedGradient:
      return "every reduced gradient has the bits of replicated training";
    case StateClass::kExpAvg:
      return "every first moment (exp_avg) has the bits of replicated training";
    case StateClass::kExpAvgSq:
      return "every second moment (exp_avg_sq) has the bits of replicated training";
  }
  return "";
}

// Of the classes that are compared with the reference where sums have no fixed order.
const char* RuleInAnyOrder(StateClass state) {
  return state == StateClass::kParameter
             ? "every parameter is replicated training's, but for what rounding in sums explains"
             : "every reduced gradient is replicated training's, but for the rounding of its sum";
}

// What to look at when the ratio names nothing.
const char* UsualCause(StateClass state) {
  switch (state) {
    case StateClass::kParameter:
      return "a parameter that was not written back, or the first violation of this tensor";
    case StateClass::kReducedGradient:
      return "a reduction that is missing, partial or unordered; see collective_ledger and "
             "ordering";
    case StateClass::kExpAvg:
    case StateClass::kExpAvgSq:
      return "the gradient where it is wrong too, else the optimizer's arithmetic, its step "
             "counter or offsets into its state";
  }
  return "";
}

// A count that says something: roundings are few ulp apart, wrong values millions.
std::string UlpText(int64_t ulp) {
  constexpr int64_t kMostThatMeansRounding = 4096;
  return ulp > kMostThatMeansRounding ? "" : absl::StrCat(ulp, " ulp apart, ");
}

// What a gradient's ratio says, for names of NameRatio.
absl::string_view CauseOfRatio(absl::string_view name) {
  if (name == "N") return "gradients are summed over the ranks and never divided by N";
  if (name == "1/N") return "divided by N twice, or only one rank's part was summed";
  if (name == "K") return "summed over the micro-batches and never divided by K";
  if (name == "1/K") return "divided by K twice, or only one micro-batch's part was summed";
  if (name == "NK") return "summed over ranks and micro-batches and never divided by N*K";
  if (name == "1/(NK)") return "divided by N*K twice";
  if (name == "2^K") return "each micro-batch reduced the running sum again";
  return "a divisor that is missing, doubled or of the wrong group, or a reduction that ran again";
}

class NumericEquivalenceCheck final : public NumericEquivalence {
 public:
  absl::string_view name() const override { return "numeric_equivalence"; }
  void Begin(const RunDescription& run) override;
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override { return findings_.Finish(); }
  NumericFigures figures() const override { return figures_; }

 private:
  // A parameter segment that is not the reference's; reported after the loop that found it,
  // so that updates come before parameters.
  struct WrongParameter {
    int32_t rank;
    const StateSegment* segment;
    Difference difference;
    bool wrong_update;
  };
  // A figure of one reference tensor, computed at most once a step.
  struct PerTensor {
    int64_t stamp = -1;
    double value = 0;
  };

  bool HasEvidence(const StepObservation& observed, const ReferenceStep* reference);
  void RequireClass(StateClass state, bool shown);
  const float* Expected(const StateSegment& segment) const;
  bool Judged(const RankState& state, const StateSegment& segment, StateClass wanted);
  bool SameLoss(double actual, double expected) const;
  void CompareLosses();
  void CompareState(StateClass wanted);
  int64_t FirstWrong(const StateSegment& segment, const Difference& difference);
  double Tolerance(const StateSegment& segment, int64_t index) const;
  static void NoteShare(double used, std::optional<double>& most);
  void CompareToOwnPast();
  void RequireShown(StateClass state);
  void ReportDeviation(const ObservedUpdates::Deviation& deviation);
  void CompareCounters();
  void RequireCounters(const RankState& state);
  void CompareParameters();
  void CompareParameter(int32_t rank, const StateSegment& segment);
  void MeasureUpdate(const StateSegment& segment, const float* before);
  bool Equal(const StateSegment& segment, const float* expected);
  bool ReferenceHasNan(int32_t tensor, StateClass state);
  double Scale(int32_t tensor, StateClass state);
  double UpdateScale(int32_t tensor);
  bool FirstOfTensor(int32_t tensor);
  bool AlreadyDiverged(double expected);
  bool IsFinite(const WrongParameter& wrong) const;
  void ReportValue(int32_t rank, const StateSegment& segment, int64_t index);
  void ReportUpdate(const WrongParameter& wrong);
  std::string Cause(StateClass state, float actual, double ratio) const;
  absl::string_view CauseOfClipping(double ratio) const;

  const RunDescription* run_ = nullptr;
  std::vector<int64_t> elements_;
  bool has_trainable_ = false;
  bool has_state_ = false;  // a trainable tensor has elements
  const StepObservation* observed_ = nullptr;
  const ReferenceStep* reference_ = nullptr;
  int64_t pass_ = 0;               // counts loops over the segments; stamps what each saw
  std::vector<int64_t> reported_;  // by tensor: the stamp of its last violation
  std::vector<int64_t> counted_;   // by tensor: the stamp of its last step counter
  bool diverged_ = false;          // a reference that is not finite was reported
  bool uncounted_ = false;         // a step counter that is missing was reported
  std::vector<PerTensor> nan_;     // 1: the reference has a NaN
  std::vector<PerTensor> scale_;   // max |gradient|
  std::vector<PerTensor> update_scale_;
  int64_t stamp_ = 0;       // of (pass, rank)
  bool unbounded_ = false;  // a gradient whose magnitude is not known was reported
  double clip_error_ = 0;   // of this step's coefficient, beside what the reference clipped with
  ParameterHistory history_;
  ObservedUpdates updates_;
  ParameterDrift drift_;
  std::vector<WrongParameter> wrong_;
  NumericFigures figures_;
  Findings findings_{"numeric_equivalence"};
};

void NumericEquivalenceCheck::Begin(const RunDescription& run) {
  run_ = &run;
  elements_ = TensorElements(run.model);
  for (const TensorSpec& tensor : run.model.tensors) {
    has_trainable_ |= tensor.trainable;
    has_state_ |= tensor.trainable && Elements(tensor) > 0;
  }
  updates_.Begin(run);
  drift_.Begin(run);
  reported_.assign(elements_.size(), -1);
  counted_.assign(elements_.size(), -1);
  nan_.assign(elements_.size(), {});
  scale_.assign(elements_.size(), {});
  update_scale_.assign(elements_.size(), {});
}

bool NumericEquivalenceCheck::HasEvidence(const StepObservation& observed,
                                          const ReferenceStep* reference) {
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

void NumericEquivalenceCheck::Step(const StepObservation& observed,
                                   const ReferenceStep* reference) {
  if (!HasEvidence(observed, reference)) {
    history_.Forget();
    updates_.Forget();
    drift_.Forget();
    return;
  }
  observed_ = &observed;
  reference_ = reference;
  CompareLosses();
  JudgeClips(*run_, observed, *reference, findings_);
  clip_error_ = observed.any_order ? CoefficientError(*run_, observed, *reference) : 0;
  if (observed.any_order) drift_.Step(*reference, clip_error_);
  CompareState(StateClass::kReducedGradient);
  if (observed.any_order) {
    CompareToOwnPast();
  } else {
    updates_.Forget();
    CompareState(StateClass::kExpAvg);
    CompareState(StateClass::kExpAvgSq);
  }
  CompareCounters();
  CompareParameters();
}

// The classes that this run's optimizer has.
void NumericEquivalenceCheck::RequireClass(StateClass state, bool shown) {
  if (shown) return;
  const bool adam = run_->optimizer.kind == OptimizerKind::kAdamW;
  bool required = true;
  if (state != StateClass::kParameter) required = has_state_;
  if (state == StateClass::kExpAvg) required &= adam || run_->optimizer.momentum != 0;
  if (state == StateClass::kExpAvgSq) required &= adam;
  if (!required) return;
  findings_.NotObserved(absl::StrCat("no values of ", Name(state), " were shown"));
}

// Null when the reference has nothing to compare with.
const float* NumericEquivalenceCheck::Expected(const StateSegment& segment) const {
  const float* values = ReferenceValues(reference_->tensors[segment.tensor], segment.state);
  return values == nullptr ? nullptr : values + segment.range.first;
}

bool NumericEquivalenceCheck::Judged(const RankState& state, const StateSegment& segment,
                                     StateClass wanted) {
  if (segment.state != wanted || segment.tensor < 0 || segment.range.count <= 0) return false;
  if (!LiesInTensor(segment, elements_) || Expected(segment) == nullptr) return false;
  if (segment.values != nullptr) return true;
  findings_.NotObserved(
      absl::StrCat("rank ", state.ranks.first, " showed no values of ", Name(wanted)));
  return false;
}

bool NumericEquivalenceCheck::SameLoss(double actual, double expected) const {
  if (observed_->any_order) {
    return std::abs(actual - expected) <= kLossTolerance * std::abs(expected);
  }
  const bool same = std::bit_cast<uint64_t>(actual) == std::bit_cast<uint64_t>(expected);
  return same && !std::isnan(actual);
}

void NumericEquivalenceCheck::CompareLosses() {
  const std::vector<double>& actual = observed_->losses;
  const std::vector<double>& expected = reference_->losses;
  if (actual.empty() || expected.empty() || !has_trainable_) return;
  if (actual.size() != expected.size()) {
    findings_.NotObserved("the losses of some ranks were not shown");
    return;
  }
  for (size_t rank = 0; rank < actual.size(); ++rank) {
    if (SameLoss(actual[rank], expected[rank])) continue;
    if (AlreadyDiverged(expected[rank])) continue;
    findings_.Add([&] {
      Violation violation;
      violation.rule = observed_->any_order
                           ? "the loss of the rank is that of replicated training"
                           : "the loss of the rank has the bits of replicated training";
      violation.rank = static_cast<int32_t>(rank);
      violation.step = observed_->step;
      violation.expected = absl::StrFormat("%.17g", expected[rank]);
      violation.actual = absl::StrFormat("%.17g", actual[rank]);
      if (expected[rank] != 0 && std::isfinite(actual[rank]) && std::isfinite(expected[rank])) {
        violation.ratio = actual[rank] / expected[rank];
      }
      violation.likely_cause =
          !std::isfinite(expected[rank])
              ? kDiverged
              : "other parameters or samples than in replicated training, or a mean over "
                "another number of micro-batches";
      return violation;
    });
  }
}

void NumericEquivalenceCheck::CompareState(StateClass wanted) {
  ++pass_;
  bool shown = false;
  for (const RankState& state : observed_->states) {
    ++stamp_;
    for (const StateSegment& segment : state.segments) {
      if (!Judged(state, segment, wanted)) continue;
      shown = true;
      const float* expected = Expected(segment);
      if (observed_->any_order && wanted == StateClass::kReducedGradient) {
        NoteShare(0, figures_.max_gradient_bound_share);
      }
      if (Equal(segment, expected)) continue;
      const Difference difference = Compare(segment.values, expected, segment.range.count);
      if (wanted == StateClass::kReducedGradient) {
        figures_.max_rel_gradient_error =
            std::max(figures_.max_rel_gradient_error,
                     Relative(difference.max_abs, Scale(segment.tensor, wanted)));
      }
      // A NaN of the reference may lie outside this segment.
      const int64_t wrong = FirstWrong(segment, difference);
      if (wrong < 0 || !FirstOfTensor(segment.tensor)) continue;
      ReportValue(state.ranks.first, segment, wrong);
    }
  }
  figures_.observed |= shown;
  if (shown) findings_.Observed();
  RequireClass(wanted, shown);
}

// The first element that is not the reference's: not its bits, or in any order beyond the bound.
int64_t NumericEquivalenceCheck::FirstWrong(const StateSegment& segment,
                                            const Difference& difference) {
  if (!observed_->any_order || difference.first < 0) return difference.first;
  const bool gradient = segment.state == StateClass::kReducedGradient;
  if (gradient && reference_->tensors[segment.tensor].gradient_magnitude == nullptr) {
    if (!std::exchange(unbounded_, true)) {
      findings_.NotObserved(
          absl::StrCat("sums in any order need the magnitude of the gradients of ",
                       TensorName(run_->model, segment.tensor)));
    }
    return -1;
  }
  const float* const expected = Expected(segment);
  double used = 0;
  int64_t wrong = -1;
  for (int64_t i = difference.first; i < segment.range.count && wrong < 0; ++i) {
    const double apart = static_cast<double>(segment.values[i]) - static_cast<double>(expected[i]);
    const double tolerance = Tolerance(segment, i);
    if (!std::isfinite(apart) || !(std::abs(apart) <= tolerance)) wrong = i;
    if (std::isfinite(apart)) used = std::max(used, std::abs(apart) / tolerance);
  }
  if (gradient) NoteShare(used, figures_.max_gradient_bound_share);
  return wrong;
}

void NumericEquivalenceCheck::NoteShare(double used, std::optional<double>& most) {
  most = std::max(most.value_or(0), used);
}

// Of a gradient or a parameter in any order.
double NumericEquivalenceCheck::Tolerance(const StateSegment& segment, int64_t index) const {
  const int64_t element = segment.range.first + index;
  if (segment.state == StateClass::kParameter) {
    return std::max(kParameterTolerance, drift_.Of(segment.tensor, element));
  }
  const ReferenceTensor& tensor = reference_->tensors[segment.tensor];
  return GradientTolerance(*run_, tensor.gradient_magnitude[element]) +
         clip_error_ * std::abs(static_cast<double>(tensor.gradient[element]));
}

// In any order moments have no bits to be compared with: they must follow from the gradients and
// the moments that the trainer itself had, and so must the update.
void NumericEquivalenceCheck::CompareToOwnPast() {
  for (const ObservedUpdates::Deviation& deviation : updates_.Step(*observed_, *reference_)) {
    ReportDeviation(deviation);
  }
  if (updates_.missing().empty()) {
    NoteShare(updates_.max_share(), figures_.max_update_bound_share);
  }
  if (!updates_.missing().empty()) {
    findings_.NotObserved(
        absl::StrCat("whether updates follow from what was shown: ", updates_.missing()));
  }
  RequireShown(StateClass::kExpAvg);
  RequireShown(StateClass::kExpAvgSq);
}

void NumericEquivalenceCheck::RequireShown(StateClass wanted) {
  bool shown = false;
  for (const RankState& state : observed_->states) {
    for (const StateSegment& segment : state.segments) {
      shown |= Judged(state, segment, wanted);
    }
  }
  figures_.observed |= shown;
  if (shown) findings_.Observed();
  RequireClass(wanted, shown);
}

void NumericEquivalenceCheck::ReportDeviation(const ObservedUpdates::Deviation& deviation) {
  findings_.Add([&] {
    const bool unused = deviation.tolerance == 0;
    const bool update = deviation.state == StateClass::kParameter;
    Violation violation;
    violation.rule =
        unused   ? "a tensor that no rank uses in the step keeps its parameters and moments"
        : update ? "every update is the optimizer's, of the gradient and moments that were shown"
                 : "every moment is the optimizer's, of the gradient and moment that were shown";
    violation.rank = deviation.rank;
    violation.step = observed_->step;
    violation.tensor = TensorName(run_->model, deviation.tensor);
    violation.element = deviation.element;
    const double apart = static_cast<double>(deviation.actual) - deviation.expected;
    violation.expected = absl::StrFormat("%s %.9g", Name(deviation.state), deviation.expected);
    violation.actual = absl::StrFormat("%.9g, difference %.3g", deviation.actual, apart);
    // Of what changed: a parameter hardly moves, and its ratio would always be 1.
    const double moved = deviation.expected - deviation.before;
    if (moved != 0 && std::isfinite(deviation.actual)) {
      violation.ratio = (static_cast<double>(deviation.actual) - deviation.before) / moved;
    }
    if (!unused) violation.tolerance_share = Magnitude(apart) / deviation.tolerance;
    violation.likely_cause =
        unused ? "decay, or an update with a gradient of zeros, of a tensor that was not used"
               : "the optimizer's arithmetic: learning rate, betas or decay of another group, the "
                 "step counter, or another gradient than the one shown";
    return violation;
  });
}

void NumericEquivalenceCheck::CompareCounters() {
  for (const RankState& state : observed_->states) {
    ++stamp_;
    for (const TensorStep& counter : state.steps) {
      if (counter.tensor < 0 || static_cast<size_t>(counter.tensor) >= elements_.size()) continue;
      counted_[counter.tensor] = stamp_;
      const int64_t expected = reference_->tensors[counter.tensor].updates;
      if (counter.updates == expected || !FirstOfTensor(counter.tensor)) continue;
      findings_.Add([&] {
        Violation violation;
        violation.rule = "every tensor has had as many updates as in replicated training";
        violation.rank = state.ranks.first;
        violation.step = observed_->step;
        violation.tensor = TensorName(run_->model, counter.tensor);
        violation.expected = absl::StrCat(expected, " updates");
        violation.actual = absl::StrCat(counter.updates, " updates");
        if (expected != 0) violation.ratio = static_cast<double>(counter.updates) / expected;
        violation.likely_cause =
            "a counter advanced per object or per micro-batch, or reset; bias correction is wrong";
        return violation;
      });
    }
    if (run_->optimizer.kind == OptimizerKind::kAdamW) RequireCounters(state);
  }
}

// Bias correction depends on the count: moments without one do not say what the update was.
void NumericEquivalenceCheck::RequireCounters(const RankState& state) {
  for (const StateSegment& segment : state.segments) {
    if (segment.state != StateClass::kExpAvg || segment.range.count <= 0) continue;
    if (segment.tensor < 0 || static_cast<size_t>(segment.tensor) >= elements_.size()) continue;
    if (counted_[segment.tensor] == stamp_ || uncounted_) continue;
    uncounted_ = true;
    findings_.NotObserved(absl::StrCat("rank ", state.ranks.first, " showed no step counter of ",
                                       TensorName(run_->model, segment.tensor)));
  }
}

void NumericEquivalenceCheck::CompareParameters() {
  ++pass_;
  wrong_.clear();
  history_.BeginStep();
  bool shown = false;
  for (const RankState& state : observed_->states) {
    ++stamp_;
    for (const StateSegment& segment : state.segments) {
      if (!Judged(state, segment, StateClass::kParameter)) continue;
      shown = true;
      CompareParameter(state.ranks.first, segment);
    }
  }
  for (const WrongParameter& wrong : wrong_) {
    if (wrong.wrong_update && IsFinite(wrong)) ReportUpdate(wrong);
  }
  for (const WrongParameter& wrong : wrong_) {
    ReportValue(wrong.rank, *wrong.segment, wrong.difference.first);
  }
  figures_.observed |= shown;
  if (shown) findings_.Observed();
  RequireClass(StateClass::kParameter, shown);
}

void NumericEquivalenceCheck::CompareParameter(int32_t rank, const StateSegment& segment) {
  const float* expected = Expected(segment);
  const float* base = reference_->tensors[segment.tensor].previous_parameter;
  const float* reference_before = base == nullptr ? nullptr : base + segment.range.first;
  const float* before = history_.Previous(rank, segment, reference_before);
  const bool equal = Equal(segment, expected);
  if (!equal || before != reference_before) {
    const Difference difference = Compare(segment.values, expected, segment.range.count);
    figures_.max_abs_parameter_error =
        std::max(figures_.max_abs_parameter_error, difference.max_abs);
    if (before != nullptr && reference_before != nullptr) MeasureUpdate(segment, before);
    const int64_t first = FirstWrong(segment, difference);
    if (first >= 0 && FirstOfTensor(segment.tensor)) {
      const bool wrong_update =
          before != nullptr && before == reference_before && !observed_->any_order;
      wrong_.push_back({rank, &segment, {first, difference.max_abs}, wrong_update});
    }
  }
  history_.Remember(rank, segment, SameBits(segment.values, expected, segment.range.count));
}

void NumericEquivalenceCheck::MeasureUpdate(const StateSegment& segment, const float* before) {
  const ReferenceTensor& tensor = reference_->tensors[segment.tensor];
  const float* expected = tensor.parameter + segment.range.first;
  const float* expected_before = tensor.previous_parameter + segment.range.first;
  double error = 0;
  for (int64_t i = 0; i < segment.range.count; ++i) {
    const double apart = Update(segment.values, before, i) - Update(expected, expected_before, i);
    error = std::max(error, Magnitude(apart));
  }
  figures_.max_rel_update_error =
      std::max(figures_.max_rel_update_error, Relative(error, UpdateScale(segment.tensor)));
}

bool NumericEquivalenceCheck::Equal(const StateSegment& segment, const float* expected) {
  return SameBits(segment.values, expected, segment.range.count) &&
         !ReferenceHasNan(segment.tensor, segment.state);
}

// Equal bits and no NaN in the reference mean no NaN in any rank's: one scan serves all.
bool NumericEquivalenceCheck::ReferenceHasNan(int32_t tensor, StateClass state) {
  PerTensor& known = nan_[tensor];
  if (known.stamp != pass_) {
    known.stamp = pass_;
    const float* values = ReferenceValues(reference_->tensors[tensor], state);
    known.value = FirstNan(values, elements_[tensor]) >= 0 ? 1 : 0;
  }
  return known.value != 0;
}

double NumericEquivalenceCheck::Scale(int32_t tensor, StateClass state) {
  PerTensor& known = scale_[tensor];
  if (known.stamp == pass_) return known.value;
  known = {pass_, 0};
  const float* values = ReferenceValues(reference_->tensors[tensor], state);
  for (int64_t i = 0; i < elements_[tensor]; ++i) {
    known.value = std::max(known.value, Magnitude(values[i]));
  }
  return known.value;
}

double NumericEquivalenceCheck::UpdateScale(int32_t tensor) {
  PerTensor& known = update_scale_[tensor];
  if (known.stamp == pass_) return known.value;
  known = {pass_, 0};
  const ReferenceTensor& values = reference_->tensors[tensor];
  for (int64_t i = 0; i < elements_[tensor]; ++i) {
    known.value =
        std::max(known.value, Magnitude(Update(values.parameter, values.previous_parameter, i)));
  }
  return known.value;
}

// One violation per (step, rank, tensor, class): stamp_ counts ranks within passes.
bool NumericEquivalenceCheck::FirstOfTensor(int32_t tensor) {
  if (reported_[tensor] == stamp_) return false;
  reported_[tensor] = stamp_;
  return true;
}

// Sharding is not to blame where the reference is not finite itself: said once a run.
bool NumericEquivalenceCheck::AlreadyDiverged(double expected) {
  return !std::isfinite(expected) && std::exchange(diverged_, true);
}

void NumericEquivalenceCheck::ReportValue(int32_t rank, const StateSegment& segment,
                                          int64_t index) {
  if (AlreadyDiverged(Expected(segment)[index])) return;
  findings_.Add([&] {
    const float expected = Expected(segment)[index];
    const float actual = segment.values[index];
    const double apart = static_cast<double>(actual) - static_cast<double>(expected);
    Violation violation;
    violation.rule = observed_->any_order ? RuleInAnyOrder(segment.state) : Rule(segment.state);
    violation.rank = rank;
    violation.step = observed_->step;
    violation.tensor = TensorName(run_->model, segment.tensor);
    violation.element = segment.range.first + index;
    violation.expected = FloatText(expected);
    const int64_t ulp = UlpDistance(actual, expected);
    violation.actual =
        ulp < 0 ? absl::StrCat(FloatText(actual), ", and NaN equals nothing")
                : absl::StrFormat("%s, %sdifference %.3g", FloatText(actual), UlpText(ulp), apart);
    if (expected != 0 && ulp >= 0) violation.ratio = static_cast<double>(actual) / expected;
    if (!observed_->any_order && segment.state == StateClass::kParameter) {
      violation.tolerance_share = Magnitude(apart) / kParameterTolerance;
    }
    if (const double bound = observed_->any_order ? Tolerance(segment, index) : kInfinity;
        std::isfinite(bound)) {
      violation.tolerance_share = Magnitude(apart) / bound;
      absl::StrAppendFormat(&violation.actual, ", accepted %.3g", bound);
    }
    violation.likely_cause = std::isfinite(expected) ? Cause(segment.state, actual, violation.ratio)
                                                     : std::string(kDiverged);
    return violation;
  });
}

// Whether the reference is finite there.
bool NumericEquivalenceCheck::IsFinite(const WrongParameter& wrong) const {
  return std::isfinite(Expected(*wrong.segment)[wrong.difference.first]);
}

void NumericEquivalenceCheck::ReportUpdate(const WrongParameter& wrong) {
  findings_.Add([&] {
    const ReferenceTensor& tensor = reference_->tensors[wrong.segment->tensor];
    const int64_t element = wrong.segment->range.first + wrong.difference.first;
    const double expected = Update(tensor.parameter, tensor.previous_parameter, element);
    const double actual = static_cast<double>(wrong.segment->values[wrong.difference.first]) -
                          static_cast<double>(tensor.previous_parameter[element]);
    Violation violation;
    violation.rule = "every update (parameter after less before) is that of replicated training";
    violation.rank = wrong.rank;
    violation.step = observed_->step;
    violation.tensor = TensorName(run_->model, wrong.segment->tensor);
    violation.element = element;
    violation.expected = absl::StrFormat("%.9g", expected);
    violation.actual = absl::StrFormat("%.9g, difference %.3g", actual, actual - expected);
    if (expected != 0 && std::isfinite(actual)) violation.ratio = actual / expected;
    violation.likely_cause =
        actual == 0 ? "the update never reached this rank's parameter; see liveness"
                    : "the gradient or moments where they are wrong too, else the update's "
                      "learning rate, decay or step counter";
    return violation;
  });
}

// What a gradient's ratio says of the coefficient that it should be multiplied by once.
absl::string_view NumericEquivalenceCheck::CauseOfClipping(double ratio) const {
  const double coefficient = reference_->used_coefficient;
  if (run_->clip_grad_norm == 0 || coefficient == 1 || coefficient == 0) return "";
  const auto near = [&](double value) { return std::abs(ratio - value) <= 1e-3 * value; };
  if (near(1 / coefficient)) return "the gradients were not multiplied by the clip coefficient";
  if (near(coefficient)) return "the gradients were multiplied by the clip coefficient twice";
  return "";
}

std::string NumericEquivalenceCheck::Cause(StateClass state, float actual, double ratio) const {
  if (const std::optional<PoisonTag> poison = ReadPoison(actual)) {
    return absl::StrCat("the value is the poison of ", Name(poison->kind), " of buffer ",
                        poison->buffer, ": it was read as if it held an element; see padding");
  }
  if (std::isnan(actual)) return "arithmetic made a NaN: an overflow, 0/0, or memory read as data";
  if (state == StateClass::kReducedGradient) {
    const absl::string_view clipping = CauseOfClipping(ratio);
    if (!clipping.empty()) return std::string(clipping);
  }
  // A second moment takes in the square of the gradient.
  const bool squared = state == StateClass::kExpAvgSq && ratio > 0;
  const std::string name = ratio == 0 ? "" : NameRatio(squared ? std::sqrt(ratio) : ratio, *run_);
  if (name.empty()) return UsualCause(state);
  const std::string where = absl::StrCat(
      "the ratio is ", name, squared ? ", squared" : "", " (N = ", ShardCount(run_->sharding),
      " ranks, K = ", run_->data.num_micro_batches,
      run_->data.num_micro_batches == 1 ? " micro-batch): " : " micro-batches): ");
  if (state == StateClass::kReducedGradient) return absl::StrCat(where, CauseOfRatio(name));
  if (state == StateClass::kParameter) return absl::StrCat(where, "summed instead of copied");
  return absl::StrCat(where, "the gradient that went into it was off by ", name,
                      "; see the reduced gradient of this tensor");
}

}  // namespace

std::unique_ptr<NumericEquivalence> MakeNumericEquivalence() {
  return std::make_unique<NumericEquivalenceCheck>();
}

}  // namespace shardproof
