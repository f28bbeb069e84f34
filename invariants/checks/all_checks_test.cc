// The list of checks that tables, flags and reports rely on.
#include "invariants/checks/all_checks.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(AllChecks, AreTheNineInTheOrderOfTables) {
  const std::vector<std::string> names = {
      "aggregate_factors", "numeric_equivalence", "collective_ledger", "padding",
      "unshard_lifecycle", "peak_memory",         "issue_order",       "ordering",
      "liveness"};
  EXPECT_EQ(AllCheckNames(), names);
  const std::vector<std::unique_ptr<Check>> checks = AllChecks();
  ASSERT_EQ(checks.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(std::string(checks[i]->name()), names[i]);
}

TEST(AllChecks, WithoutAnyStepNoCheckPasses) {
  RunDescription run;
  run.model.tensors = {{"weight", {4}, 1, true, {}}};
  run.model.stages = {{"layer", {0}}};
  run.model.units = {{"layer", {0}, true}};
  for (const std::unique_ptr<Check>& check : AllChecks()) {
    check->Begin(run);
    const CheckResult result = check->Finish();
    EXPECT_EQ(result.verdict, Verdict::kNotObserved) << check->name();
    EXPECT_EQ(result.name, std::string(check->name()));
    EXPECT_NE(result.reason, "") << check->name();
  }
}

TEST(MakeCheck, FindsOneByItsName) {
  for (const std::string& name : AllCheckNames()) {
    const absl::StatusOr<std::unique_ptr<Check>> check = MakeCheck(name);
    ASSERT_TRUE(check.ok()) << check.status();
    EXPECT_EQ(std::string((*check)->name()), name);
  }
}

TEST(MakeCheck, FindsProvenanceThoughItIsNoneOfTheNine) {
  const absl::StatusOr<std::unique_ptr<Check>> check = MakeCheck("provenance");
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_EQ(std::string((*check)->name()), "provenance");
}

TEST(MakeCheck, NamesTheUnknownOneAndListsTheNine) {
  const absl::StatusOr<std::unique_ptr<Check>> check = MakeCheck("peak_memry");
  ASSERT_FALSE(check.ok());
  const std::string message(check.status().message());
  EXPECT_NE(message.find("'peak_memry'"), std::string::npos) << message;
  for (const std::string& name : AllCheckNames()) {
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace shardproof
