#include "invariants/suite/trainer_search.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "property_tests/generators/case_spec.h"
#include "property_tests/generators/shrink.h"
#include "rapidcheck.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

// Sizes go round, as RapidCheck's do, so that small runs are among the first and never end.
constexpr int64_t kSizes = 100;

JudgedCase JudgeSpec(const CaseSpec& spec, const CaseJudge& judge) {
  const absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
  if (run.ok()) return judge(*run);
  return {CaseOutcome::kFailed, absl::StrCat("the generator: ", run.status().ToString()),
          "generator"};
}

void Shrink(rc::Shrinkable<CaseSpec> failing, const std::string& cause, const CaseJudge& judge,
            SearchResult& result) {
  const ShrunkCase shrunk =
      ShrinkCase(std::move(failing),
                 [&](const CaseSpec& spec) {
                   const JudgedCase judged = JudgeSpec(spec, judge);
                   return judged.outcome == CaseOutcome::kFailed && judged.cause == cause;
                 },
                 {.tries = 2000, .time = absl::Seconds(60)});
  result.shrink_tries = shrunk.tries;
  result.shrunk_completely = shrunk.complete;
  const absl::StatusOr<RunDescription> run = MakeCase(shrunk.spec, ImportModel);
  if (run.ok()) result.run = *run;
  result.failure = JudgeSpec(shrunk.spec, judge).text;
}

}  // namespace

SearchResult SearchCases(const SearchOptions& options, const CaseJudge& judge) {
  const rc::Gen<CaseSpec> generator = AnyCase(options.limits);
  SearchResult result;
  for (int64_t draw = 0; draw < options.max_draws && result.cases < options.max_cases; ++draw) {
    if (absl::Now() >= options.deadline) break;
    const rc::Random random(options.seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(draw));
    rc::Shrinkable<CaseSpec> drawn = generator(random, static_cast<int>(draw % kSizes) + 1);
    const CaseSpec spec = drawn.value();
    JudgedCase judged = JudgeSpec(spec, judge);
    if (judged.outcome == CaseOutcome::kRefused) {
      ++result.refused;
      result.last_refusal = std::move(judged.text);
    } else {
      ++result.cases;
      const absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
      if (run.ok()) result.coverage.Add(AxisValues(*run));
    }
    if (judged.outcome == CaseOutcome::kFailed) {
      result.failed = true;
      result.failing_draw = draw;
      Shrink(std::move(drawn), judged.cause, judge, result);
      return result;
    }
    if (options.on_draw) options.on_draw(result);
  }
  return result;
}

}  // namespace shardproof
