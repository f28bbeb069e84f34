#include "invariants/suite/judge_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/checks/all_checks.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

absl::StatusOr<std::vector<std::unique_ptr<Check>>> MakeChecks(
    const std::vector<std::string>& names) {
  if (names.empty()) return AllChecks();
  std::vector<std::unique_ptr<Check>> checks;
  for (const std::string& name : names) {
    SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<Check> check, MakeCheck(name));
    checks.push_back(std::move(check));
  }
  return checks;
}

// Fail over pass; without a check that saw its evidence there is nothing to pass.
Verdict Combine(const std::vector<CheckResult>& checks) {
  Verdict combined = Verdict::kNotObserved;
  for (const CheckResult& check : checks) {
    if (check.verdict == Verdict::kFail) return Verdict::kFail;
    if (check.verdict != Verdict::kNotObserved) combined = Verdict::kPass;
  }
  return combined;
}

// A check only sees that it got no reference; why is known here.
CheckResult Finish(Check& check, const Oracle& oracle) {
  CheckResult result = check.Finish();
  if (result.verdict == Verdict::kNotObserved && result.reason == kNoReference &&
      !oracle.missing.empty()) {
    absl::StrAppend(&result.reason, ": ", oracle.missing);
  }
  return result;
}

// The oracle goes on with rank 0's; that all ranks have the same is a check's business.
std::optional<float> ClipCoefficient(const StepObservation& observed) {
  if (observed.clips.empty()) return std::nullopt;
  return observed.clips[0].coefficient;
}

// The trainer's parameters of one tensor, by its first rank that shows each element; nothing where
// some element was not shown or is no number.
std::optional<std::vector<float>> ParametersOf(const RunDescription& run,
                                               const StepObservation& observed, int32_t tensor) {
  std::vector<float> values(static_cast<size_t>(Elements(run.model.tensors[tensor])),
                            std::numeric_limits<float>::quiet_NaN());
  const int64_t elements = static_cast<int64_t>(values.size());
  for (auto state = observed.states.rbegin(); state != observed.states.rend(); ++state) {
    for (const StateSegment& segment : state->segments) {
      if (segment.state != StateClass::kParameter || segment.tensor != tensor) continue;
      const ElementRange& range = segment.range;
      if (segment.values == nullptr || range.first < 0 || range.count <= 0) continue;
      if (range.first > elements || range.count > elements - range.first) continue;
      std::copy_n(segment.values, range.count, values.begin() + range.first);
    }
  }
  const bool whole =
      std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  if (!whole) return std::nullopt;
  return values;
}

// Where sums have no fixed order, two right trainings part: a rounding moves a parameter, and that
// the gradients of the next step, by more than the rounding of their sums. So that gradients stay
// comparable the oracle takes its next step from where the trainer is; that it got there rightly
// was judged in this one.
void AdoptParameters(const RunDescription& run, const StepObservation& observed,
                     ReplicatedTrainer& oracle) {
  for (size_t t = 0; t < run.model.tensors.size(); ++t) {
    const int32_t tensor = static_cast<int32_t>(t);
    if (!run.model.tensors[t].trainable) continue;
    const std::optional<std::vector<float>> values = ParametersOf(run, observed, tensor);
    if (values.has_value()) oracle.SetParameter(tensor, *values);
  }
}

}  // namespace

absl::StatusOr<CaseResult> JudgeSteps(const RunDescription& run, const StepSource& next_step,
                                      const Oracle& oracle, const JudgeOptions& options) {
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Check>> checks,
                              MakeChecks(options.checks));
  CaseResult result;
  for (const std::unique_ptr<Check>& check : checks) check->Begin(run);
  for (int64_t done = 1;; ++done) {
    SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed, next_step());
    if (observed == nullptr) break;
    const ReferenceStep* const reference =
        oracle.trainer ? &oracle.trainer->Step(ClipCoefficient(*observed)) : nullptr;
    for (const std::unique_ptr<Check>& check : checks) check->Step(*observed, reference);
    if (reference != nullptr && observed->any_order) {
      AdoptParameters(run, *observed, *oracle.trainer);
    }
    if (done == run.data.steps) result.figures = SummarizeStep(run, *observed);
    if (options.on_step) options.on_step(done);
  }
  for (const std::unique_ptr<Check>& check : checks) {
    result.checks.push_back(Finish(*check, oracle));
    if (const auto* numeric = dynamic_cast<const NumericEquivalence*>(check.get())) {
      result.numeric = numeric->figures();
    }
  }
  result.verdict = Combine(result.checks);
  return result;
}

}  // namespace shardproof
