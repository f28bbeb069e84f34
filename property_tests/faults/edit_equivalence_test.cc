#include "property_tests/faults/edit_equivalence.h"

#include <vector>

#include "gtest/gtest.h"
#include "property_tests/faults/kill.h"
#include "property_tests/faults/plan_draft.h"

namespace shardproof {
namespace {

// Plans made by hand, on one rank.
class HandMadePlan {
 public:
  explicit HandMadePlan(int32_t buffers) {
    draft_.frame.buffers.resize(buffers);
    for (int32_t buffer = 0; buffer < buffers; ++buffer) {
      draft_.frame.buffers[buffer].elements = 4;
      draft_.frame.buffers[buffer].set = buffer;
      draft_.frame.live_before.push_back(buffer);
    }
  }
  // Returns its id.
  int32_t Add(StreamId stream, std::vector<PlanAccess> accesses, std::vector<int32_t> waits = {},
              OpKind kind = OpKind::kScale) {
    DraftOp op;
    op.op.kind = kind;
    op.op.stream = stream;
    op.op.set = static_cast<int32_t>(draft_.ops.size());  // tells the operations apart
    op.accesses = std::move(accesses);
    op.waits = std::move(waits);
    return Insert(draft_, draft_.ops.size(), op);
  }
  PlanDraft& draft() { return draft_; }
  std::vector<StepPlan> Plans() const { return {Build(draft_)}; }

