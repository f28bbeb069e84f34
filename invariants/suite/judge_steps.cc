#include "invariants/suite/judge_steps.h"

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
