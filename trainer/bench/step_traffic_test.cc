// Bytes and products by hand: what a bench calls unavoidable is only as good as these sums.
#include "trainer/bench/step_traffic.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/plan/planner.h"
#include "trainer/sharding/placement.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

// The study's workload: layers of kP weights, boundaries of kA activations.
constexpr int64_t kP = 2048 * 2048;
constexpr int64_t kA = 1024 * 2048;
constexpr int64_t kMiB = 1 << 20;

RunDescription Study(Mode mode, int32_t ranks) {
  RunDescription run = TestRun("mlp:8x2048", mode, ranks);
  run.data.micro_batch_size = 1024;
  return run;
}

struct Planned {
  explicit Planned(const RunDescription& run, int32_t rank = 0)
      : placement(MakePlacement(run)), plan(PlanStep(run, placement, Rank{rank}, /*step=*/1)) {}
  Placement placement;
  StepPlan plan;
};

StepTraffic TrafficIn(const RunDescription& run, int32_t rank = 0) {
  const Planned planned(run, rank);
  return TrafficOf(run, planned.placement, planned.plan);
}

std::vector<Gemm> GemmsOf(const RunDescription& run) {
  const Planned planned(run);
  return StepGemms(run, planned.placement, planned.plan);
}

int64_t Count(const std::vector<Gemm>& gemms, GemmKind kind) {
  return std::count_if(gemms.begin(), gemms.end(),
                       [kind](const Gemm& gemm) { return gemm.kind == kind; });
}

TEST(StepGemms, TheStudyHas23InEveryMode) {
  for (const RunDescription& run : InEveryMode(Study(Mode::kReplicated, 2))) {
    const std::vector<Gemm> gemms = GemmsOf(run);
    EXPECT_EQ(gemms.size(), 23u) << ModeRowName(run.sharding);
    EXPECT_EQ(Count(gemms, GemmKind::kForward), 8);
    EXPECT_EQ(Count(gemms, GemmKind::kInputGradient), 7);
    EXPECT_EQ(Count(gemms, GemmKind::kWeightGradient), 8);
    EXPECT_EQ(Flops(gemms), 23.0 * 2 * 1024 * 2048 * 2048);
  }
}

TEST(StepGemms, ShapesAreThoseOfRaggedLayers) {
  // in 33, out 65; in 65, out 17; 4 samples.
  const std::vector<Gemm> expected = {
      {GemmKind::kForward, 0, 4, 65, 33},        {GemmKind::kForward, 1, 4, 17, 65},
      {GemmKind::kWeightGradient, 1, 17, 65, 4}, {GemmKind::kInputGradient, 1, 4, 65, 17},
      {GemmKind::kWeightGradient, 0, 65, 33, 4},
  };
  EXPECT_EQ(GemmsOf(TestRun("mlp:33,65,17:bias", Mode::kZero2, 2)), expected);
}

TEST(StepGemms, EachMicroBatchHasItsOwn) {
  RunDescription run = Study(Mode::kFullShard, 2);
  run.data.num_micro_batches = 3;
  EXPECT_EQ(GemmsOf(run).size(), 69u);
}

TEST(StepGemms, FrozenLayersHaveNoWeightGradient) {
  RunDescription run = Study(Mode::kReplicated, 2);
  Freeze({0, 1, 5}, run.model);
  const std::vector<Gemm> gemms = GemmsOf(run);
  // Gradients flow down to layer 2, the lowest that is trained, through frozen layer 5.
  EXPECT_EQ(Count(gemms, GemmKind::kForward), 8);
  EXPECT_EQ(Count(gemms, GemmKind::kWeightGradient), 5);
  EXPECT_EQ(Count(gemms, GemmKind::kInputGradient), 5);
}

TEST(StepGemms, ProbesHaveNone) {
  EXPECT_TRUE(GemmsOf(TestRun("probe:10x3,7", Mode::kZero2, 2)).empty());
}

