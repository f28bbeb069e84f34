#include "property_tests/faults/edit_campaign.h"

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(EditCampaignTest, PatternsMatch) {
  EXPECT_TRUE(MatchesPattern("zero2", "zero2"));
  EXPECT_FALSE(MatchesPattern("zero2", "zero2 every"));
  EXPECT_TRUE(MatchesPattern("zero2*", "zero2 every"));
  EXPECT_TRUE(MatchesPattern("*norm: duplicate*", "op 3 norm: duplicate, rank 1"));
  EXPECT_FALSE(MatchesPattern("*norm: duplicate", "op 3 norm: duplicate, rank 1"));
  EXPECT_TRUE(MatchesPattern("*", ""));
}

TEST(EditCampaignTest, ReviewedEntriesParse) {
  const absl::StatusOr<std::vector<ReviewedEdit>> entries =
      ParseReviewedEdits("# why\n\n  zero2 * | op * norm: drop, * | it is | harmless \n");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 1);
  EXPECT_EQ((*entries)[0].run, "zero2 *");
  EXPECT_EQ((*entries)[0].edit, "op * norm: drop, *");
  EXPECT_EQ((*entries)[0].reason, "it is | harmless");
}

TEST(EditCampaignTest, EntryWithoutAReasonIsRefused) {
  for (const char* text :
       {"ok | op 1: drop, all ranks | ok\nzero2 | op 1\n", "\nzero2 | op 1 | \n"}) {
    const absl::Status status = ParseReviewedEdits(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "line 2")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "run | edit | reason")) << status;
  }
}

TEST(EditCampaignTest, EntryForAnyChangeIsRefused) {
  for (const char* edit :
       {"op 1 norm*, rank 1", "op 1 norm: *, rank 1", "*", "op 1 norm: s*p, *"}) {
    const absl::Status status =
        ParseReviewedEdits(absl::StrCat("zero2 | ", edit, " | ok")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << edit;
    EXPECT_TRUE(absl::StrContains(status.message(), "more than one change")) << status;
  }
}

TEST(EditCampaignTest, RunsAreDistinctAndValid) {
  std::set<std::string> names;
  for (const EditRun& run : EditRuns()) {
    EXPECT_TRUE(names.insert(run.name).second) << run.name;
    EXPECT_FALSE(absl::StrContains(run.name, '/')) << run.name;
    const absl::StatusOr<RunDescription> parsed = ParseFaultRun(run.line);
    ASSERT_TRUE(parsed.ok()) << run.name << ": " << parsed.status();
    EXPECT_GT(parsed->data.steps, kEditedStep + 1) << run.name;
  }
}

TEST(EditCampaignTest, FindsAnEditByTheNameOfItsOutcome) {
  const EditRun run = EditRuns().front();
  const absl::StatusOr<std::vector<EditOutcome>> outcomes = JudgeEdits(run, {});
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  ASSERT_FALSE(outcomes->empty());
  const absl::StatusOr<NamedEdit> found = FindNamedEdit(outcomes->back().name);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(absl::StrCat(run.name, "/", found->edit.name), outcomes->back().name);
  EXPECT_TRUE(absl::StrContains(FindNamedEdit("nowhere/op 1").status().message(), "accepted: "));
  EXPECT_FALSE(FindNamedEdit(absl::StrCat(run.name, "/op 1 nothing")).ok());
}

TEST(EditCampaignTest, SurvivorsAreReviewedOrNamed) {
  const EditRun run = {"tiny", "model=probe:4;mode=replicated;world_size=1"};
  const absl::StatusOr<std::vector<EditOutcome>> bare = JudgeEdits(run, {});
  const absl::StatusOr<std::vector<EditOutcome>> reviewed = JudgeEdits(run, {{"tiny", "*", "all"}});
  ASSERT_TRUE(bare.ok() && reviewed.ok());
  ASSERT_EQ(bare->size(), reviewed->size());
  for (size_t i = 0; i < bare->size(); ++i) {
    const EditFate fate = (*bare)[i].fate;
    EXPECT_EQ((*reviewed)[i].fate, fate == EditFate::kSurvived ? EditFate::kReviewed : fate);
    EXPECT_EQ(fate == EditFate::kSurvived, !(*bare)[i].difference.empty()) << (*bare)[i].name;
    EXPECT_EQ(fate == EditFate::kKilled, !(*bare)[i].killers.empty()) << (*bare)[i].name;
  }
}

}  // namespace
}  // namespace shardproof
