// What can be said of CudaStages without a GPU: the workspace that it will need.
#include "trainer/engines/cuda/cuda_stages.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "trainer/plan/planner.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

WorkspaceNeeds NeedsOf(const RunDescription& run) {
  const Placement placement = MakePlacement(run);
  return FindWorkspaceNeeds(run, placement, PlanStep(run, placement, Rank{0}, 1));
}

TEST(WorkspaceNeeds, TensorsInOnePieceNeedNone) {
  EXPECT_TRUE(NeedsOf(TestRun("mlp:8x64", Mode::kReplicated, 4)).empty());
  EXPECT_TRUE(NeedsOf(TestRun("mlp:8x64", Mode::kFullShard, 4)).empty());
}

// A second micro-batch's gradient is added to the first one's.
TEST(WorkspaceNeeds, AccumulatedGradientsNeedTheirTensor) {
  RunDescription run = TestRun("mlp:64,64,32", Mode::kReplicated, 4);
  run.data.num_micro_batches = 2;
  run.sharding.grad_sync = GradSync::kLast;
  const WorkspaceNeeds needs = NeedsOf(run);
  ASSERT_EQ(needs.size(), 1u);
  EXPECT_EQ(needs.begin()->first.first, StageWorkspace::Use::kGradient);
  EXPECT_EQ(needs.begin()->second, 64 * 64);
}

// Weights of 3 x 5 begin at elements 0 and 15: the second is not at a multiple of 16 bytes.
TEST(WorkspaceNeeds, TensorsThatLieAskewNeedTheirs) {
  const WorkspaceNeeds needs = NeedsOf(TestRun("mlp:5,3,5", Mode::kReplicated, 2));
  const auto parameter = needs.find({StageWorkspace::Use::kParameter, 0});
  ASSERT_NE(parameter, needs.end());
  EXPECT_EQ(parameter->second, 15);
}

// Two plans of one rank: each place as large as either needs, at multiples of 256 bytes.
TEST(WorkspaceNeeds, OnePieceServesBothPlans) {
  const std::pair<StageWorkspace::Use, int32_t> first = {StageWorkspace::Use::kParameter, 0};
  const std::pair<StageWorkspace::Use, int32_t> second = {StageWorkspace::Use::kGradient, 4};
  const WorkspaceNeeds larger = Larger({{first, 15}, {second, 1}}, {{first, 65}});
  EXPECT_EQ(larger, (WorkspaceNeeds{{first, 65}, {second, 1}}));
  EXPECT_EQ(WorkspaceBytes(larger), 512 + 256);
  EXPECT_EQ(WorkspaceBytes({}), 0);
}

}  // namespace
}  // namespace shardproof
