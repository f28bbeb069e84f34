#include "property_tests/random_cases.h"

#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "property_tests/found_case.h"
#include "rapidcheck.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

EngineVerdict Judge(const RandomCases& cases, const RunDescription& run) {
  if (cases.judge) return cases.judge(run);
  EngineVerdict verdict;
  for (const EngineKind engine : cases.engines) {
    verdict = JudgeCase(run, {.engine = engine, .checks = cases.checks});
    if (!verdict.passes) break;
  }
  return verdict;
}

std::string FoundBy(const std::string& name) {
  const char* const parameters = std::getenv("RC_PARAMS");
  return absl::StrCat("'", name, "' with RC_PARAMS=\"", parameters == nullptr ? "" : parameters,
                      "\"");
}

}  // namespace

std::string CheckRandomCases(const RandomCases& cases) {
  // RapidCheck goes on from every smaller case that fails: the last one is the smallest.
  std::optional<FoundCase> last;
  const bool passes = rc::check(cases.name, [&] {
    const CaseSpec spec = *AnyCase(cases.limits);
    absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
    if (!run.ok()) RC_FAIL(run.status().ToString());
    EngineVerdict verdict = Judge(cases, *run);
    if (verdict.passes) return;
    if (last.has_value() && last->verdict.cause != verdict.cause) RC_DISCARD("another fault");
    last = FoundCase{*std::move(run), std::move(verdict), FoundBy(cases.name)};
    RC_FAIL(last->verdict.headline);
  });
  if (passes) return "";
  if (!last.has_value()) return "RapidCheck drew no case that could be made; see its output\n";
  return ReportFoundCase(*last, UndeclaredOutputsFolder());
}

}  // namespace shardproof
