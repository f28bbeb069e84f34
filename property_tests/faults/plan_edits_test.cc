#include "property_tests/faults/plan_edits.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "property_tests/faults/kill.h"

namespace shardproof {
namespace {

RunDescription RunOf(const char* line) {
  const absl::StatusOr<RunDescription> run = ParseFaultRun(line);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? *run : RunDescription{};
}

constexpr char kZero2[] =
    "model=probe:7,11,10;mode=zero2;world_size=4;bucket_cap_bytes=4;num_micro_batches=2;"
    "clip_grad_norm=0.5";

StepPlan EditedPlan(const RunDescription& run, const PlanEdit& edit, int32_t rank, int64_t step) {
  const EngineParts parts = ApplyEdit(edit, 1)(run, PlannedParts(run));
  return parts.plan(run, parts.placement, Rank{rank}, step);
}

PlanEdit FindOrFail(const RunDescription& run, const std::string& part) {
  for (const PlanEdit& edit : EditsOfStep(run, 1)) {
    if (absl::StrContains(edit.name, part)) return edit;
  }
  ADD_FAILURE() << "no edit named " << part;
  return {};
}

TEST(PlanEditsTest, EveryOperationIsEditedInEveryWayThatFits) {
  const RunDescription run = RunOf(kZero2);
  const EngineParts parts = PlannedParts(run);
  const StepPlan plan = parts.plan(run, parts.placement, Rank{3}, 1);
  std::set<int32_t> ops;
  std::map<EditKind, int> kinds;
  std::set<std::string> names;
  for (const PlanEdit& edit : EditsOfStep(run, 1)) {
    ops.insert(edit.op);
    ++kinds[edit.kind];
    EXPECT_TRUE(names.insert(edit.name).second) << edit.name;
  }
  EXPECT_EQ(ops.size(), plan.ops.size());
  EXPECT_EQ(kinds.size(), static_cast<size_t>(kEditKinds));
  // Dropped and issued twice, on one rank and on all.
  EXPECT_EQ(kinds[EditKind::kDrop], 2 * static_cast<int>(plan.ops.size()));
  EXPECT_EQ(kinds[EditKind::kDuplicate], kinds[EditKind::kDrop]);
  EXPECT_EQ(kinds[EditKind::kWait], 2 * static_cast<int>(plan.waits.size()));
}

TEST(PlanEditsTest, AnEditIsFoundByItsNameAndRepeats) {
  const RunDescription run = RunOf(kZero2);
  const std::vector<PlanEdit> edits = EditsOfStep(run, 1);
  for (size_t i = 0; i < edits.size(); i += 29) {
    const PlanEdit& edit = edits[i];
    const absl::StatusOr<PlanEdit> found = FindEdit(run, 1, edit.name);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->op, edit.op);
    EXPECT_EQ(found->rank, edit.rank);
    EXPECT_EQ(found->text, edit.text);
  }
  const absl::StatusOr<PlanEdit> unknown = FindEdit(run, 1, "op 1 nothing");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(unknown.status().message(), "op 1 nothing"));
}

TEST(PlanEditsTest, OnlyTheStepAndRankAreEdited) {
  const RunDescription run = RunOf(kZero2);
  const EngineParts parts = PlannedParts(run);
  const size_t ops = parts.plan(run, parts.placement, Rank{0}, 1).ops.size();
  const PlanEdit on_all = FindOrFail(run, "drop, all ranks");
  const PlanEdit on_last = FindOrFail(run, "drop, rank 3");
  EXPECT_EQ(EditedPlan(run, on_all, 0, 1).ops.size(), ops - 1);
  EXPECT_EQ(EditedPlan(run, on_all, 3, 1).ops.size(), ops - 1);
  EXPECT_EQ(EditedPlan(run, on_all, 3, 2).ops.size(), ops);
  EXPECT_EQ(EditedPlan(run, on_last, 0, 1).ops.size(), ops);
  EXPECT_EQ(EditedPlan(run, on_last, 3, 1).ops.size(), ops - 1);
  EXPECT_TRUE(ApplyEdit(on_all, 1)(run, PlannedParts(run)).plan_varies_by_step);
}

