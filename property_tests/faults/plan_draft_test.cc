#include "property_tests/faults/plan_draft.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "property_tests/faults/kill.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

StepPlan PlanOf(const char* line) {
  const absl::StatusOr<RunDescription> run = ParseFaultRun(line);
  EXPECT_TRUE(run.ok()) << run.status();
  const EngineParts parts = PlannedParts(*run);
  return parts.plan(*run, parts.placement, Rank{1}, /*step=*/1);
}

constexpr char kRun[] =
    "model=probe:5,3,4;mode=full_shard;world_size=2;num_micro_batches=2;clip_grad_norm=1";

std::vector<std::vector<int32_t>> WaitsOf(const StepPlan& plan) {
  std::vector<std::vector<int32_t>> waits;
  for (const Op& op : plan.ops) {
    const absl::Span<const int32_t> of_op = plan.WaitsOf(op);
    waits.emplace_back(of_op.begin(), of_op.end());
  }
  return waits;
}

// A plan of two streams: write on compute, read on communication, write again on compute.
PlanDraft ThreeOps() {
  StepPlan plan;
  plan.buffers = {{.elements = 4}};
  plan.live_before = {0};
  plan.ops.resize(3);
  for (size_t op = 0; op < 3; ++op) {
    plan.ops[op].kind = OpKind::kScale;
    plan.ops[op].recv = {0, {0, 4}};
    plan.ops[op].first_access = static_cast<int32_t>(op);
    plan.ops[op].access_count = 1;
    plan.accesses.push_back({0, op == 1 ? AccessKind::kRead : AccessKind::kWrite, {0, 4}});
  }
  plan.ops[1].stream = StreamId::kCommunication;
  PlanDraft draft = Draft(plan);
  DeriveWaits(draft);
  return draft;
}

TEST(PlanDraftTest, BuildGivesBackThePlan) {
  const StepPlan plan = PlanOf(kRun);
  const StepPlan again = Build(Draft(plan));
  ASSERT_EQ(again.ops.size(), plan.ops.size());
  EXPECT_EQ(WaitsOf(again), WaitsOf(plan));
  EXPECT_EQ(again.updates.size(), plan.updates.size());
  EXPECT_EQ(again.parameter_uses.size(), plan.parameter_uses.size());
  EXPECT_EQ(again.gradient_uses.size(), plan.gradient_uses.size());
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    EXPECT_EQ(Describe(again.ops[op]), Describe(plan.ops[op]));
    EXPECT_EQ(again.AccessesOf(again.ops[op]).size(), plan.AccessesOf(plan.ops[op]).size());
  }
}

TEST(PlanDraftTest, DerivesTheWaitsOfThePlanner) {
  for (const char* line :
       {kRun, "model=probe:5,3,4;mode=zero2;world_size=2;bucket_cap_bytes=4;num_micro_batches=2",
        "model=probe:5,3,4;mode=zero1_broadcast;world_size=2",
        "model=mlp:3,4,2;mode=full_shard;prefetch=none;world_size=2",
        "model=probe:6,3,6;ties=t2:t0;mode=full_shard;prefetch=backward_post;world_size=2"}) {
    const StepPlan plan = PlanOf(line);
    PlanDraft draft = Draft(plan);
    DeriveWaits(draft);
    EXPECT_EQ(WaitsOf(Build(draft)), WaitsOf(plan)) << line;
  }
}

TEST(PlanDraftTest, DerivesWaitsAcrossStreamsOnly) {
  EXPECT_THAT(WaitsOf(Build(ThreeOps())), ElementsAre(IsEmpty(), ElementsAre(0), ElementsAre(1)));
}

TEST(PlanDraftTest, ErasedOperationPassesItsWaitsOn) {
  PlanDraft draft = ThreeOps();
  // What waited for the erased one waits for what its stream issued before: nothing.
  Erase(draft, 1);
  EXPECT_THAT(WaitsOf(Build(draft)), ElementsAre(IsEmpty(), IsEmpty()));

  draft = ThreeOps();
  DraftOp later = draft.ops[1];
  later.waits.clear();
  Insert(draft, 2, later);
  // The stream still waits for operation 0, before the copy.
  Erase(draft, 1);
  EXPECT_THAT(WaitsOf(Build(draft)), ElementsAre(IsEmpty(), ElementsAre(0), IsEmpty()));
}

TEST(PlanDraftTest, WaitForSomethingIssuedLaterIsNone) {
  PlanDraft draft = ThreeOps();
  Move(draft, 1, 0);
  EXPECT_THAT(WaitsOf(Build(draft)), ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(0)));
}

TEST(PlanDraftTest, MovesInBothDirections) {
  PlanDraft draft = ThreeOps();
  const auto ids = [&] {
    std::vector<int32_t> result;
    for (const DraftOp& op : draft.ops) result.push_back(op.id);
    return result;
  };
  Move(draft, 0, 3);
  EXPECT_THAT(ids(), ElementsAre(1, 2, 0));
  Move(draft, 2, 1);
  EXPECT_THAT(ids(), ElementsAre(1, 0, 2));
  EXPECT_EQ(Insert(draft, 1, draft.ops[0]), 3);
  EXPECT_THAT(ids(), ElementsAre(1, 3, 0, 2));
}

TEST(PlanDraftTest, ReplacesABufferEverywhere) {
  DraftOp op;
  op.op.send = {3, {0, 2}};
  op.op.recv = {4, {0, 2}};
  op.accesses = {{3, AccessKind::kRead, {0, 2}}, {4, AccessKind::kWrite, {0, 2}}};
  op.updates.resize(1);
  op.updates[0].gradient.buffer = 3;
  op.parameter_uses = {{0, 3, false}};
  ReplaceBuffer(op, 3, 7);
  EXPECT_EQ(op.op.send.buffer, 7);
  EXPECT_EQ(op.op.recv.buffer, 4);
  EXPECT_EQ(op.accesses[0].buffer, 7);
  EXPECT_EQ(op.accesses[1].buffer, 4);
  EXPECT_EQ(op.updates[0].gradient.buffer, 7);
  EXPECT_EQ(op.parameter_uses[0].buffer, 7);
}

TEST(PlanDraftTest, AccessesFollowOperands) {
  DraftOp op;
  op.op.kind = OpKind::kCollective;
  op.op.collective = CollectiveKind::kBroadcast;
  op.op.root = 0;
  op.op.send = op.op.recv = {2, {0, 4}};
  op.accesses = {{2, AccessKind::kAllocate, {0, 4}}};
  AccessOperands(op, Rank{0});
  ASSERT_EQ(op.accesses.size(), 2);
  EXPECT_EQ(op.accesses[0].kind, AccessKind::kAllocate);
  EXPECT_EQ(op.accesses[1].kind, AccessKind::kRead);
  AccessOperands(op, Rank{1});
  EXPECT_EQ(op.accesses[1].kind, AccessKind::kWrite);
  op.op.kind = OpKind::kAccumulate;
  AccessOperands(op, Rank{1});
  EXPECT_EQ(op.accesses.size(), 4);  // both operands are read, one is written
}

}  // namespace
}  // namespace shardproof