TEST(StepTraffic, FullShardOnTwoRanks) {
  const StepTraffic traffic = TrafficIn(Study(Mode::kFullShard, 2));
  EXPECT_EQ(traffic.input, 8 * kA);      // samples and targets
  EXPECT_EQ(traffic.relu, 7 * 20 * kA);  // between 8 layers
  EXPECT_EQ(traffic.loss, 12 * kA);
  EXPECT_EQ(traffic.bias, 0);
  EXPECT_EQ(traffic.scale, 8 * 8 * kP / 2);  // each unit's shard
  EXPECT_EQ(traffic.optimizer, 28 * 8 * kP / 2);
  EXPECT_EQ(traffic.accumulate, 0);
  EXPECT_EQ(traffic.norm, 0);
  EXPECT_EQ(traffic.local_copy, 0);
  EXPECT_EQ(traffic.bus, (16 + 8) * 8 * kMiB);  // half of 16 MiB, for gathers and scatters
  EXPECT_EQ(traffic.device(), 160 * kA + 144 * kP);
}

TEST(StepTraffic, ReplicatedOnTwoRanks) {
  const StepTraffic traffic = TrafficIn(Study(Mode::kReplicated, 2));
  EXPECT_EQ(traffic.scale, 8 * 8 * kP);
  EXPECT_EQ(traffic.optimizer, 28 * 8 * kP);
  EXPECT_EQ(traffic.bus, 2 * 64 * kMiB);  // two buckets; 2 (N - 1) / N is 1
}

TEST(StepTraffic, Zero1UpdatesWhatTheRankOwns) {
  const StepTraffic gathers = TrafficIn(Study(Mode::kZero1AllGather, 4));
  EXPECT_EQ(gathers.optimizer, 28 * 8 * kP / 4);
  EXPECT_EQ(gathers.scale, 8 * 8 * kP);  // gradients are whole
  EXPECT_EQ(gathers.bus, 2 * (96 + 48) * kMiB);
  const StepTraffic broadcasts = TrafficIn(Study(Mode::kZero1Broadcast, 4), /*rank=*/3);
  EXPECT_EQ(broadcasts.optimizer, 28 * 2 * kP);
  EXPECT_EQ(broadcasts.bus, 2 * 96 * kMiB + 8 * 16 * kMiB);
}

TEST(StepTraffic, OneRankCopiesInsteadOfSending) {
  const StepTraffic traffic = TrafficIn(Study(Mode::kFullShard, 1));
  EXPECT_EQ(traffic.bus, 0);
  EXPECT_EQ(traffic.local_copy, 8 * (16 + 8) * kP);
  // All-reduces in place move nothing.
  EXPECT_EQ(TrafficIn(Study(Mode::kReplicated, 1)).local_copy, 0);
}

TEST(StepTraffic, MicroBatchesThatSynchronizeLastAddToTheirGradients) {
  RunDescription run = Study(Mode::kFullShard, 2);
  run.data.num_micro_batches = 3;
  run.sharding.grad_sync = GradSync::kLast;
  const StepTraffic last = TrafficIn(run);
  EXPECT_EQ(last.accumulate, 2 * 12 * 8 * kP);  // full gradients, on this rank
  EXPECT_EQ(last.relu, 3 * 7 * 20 * kA);
  EXPECT_EQ(last.scale, 8 * 8 * kP / 2);  // once
  run.sharding.grad_sync = GradSync::kEvery;
  EXPECT_EQ(TrafficIn(run).accumulate, 2 * 12 * 8 * kP / 2);  // reduced shards
}

TEST(StepTraffic, BiasesOfRaggedLayers) {
  const StepTraffic traffic = TrafficIn(TestRun("mlp:33,65,17:bias", Mode::kReplicated, 2));
  EXPECT_EQ(traffic.bias, (8 + 4) * 4 * (65 + 17));
  EXPECT_EQ(traffic.relu, 20 * 4 * 65);
  EXPECT_EQ(traffic.loss, 12 * 4 * 17);
  EXPECT_EQ(traffic.input, 4 * 4 * (33 + 17));
}

