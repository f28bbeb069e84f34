#include "property_tests/faults/kill.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "invariants/checks/all_checks.h"
#include "invariants/checks/padding.h"
#include "invariants/checks/unshard_lifecycle.h"
#include "invariants/closed_forms/closed_forms.h"
#include "invariants/run_description/parse.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

// Whether a check objects for another reason than these rules. Some rules go on to name a buffer.
bool FailsBesides(const CaseResult& result, absl::string_view check,
                  const std::vector<absl::string_view>& rules) {
  for (const CheckResult& each : result.checks) {
    if (each.name != check || each.verdict != Verdict::kFail) continue;
    return std::any_of(each.violations.begin(), each.violations.end(), [&](const auto& violation) {
      return std::none_of(rules.begin(), rules.end(), [&](absl::string_view rule) {
        return absl::StartsWith(violation.rule, rule);
      });
    });
  }
  return false;
}

bool OtherFactors(const RunDescription& run, const StepFigures& figures) {
  const Factors expected = ExpectedFactors(run);
  const auto other = [](double a, double b) { return std::abs(a - b) > 1e-6; };
  return figures.states_observed && (other(figures.parameter_factor, expected.parameter) ||
                                     other(figures.gradient_factor, expected.gradient) ||
                                     other(figures.optimizer_factor, expected.optimizer));
}

bool OtherCounts(const RunDescription& run, const StepFigures& figures) {
  const ExpectedCounts expected = ExpectedCollectiveCounts(run);
  return figures.events_observed &&
         (figures.all_reduce.count != expected.all_reduce ||
          figures.all_gather_forward.count != expected.all_gather_forward ||
          figures.all_gather_backward.count != expected.all_gather_backward ||
          figures.all_gather_optimizer.count != expected.all_gather_optimizer ||
          figures.reduce_scatter.count != expected.reduce_scatter ||
          figures.broadcast.count != expected.broadcast);
}

std::vector<std::string> ClassicKillers(const RunDescription& run, const CaseResult& result) {
  std::vector<std::string> killers;
  if (OtherFactors(run, result.figures)) killers.push_back("factors");
  // A NaN is not within any bound.
  if (result.numeric.observed && !(result.numeric.max_abs_parameter_error <= 1e-4)) {
    killers.push_back("params_1e-4");
  }
  if (OtherCounts(run, result.figures)) killers.push_back("counts");
  if (FailsBesides(result, "padding", {kPaddingStaysFilled, kNoElementIsPoison})) {
    killers.push_back("padding");
  }
  if (FailsBesides(result, "unshard_lifecycle",
                   {kComputationReadsUpdated, kCollectivesSendUpdated})) {
    killers.push_back("lifecycle");
  }
  return killers;
}

// Adds what an engine's run found. False: it ended in an error or a refusal.
bool AddResult(const RunDescription& run, EngineKind engine,
               const absl::StatusOr<CaseResult>& result, KillReport& report) {
  if (!result.ok()) {
    report.error = result.status();
    if (IsHangOrDisagreement(report.error)) report.killers.push_back(kEngineError);
    return false;
  }
  if (result->verdict == Verdict::kRefused) {
    report.refusal = result->refusal;
    return false;
  }
  for (const CheckResult& check : result->checks) {
    const bool judges = MovesValues(engine) || check.name == "provenance";
    const bool judged = check.verdict == Verdict::kPass || check.verdict == Verdict::kFail;
    if (judges && !judged) report.unjudged.push_back(check.name);
    if (check.verdict != Verdict::kFail || KilledBy(report, check.name)) continue;
    if (report.killers.empty()) report.engine = engine;
    report.killers.push_back(check.name);
    report.failures.push_back(check);
  }
  if (MovesValues(engine)) report.classic = ClassicKillers(run, *result);
  return true;
}

}  // namespace

std::vector<std::string> ClassicCheckNames() {
  return {"factors", "params_1e-4", "counts", "padding", "lifecycle"};
}

std::vector<std::string> KillerNames() {
  std::vector<std::string> names = AllCheckNames();
  for (const char* other : {"overlap", "provenance", kEngineError}) {
    if (std::find(names.begin(), names.end(), other) == names.end()) names.push_back(other);
  }
  return names;
}

bool IsHangOrDisagreement(const absl::Status& error) {
  return absl::IsDeadlineExceeded(error) || absl::IsFailedPrecondition(error);
}

bool Killed(const KillReport& report) { return !report.killers.empty(); }

bool KilledBy(const KillReport& report, absl::string_view check) {
  return std::find(report.killers.begin(), report.killers.end(), check) != report.killers.end();
}

absl::StatusOr<RunDescription> ParseFaultRun(absl::string_view line) {
  return ParseRun(line, ImportModel);
}

KillReport RunEdited(const RunDescription& run, const PartsEdit& edit, const KillEngines& engines) {
  KillReport report;
  std::vector<EngineKind> kinds = {engines.values};
  if (engines.provenance) kinds.push_back(EngineKind::kProvenance);
  for (EngineKind engine : kinds) {
    CaseOptions options;
    options.engine = engine;
    options.make_device_engine = engines.make_device_engine;
    options.ranks = engines.ranks;
    options.checks = AllCheckNames();
    options.checks.push_back(MovesValues(engine) ? "overlap" : "provenance");
    if (edit) {
      options.make_parts = [&edit](const RunDescription& asked) {
        return edit(asked, PlannedParts(asked));
      };
    }
    if (!AddResult(run, engine, RunCase(run, options), report)) break;
  }
  const std::vector<std::string> order = KillerNames();
  std::stable_sort(report.killers.begin(), report.killers.end(),
                   [&](const std::string& a, const std::string& b) {
                     return std::find(order.begin(), order.end(), a) <
                            std::find(order.begin(), order.end(), b);
                   });
  return report;
}

}  // namespace shardproof
