#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "property_tests/faults/catalogue.h"
#include "property_tests/faults/kill_matrix.h"

namespace shardproof {
namespace {

using ::absl::StrContains;

// A fault of the catalogue that `needed` must find, and that `found` found.
FaultOutcome OutcomeOf(const char* name, std::vector<std::string> needed,
                       std::vector<std::string> found) {
  absl::StatusOr<Fault> fault = FindFault(name);
  EXPECT_TRUE(fault.ok()) << fault.status();
  FaultOutcome outcome = {*std::move(fault), {}};
  outcome.fault.killers = std::move(needed);
  outcome.report.killers = std::move(found);
  return outcome;
}

const std::vector<std::string> kNumeric = {"numeric_equivalence"};
const std::vector<std::string> kBoth = {"numeric_equivalence", "collective_ledger"};

TEST(KillMatrixTextTest, OneLineAFaultOneColumnACheck) {
  const std::string text = MatrixText(
      {OutcomeOf("A2", kNumeric, kNumeric), OutcomeOf("F7", {"peak_memory"}, {"peak_memory"})});
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3) << text;
  EXPECT_TRUE(StrContains(lines[0], "numeric_equivalence"));
  EXPECT_TRUE(StrContains(lines[1], "reduce_scatter_sums_instead_of_mean"));
  EXPECT_EQ(lines[1].find(" x "), lines[0].find("numeric_equivalence") - 1);
  EXPECT_EQ(lines[2].find(" x "), lines[0].find("peak_memory") - 1);
}

TEST(KillMatrixTextTest, AFaultMustBeFoundByAllItsKillers) {
  EXPECT_EQ(Complaint(OutcomeOf("A4", kBoth, kBoth)), "");
  const std::string missed = Complaint(OutcomeOf("A4", kBoth, kNumeric));
  EXPECT_TRUE(StrContains(missed, "not found by collective_ledger")) << missed;
  EXPECT_TRUE(StrContains(missed, "--fault=alternate_driver_skips_grad_reduction")) << missed;
  EXPECT_TRUE(StrContains(Complaint(OutcomeOf("A2", kNumeric, {})), "found by nothing"));
}

TEST(KillMatrixTextTest, WhatIsNoFaultMustPass) {
  EXPECT_EQ(Complaint(OutcomeOf("H11", {}, {})), "");
  EXPECT_TRUE(StrContains(Complaint(OutcomeOf("H11", {}, {"padding"})), "is no fault"));
  FaultOutcome unjudged = OutcomeOf("C17", {}, {});
  unjudged.report.unjudged = {"padding"};
  EXPECT_TRUE(StrContains(Complaint(unjudged), "not judged by padding")) << Complaint(unjudged);
}

// An edit that only breaks the plan shows no check at work.
TEST(KillMatrixTextTest, AFaultThatIsNoPlanIsNotKilled) {
  FaultOutcome outcome = OutcomeOf("K1", {kEngineError}, {kEngineError});
  outcome.report.error = absl::DeadlineExceededError("ranks wait");
  EXPECT_EQ(Complaint(outcome), "");
  outcome.report.error = absl::InvalidArgumentError("outside the plan");
  EXPECT_TRUE(StrContains(Complaint(outcome), "cannot be run: outside the plan"))
      << Complaint(outcome);
}

TEST(KillMatrixTextTest, StandInsAndWhatIsNoFaultAreNotCounted) {
  std::vector<FaultOutcome> outcomes = {
      OutcomeOf("A4", kNumeric, kNumeric), OutcomeOf("A11", kNumeric, kNumeric),
      OutcomeOf("N5", kNumeric, kNumeric), OutcomeOf("C17", {}, {})};
  outcomes[2].report.classic = {"counts"};
  const std::string text = SummaryText(outcomes);
  EXPECT_TRUE(StrContains(text, "is not counted: N5\n")) << text;
  EXPECT_TRUE(StrContains(text, "model a symptom: 1\n")) << text;
  EXPECT_TRUE(StrContains(text, "every check must pass: C17 zero_norm_is_fatal\n146 rows, 2 ex"))
      << text;
  EXPECT_TRUE(StrContains(ClassicText(outcomes), "find 0 of 2")) << ClassicText(outcomes);
  EXPECT_TRUE(StrContains(UniqueKillsText(outcomes), "numeric_equivalence      2      2"));
  EXPECT_TRUE(StrContains(MatrixText(outcomes), "models the symptom\n"));
}

TEST(KillMatrixTextTest, AllRowsAddUp) {
  std::vector<FaultOutcome> outcomes;
  size_t counted = WaitingRows().size();
  for (const Fault& fault : AllFaults()) {
    outcomes.push_back({fault, {}});
    if (WaitsFor(fault.row).empty()) ++counted;
  }
  EXPECT_EQ(counted, 146);
  EXPECT_TRUE(StrContains(SummaryText(outcomes), "146 rows, 74 expressible, 0 killed, 70 waiting"))
      << SummaryText(outcomes);
}

TEST(KillMatrixTextTest, CountsUniqueKillsAndScores) {
  std::vector<FaultOutcome> outcomes = {OutcomeOf("A2", kNumeric, kNumeric),
                                        OutcomeOf("A4", kBoth, kBoth),
                                        OutcomeOf("F7", {"peak_memory"}, {})};
  outcomes[1].report.classic = {"params_1e-4", "counts"};
  EXPECT_TRUE(StrContains(UniqueKillsText(outcomes), "numeric_equivalence      2      1"))
      << UniqueKillsText(outcomes);
  EXPECT_TRUE(StrContains(ClassicText(outcomes), "together find 1 of 3 faults"))
      << ClassicText(outcomes);
  EXPECT_TRUE(StrContains(SummaryText(outcomes), "146 rows, 3 expressible, 2 killed, "))
      << SummaryText(outcomes);
}

TEST(KillMatrixTextTest, SumsEditsByKind) {
  std::vector<EditOutcome> outcomes(3);
  outcomes[0] = {.name = "a/op 1: drop", .kind = EditKind::kDrop, .fate = EditFate::kKilled};
  outcomes[1] = {.name = "a/op 1: swap", .kind = EditKind::kSwap, .fate = EditFate::kEquivalent};
  outcomes[2] = {.name = "a/op 2: swap",
                 .kind = EditKind::kSwap,
                 .fate = EditFate::kSurvived,
                 .difference = "other bytes"};
  const std::string text = EditsText(outcomes);
  EXPECT_TRUE(StrContains(text, "swap         2       0           1         0         1")) << text;
  EXPECT_TRUE(StrContains(text, "all kinds    3       1           1         0         1")) << text;
  EXPECT_EQ(Complaint(outcomes[0]), "");
  EXPECT_TRUE(StrContains(Complaint(outcomes[2]), "--edit='a/op 2: swap'"));
  outcomes[0].error = absl::InvalidArgumentError("outside");
  EXPECT_TRUE(StrContains(Complaint(outcomes[0]), "cannot be run: outside"));
}

}  // namespace
}  // namespace shardproof