TEST(StepTraffic, ClippingReadsAndScalesGradients) {
  RunDescription run = Study(Mode::kReplicated, 2);
  const StepTraffic before = TrafficIn(run);
  run.clip_grad_norm = 1.0;
  const StepTraffic clipped = TrafficIn(run);
  EXPECT_EQ(clipped.norm, 4 * 8 * kP);
  EXPECT_EQ(clipped.scale - before.scale, 8 * 8 * kP);
}

TEST(StepTraffic, OptimizersDifferInTheirState) {
  RunDescription run = Study(Mode::kReplicated, 2);
  run.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(TrafficIn(run).optimizer, 20 * 8 * kP);
  run.optimizer.momentum = 0;
  EXPECT_EQ(TrafficIn(run).optimizer, 12 * 8 * kP);
}

TEST(StepTraffic, ATiedWeightAddsItsSecondGradient) {
  RunDescription run = TestRun("mlp:3x16", Mode::kReplicated, 2);
  ASSERT_TRUE(TieTensors(run.model.tensors[1].name, run.model.tensors[0].name, run.model).ok());
  EXPECT_EQ(TrafficIn(run).accumulate, 12 * 16 * 16);
}

TEST(StepTraffic, ProbesMoveNoActivations) {
  const StepTraffic traffic = TrafficIn(TestRun("probe:10x3,7", Mode::kReplicated, 2));
  EXPECT_EQ(traffic.input + traffic.relu + traffic.loss + traffic.bias, 0);
  EXPECT_EQ(traffic.optimizer, 28 * 37);
}

TEST(TypicalCollective, IsTheOneWithMostBusBytes) {
  const auto typical = [](const RunDescription& run) { return TypicalOf(Planned(run).plan); };
  const TypicalCollective gather = {CollectiveKind::kAllGather, Dtype::kFloat32, kP, {0, 1, 2}};
  EXPECT_EQ(typical(Study(Mode::kFullShard, 2)), gather);  // 16 gathers, 8 scatters
  const TypicalCollective reduce = {CollectiveKind::kAllReduce, Dtype::kFloat32, 4 * kP, {0, 1, 2}};
  EXPECT_EQ(typical(Study(Mode::kReplicated, 2)), reduce);
  EXPECT_EQ(typical(Study(Mode::kFullShard, 1)), std::nullopt);
}

TEST(CollectiveKernels, TheStudyHasThoseOfItsMode) {
  std::vector<int64_t> kernels;
  for (const RunDescription& run : InEveryMode(Study(Mode::kReplicated, 4))) {
    kernels.push_back(CollectiveKernels(Planned(run).plan));
  }
  // 2 buckets, 8 tensors in units of their own: all-reduces; and broadcasts; and all-gathers;
  // reduce-scatters and all-gathers; 8 + 8; 16 + 8, whatever the prefetch.
  EXPECT_EQ(kernels, (std::vector<int64_t>{2, 2 + 8, 2 + 2, 2 + 2, 8 + 8, 24, 24, 24}));
}

TEST(CollectiveKernels, OneRankHasNone) {
  EXPECT_EQ(CollectiveKernels(Planned(Study(Mode::kFullShard, 1)).plan), 0);
}

TEST(Unavoidable, BytesAtTheirBandwidths) {
  StepTraffic traffic;
  traffic.optimizer = 3'000'000'000;
  traffic.relu = 1'000'000'000;
  traffic.bus = 500'000'000;
  // 4 GB at 2000 GB/s and half a GB at 250 GB/s.
  EXPECT_NEAR(UnavoidableMs(traffic, 2000, 250), 2.0 + 2.0, 1e-12);
  traffic.bus = 0;
  EXPECT_NEAR(UnavoidableMs(traffic, 2000, /*bus_gb_per_s=*/0), 2.0, 1e-12);
}

}  // namespace
}  // namespace shardproof