TEST(PlanEditsTest, GroupsKindsAndScalesSayWhatTheyDo) {
  const RunDescription run = RunOf(kZero2);
  const PlanEdit half = FindOrFail(run, "in a group of half the ranks, all ranks");
  const Op& halved = EditedPlan(run, half, 3, 1).ops[half.op];
  EXPECT_EQ(halved.group, (Group{2, 1, 2}));
  EXPECT_EQ(halved.elements, halved.send.range.count);
  const PlanEdit kind = FindOrFail(run, "as all_reduce, all ranks");
  EXPECT_EQ(EditedPlan(run, kind, 0, 1).ops[kind.op].collective, CollectiveKind::kAllReduce);
  const PlanEdit scale = FindOrFail(run, "scale 1, all ranks");
  EXPECT_EQ(EditedPlan(run, scale, 0, 1).ops[scale.op].scale, 1.0f);
  const PlanEdit squared = FindOrFail(run, "scale squared, all ranks");
  EXPECT_EQ(EditedPlan(run, squared, 0, 1).ops[squared.op].scale, 1.0f / 64);
}

TEST(PlanEditsTest, AccessesFollowTheOperand) {
  const RunDescription run = RunOf(kZero2);
  const PlanEdit other = FindOrFail(run, "send in another buffer, all ranks");
  const StepPlan plan = EditedPlan(run, other, 0, 1);
  const Op& op = plan.ops[other.op];
  const absl::Span<const PlanAccess> accesses = plan.AccessesOf(op);
  EXPECT_TRUE(std::any_of(accesses.begin(), accesses.end(), [&](const PlanAccess& access) {
    return access.buffer == op.send.buffer && access.kind == AccessKind::kRead;
  }));
}

// A tied tensor's second use reads its gradient already, so an edit that makes it add reads once
// too.
TEST(PlanEditsTest, AddingUsesReadTheirGradientOnce) {
  const RunDescription run = RunOf("model=probe:6,7,6;ties=t2:t0;mode=full_shard;world_size=2");
  int adding = 0;
  for (const PlanEdit& edit : EditsOfStep(run, 1)) {
    if (edit.text != "gradients 0 added") continue;
    ++adding;
    const StepPlan plan = EditedPlan(run, edit, 1, 1);
    const Op& op = plan.ops[edit.op];
    const int32_t gradient = plan.GradientUsesOf(op)[0].buffer;
    const absl::Span<const PlanAccess> accesses = plan.AccessesOf(op);
    EXPECT_EQ(std::count_if(accesses.begin(), accesses.end(),
                            [&](const PlanAccess& access) {
                              return access.buffer == gradient && access.kind == AccessKind::kRead;
                            }),
              1)
        << edit.name;
  }
  EXPECT_GT(adding, 0);
}

// What an edit makes is a plan that runs, well or to an error about ranks that wait or disagree.
TEST(PlanEditsTest, NoEditLeavesItsBuffers) {
  for (const char* line :
       {kZero2, "model=probe:5,3;mode=zero1_broadcast;world_size=2",
        "model=mlp:3,4,2:bias;mode=full_shard;world_size=2;micro_batch_size=2",
        "model=probe:6,7,6;ties=t2:t0;mode=shard_grad_op;layout=rows;world_size=1"}) {
    RunDescription run = RunOf(line);
    run.data.steps = 2;
    const std::vector<PlanEdit> edits = EditsOfStep(run, 1);
    // The kill matrix runs all edits of its runs; here a third of others.
    for (size_t i = 0; i < edits.size(); i += 3) {
      const PlanEdit& edit = edits[i];
      const KillReport report = RunEdited(run, ApplyEdit(edit, 1));
      EXPECT_EQ(report.refusal, "") << line << " " << edit.name;
      EXPECT_TRUE(report.error.ok() || absl::IsDeadlineExceeded(report.error) ||
                  absl::IsFailedPrecondition(report.error))
          << line << " " << edit.name << ": " << report.error;
    }
  }
}

}  // namespace
}  // namespace shardproof
