// How findings become verdicts, and what a failure says.
#include "invariants/checks/check.h"

#include <string>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

RunDescription RunOf(int32_t ranks, int64_t micro_batches) {
  RunDescription run;
  run.sharding.world_size = WorldSize{ranks};
  run.data.num_micro_batches = micro_batches;
  return run;
}

TEST(Findings, WithoutEvidenceIsNotObserved) {
  Findings findings("padding");
  const CheckResult result = findings.Finish();
  EXPECT_EQ(result.name, "padding");
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason, "nothing was observed");
}

TEST(Findings, WithEvidenceAndNoViolationPasses) {
  Findings findings("padding");
  findings.Observed();
  EXPECT_EQ(findings.Finish().verdict, Verdict::kPass);
}

TEST(Findings, MissingPartsOfTheEvidenceAreNeverAPass) {
  Findings findings("padding");
  findings.Observed();
  findings.NotObserved("rank 3 was not shown");
  findings.NotObserved("later");
  const CheckResult result = findings.Finish();
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason, "rank 3 was not shown");
}

TEST(Findings, WhatIsInferredIsLessThanAPassAndMoreThanNothing) {
  Findings findings("padding");
  findings.Observed();
  findings.Note("values were not shown");
  EXPECT_EQ(findings.Finish().verdict, Verdict::kPass);
  EXPECT_EQ(findings.Finish().reason, "values were not shown");
  findings.Inferred("outside the closed form");
  EXPECT_EQ(findings.Finish().verdict, Verdict::kInferred);
  EXPECT_EQ(findings.Finish().reason, "outside the closed form");
  Findings missing = findings;
  missing.NotObserved("rank 3 was not shown");
  EXPECT_EQ(missing.Finish().verdict, Verdict::kNotObserved);
  EXPECT_EQ(missing.Finish().reason, "rank 3 was not shown");
  findings.Add([] { return Violation{.rule = "r"}; });
  EXPECT_EQ(findings.Finish().verdict, Verdict::kFail);
  EXPECT_EQ(findings.Finish().reason, "");
}

TEST(Findings, AViolationFailsEvenWhenOtherEvidenceIsMissing) {
  Findings findings("padding");
  findings.NotObserved("rank 3 was not shown");
  findings.Add([] { return Violation{.rule = "r"}; });
  EXPECT_EQ(findings.Finish().verdict, Verdict::kFail);
}

TEST(Findings, KeepTheFirstViolationsAndCountTheRest) {
  Findings findings("padding");
  int built = 0;
  for (int i = 0; i < 100; ++i) {
    findings.Add([&] {
      ++built;
      return Violation{.rule = "r", .rank = i};
    });
  }
  const CheckResult result = findings.Finish();
  EXPECT_EQ(result.violation_count, 100);
  ASSERT_EQ(result.violations.size(), static_cast<size_t>(kMaxViolations));
  EXPECT_EQ(result.violations[0].rank, 0);
  EXPECT_EQ(built, kMaxViolations);
}

TEST(NameRatio, NamesTheRanksAndTheMicroBatches) {
  const RunDescription run = RunOf(4, 3);
  EXPECT_EQ(NameRatio(4.0, run), "N");
  EXPECT_EQ(NameRatio(0.25, run), "1/N");
  EXPECT_EQ(NameRatio(3.0, run), "K");
  EXPECT_EQ(NameRatio(0.3333, run), "1/K");
  EXPECT_EQ(NameRatio(12.0, run), "NK");
  EXPECT_EQ(NameRatio(1.0 / 12, run), "1/(NK)");
  EXPECT_EQ(NameRatio(8.0, run), "2^K");
  EXPECT_EQ(NameRatio(2.0, run), "sqrt(N)");
}

TEST(NameRatio, AllowsOnePercentAndNoMore) {
  const RunDescription run = RunOf(4, 1);
  EXPECT_EQ(NameRatio(4.03, run), "N");
  EXPECT_EQ(NameRatio(4.05, run), "");
}

TEST(NameRatio, NeverNamesOneAndPrefersTheCommonNames) {
  EXPECT_EQ(NameRatio(1.0, RunOf(1, 1)), "");
  EXPECT_EQ(NameRatio(4.0, RunOf(4, 2)), "N");  // 2^K fits too
  EXPECT_EQ(NameRatio(2.0, RunOf(2, 2)), "N or K");
  EXPECT_EQ(NameRatio(2.0, RunOf(2, 1)), "N");
}

TEST(Describe, SaysEverythingThatDecidesWhatToLookAtNext) {
  CheckResult result;
  result.name = "numeric_equivalence";
  const Violation violation{.rule = "gradients equal the oracle's",
                            .rank = 2,
                            .step = 1,
                            .unit = "layers.3",
                            .tensor = "layers.3.weight",
                            .element = 17,
                            .event = 9,
                            .expected = "0.5",
                            .actual = "2",
                            .ratio = 4,
                            .tolerance_share = 12.5,
                            .likely_cause = "summed, not averaged"};
  EXPECT_EQ(
      Describe(result, violation),
      "numeric_equivalence: gradients equal the oracle's. At rank 2, step 1, unit layers.3, "
      "tensor layers.3.weight, element 17, event 9. Expected 0.5, found 2 (ratio 4). Share of "
      "the tolerance: 12.5. Likely cause: summed, not averaged.");
}

TEST(Describe, LeavesOutWhatDoesNotApply) {
  CheckResult result;
  result.name = "padding";
  const std::string text = Describe(result, Violation{.rule = "every element has one owner"});
  EXPECT_EQ(text, "padding: every element has one owner.");
}

TEST(Name, OfEveryVerdictIsItsWordInReports) {
  EXPECT_EQ(Name(Verdict::kPass), "pass");
  EXPECT_EQ(Name(Verdict::kFail), "fail");
  EXPECT_EQ(Name(Verdict::kRefused), "refused");
  EXPECT_EQ(Name(Verdict::kInferred), "inferred");
  EXPECT_EQ(Name(Verdict::kNotObserved), "not_observed");
}

}  // namespace
}  // namespace shardproof