 private:
  PlanDraft draft_;
};

constexpr StreamId kCompute = StreamId::kCompute;
constexpr StreamId kComm = StreamId::kCommunication;
constexpr ElementRange kAll = {0, 4};

PlanAccess Read(int32_t buffer) { return {buffer, AccessKind::kRead, kAll}; }
PlanAccess Write(int32_t buffer) { return {buffer, AccessKind::kWrite, kAll}; }
PlanAccess Allocate(int32_t buffer) { return {buffer, AccessKind::kAllocate, kAll}; }
PlanAccess Free(int32_t buffer) { return {buffer, AccessKind::kFree, kAll}; }

TEST(EditEquivalenceTest, ThePlanItself) {
  HandMadePlan plan(2);
  plan.Add(kCompute, {Write(0)});
  plan.Add(kCompute, {Read(0), Write(1)});
  EXPECT_TRUE(EquivalentPlans(plan.Plans(), plan.Plans()).equivalent);
}

TEST(EditEquivalenceTest, IndependentOperationsMayChangePlaces) {
  HandMadePlan plan(2);
  plan.Add(kCompute, {Write(0)});
  plan.Add(kCompute, {Write(1)});
  HandMadePlan edited = plan;
  Move(edited.draft(), 1, 0);
  EXPECT_TRUE(EquivalentPlans(plan.Plans(), edited.Plans()).equivalent);
}

TEST(EditEquivalenceTest, ReadersMayChangePlaces) {
  HandMadePlan plan(1);
  plan.Add(kCompute, {Read(0)});
  plan.Add(kCompute, {Read(0)});
  HandMadePlan edited = plan;
  Move(edited.draft(), 1, 0);
  EXPECT_TRUE(EquivalentPlans(plan.Plans(), edited.Plans()).equivalent);
}

TEST(EditEquivalenceTest, ConflictingOperationsMayNot) {
  HandMadePlan plan(1);
  plan.Add(kCompute, {Write(0)});
  plan.Add(kCompute, {Read(0)});
  HandMadePlan edited = plan;
  Move(edited.draft(), 1, 0);
  const Equivalence result = EquivalentPlans(plan.Plans(), edited.Plans());
  EXPECT_FALSE(result.equivalent);
  EXPECT_NE(result.difference.find("conflict"), std::string::npos) << result.difference;
}

TEST(EditEquivalenceTest, RangesThatDoNotMeetDoNotConflict) {
  HandMadePlan plan(1);
  plan.Add(kCompute, {{0, AccessKind::kWrite, {0, 2}}});
  plan.Add(kCompute, {{0, AccessKind::kWrite, {2, 2}}});
  HandMadePlan edited = plan;
  Move(edited.draft(), 1, 0);
  EXPECT_TRUE(EquivalentPlans(plan.Plans(), edited.Plans()).equivalent);
}

TEST(EditEquivalenceTest, WaitThatAnotherCoversIsRedundant) {
  HandMadePlan plan(1);
  const int32_t first = plan.Add(kCompute, {Write(0)});
  const int32_t second = plan.Add(kCompute, {Write(0)});
  plan.Add(kComm, {Read(0)}, {first, second});
  HandMadePlan edited = plan;
  edited.draft().ops[2].waits = {second};
  EXPECT_TRUE(EquivalentPlans(plan.Plans(), edited.Plans()).equivalent);
}

TEST(EditEquivalenceTest, WaitThatOrdersAConflictIsNot) {
  HandMadePlan plan(1);
  const int32_t first = plan.Add(kCompute, {Write(0)});
  plan.Add(kComm, {Read(0)}, {first});
  HandMadePlan edited = plan;
  edited.draft().ops[1].waits.clear();
  EXPECT_FALSE(EquivalentPlans(plan.Plans(), edited.Plans()).equivalent);
}

TEST(EditEquivalenceTest, AllocationKeepsWaitingForFrees) {
  HandMadePlan plan(2);
  plan.draft().frame.live_before = {0};
  const int32_t freed = plan.Add(kCompute, {Free(0)});
  plan.Add(kComm, {Allocate(1), Write(1)}, {freed});
  HandMadePlan edited = plan;
  edited.draft().ops[1].waits.clear();
  const Equivalence result = EquivalentPlans(plan.Plans(), edited.Plans());
  EXPECT_FALSE(result.equivalent);
  EXPECT_NE(result.difference.find("allocates without waiting"), std::string::npos)
      << result.difference;
}

TEST(EditEquivalenceTest, BytesAtACountedOperationMatter) {
  HandMadePlan plan(2);
  plan.Add(kCompute, {Free(0)});
  plan.Add(kCompute, {Write(1)}, {}, OpKind::kForward);
  HandMadePlan edited = plan;
  Move(edited.draft(), 1, 0);
  const Equivalence result = EquivalentPlans(plan.Plans(), edited.Plans());
  EXPECT_FALSE(result.equivalent);
  EXPECT_NE(result.difference.find("other bytes"), std::string::npos) << result.difference;
}

TEST(EditEquivalenceTest, OtherOperationsAreNotEquivalent) {
  HandMadePlan plan(2);
  plan.Add(kCompute, {Write(0)});
  plan.Add(kCompute, {Write(1)});
  HandMadePlan without = plan;
  Erase(without.draft(), 1);
  EXPECT_FALSE(EquivalentPlans(plan.Plans(), without.Plans()).equivalent);
  EXPECT_FALSE(EquivalentPlans(without.Plans(), plan.Plans()).equivalent);
  HandMadePlan scaled = plan;
  scaled.draft().ops[0].op.scale = 2;
  EXPECT_FALSE(EquivalentPlans(plan.Plans(), scaled.Plans()).equivalent);
}

std::vector<StepPlan> PlansOf(const char* line) {
  const absl::StatusOr<RunDescription> run = ParseFaultRun(line);
  EXPECT_TRUE(run.ok()) << run.status();
  const EngineParts parts = PlannedParts(*run);
  std::vector<StepPlan> plans;
  for (int32_t rank = 0; rank < run->sharding.world_size.value; ++rank) {
    plans.push_back(parts.plan(*run, parts.placement, Rank{rank}, 1));
  }
  return plans;
}

TEST(EditEquivalenceTest, CollectivesOfAGroupKeepTheirOrder) {
  const std::vector<StepPlan> plans = PlansOf("model=probe:4,4;mode=zero1_broadcast;world_size=2");
  std::vector<StepPlan> edited;
  for (const StepPlan& plan : plans) {
    PlanDraft draft = Draft(plan);
    const size_t last = draft.ops.size() - 1;
    EXPECT_EQ(draft.ops[last].op.collective, CollectiveKind::kBroadcast);
    Move(draft, last, last - 1);
    edited.push_back(Build(draft));
  }
  const Equivalence result = EquivalentPlans(plans, edited);
  EXPECT_FALSE(result.equivalent);
  EXPECT_NE(result.difference.find("order"), std::string::npos) << result.difference;
}

TEST(EditEquivalenceTest, RanksThatDisagreeAreNotEquivalent) {
  const std::vector<StepPlan> plans = PlansOf("model=probe:4;mode=zero1_allgather;world_size=2");
  std::vector<StepPlan> edited = plans;
  PlanDraft draft = Draft(plans[1]);
  Erase(draft, draft.ops.size() - 1);
  edited[1] = Build(draft);
  const Equivalence result = EquivalentPlans(plans, edited);
  EXPECT_FALSE(result.equivalent);
  EXPECT_EQ(result.difference.substr(0, 7), "rank 1:") << result.difference;
}

}  // namespace
}  // namespace shardproof
