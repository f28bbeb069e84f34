#include "property_tests/faults/kill.h"

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "property_tests/faults/catalogue.h"
#include "property_tests/faults/fault_tools.h"

namespace shardproof {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

KillReport ReportOn(absl::string_view line, const PartsEdit& edit) {
  const absl::StatusOr<RunDescription> run = ParseFaultRun(line);
  EXPECT_TRUE(run.ok()) << run.status();
  return RunEdited(*run, edit);
}

KillReport ReportOn(const char* row) {
  const absl::StatusOr<Fault> fault = FindFault(row);
  EXPECT_TRUE(fault.ok()) << fault.status();
  return ReportOn(fault->run, fault->apply);
}

TEST(KillTest, APlanThatCannotRunKillsNothing) {
  const KillReport report = ReportOn(
      "model=probe:6;mode=zero2;world_size=2", EditPlans([](const PlanContext&, PlanDraft& draft) {
        draft.ops[Find(draft, IsReduction)].op.recv.range.first += 1000;
      }));
  EXPECT_TRUE(absl::StrContains(report.error.message(), "outside the plan")) << report.error;
  EXPECT_FALSE(IsHangOrDisagreement(report.error));
  EXPECT_THAT(report.killers, IsEmpty());
}

TEST(KillTest, RanksThatDisagreeAreAKill) {
  const KillReport report = ReportOn("K1");
  EXPECT_TRUE(IsHangOrDisagreement(report.error)) << report.error;
  EXPECT_THAT(report.killers, Contains(kEngineError));
}

// Suites of today have neither versions of parameters nor poisoned memory: E4's weights are stale,
// F5 frees what is in use; G1 moves poison, G4 elements.
TEST(KillTest, ClassicChecksAreBlindToVersionsAndPoison) {
  const KillReport versions = ReportOn("E4");
  EXPECT_THAT(versions.killers, Contains("unshard_lifecycle"));
  EXPECT_THAT(versions.classic, Not(Contains("lifecycle")));
  EXPECT_THAT(ReportOn("F5").classic, Contains("lifecycle"));
  const KillReport poison = ReportOn("G1");
  EXPECT_THAT(poison.killers, Contains("padding"));
  EXPECT_THAT(poison.classic, Not(Contains("padding")));
  EXPECT_THAT(ReportOn("G4").classic, Contains("padding"));
}

}  // namespace
}  // namespace shardproof
