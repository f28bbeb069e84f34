// The benchmark on one real GPU: its figures are checked against what no GPU can be, and against
// each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/bench/bench.h"
#include "trainer/bench/cuda_bandwidth.h"
#include "trainer/bench/cuda_bench.h"
#include "trainer/bench/cuda_floor.h"
#include "trainer/bench/statistics.h"
#include "trainer/bench/step_traffic.h"
#include "trainer/plan/planner.h"
#include "trainer/sharding/placement.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

RunDescription Study() {
  RunDescription run = TestRun("mlp:8x2048", Mode::kReplicated, 1);
  run.data.micro_batch_size = 1024;
  return run;
}

std::vector<Gemm> GemmsOf(const RunDescription& run) {
  const Placement placement = MakePlacement(run);
  return StepGemms(run, placement, PlanStep(run, placement, Rank{0}, /*step=*/1));
}

// The median of ten replays, in milliseconds; -1 after a failure.
double FloorMs(const CudaFloorOptions& options) {
  const RunDescription run = Study();
  absl::StatusOr<std::unique_ptr<CudaFloor>> floor = MakeCudaFloor(run, GemmsOf(run), options);
  EXPECT_TRUE(floor.ok()) << floor.status();
  std::vector<double> ms;
  for (int replay = 0; floor.ok() && replay < 10; ++replay) {
    EXPECT_TRUE((*floor)->Launch().ok());
    const absl::StatusOr<double> replayed = (*floor)->Finish();
    EXPECT_TRUE(replayed.ok()) << replayed.status();
    ms.push_back(replayed.value_or(-1));
  }
  return ms.empty() ? -1 : Median(ms);
}

TEST(CudaFloor, ComputesAllProducts) {
  const double ms = FloorMs({});
  // 198 GFLOP. No GPU reaches 500 TFLOP/s in FP32, and the slowest that this is built for has
  // more than 5.
  const double tflop_per_s = Flops(GemmsOf(Study())) / ms / 1e9;
  EXPECT_LT(tflop_per_s, 500);
  EXPECT_GT(tflop_per_s, 5);
  // Twice the products take twice as long.
  EXPECT_NEAR(FloorMs({.repeats = 2}) / ms, 2.0, 0.3);
}

TEST(CudaFloor, Tf32IsFaster) { EXPECT_GT(FloorMs({}) / FloorMs({.tf32 = true}), 1.5); }

TEST(CudaFloor, NothingIsNoFloor) {
  EXPECT_EQ(MakeCudaFloor(Study(), {}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(MakeCudaFloor(Study(), GemmsOf(Study()), {.repeats = 0}).ok());
}

TEST(CudaFloor, TooMuchMemoryIsNamed) {
  RunDescription run = TestRun("mlp:1x1000000", Mode::kReplicated, 1);  // 4 TB of weights
  const absl::Status status = MakeCudaFloor(run, GemmsOf(run), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes free"));
}

TEST(CudaBandwidth, CopiesAreNeitherIdleNorImpossible) {
  const absl::StatusOr<std::vector<double>> gb_per_s = CopyBandwidthOf(0, int64_t{256} << 20, 10);
  ASSERT_TRUE(gb_per_s.ok()) << gb_per_s.status();
  EXPECT_EQ(gb_per_s->size(), 10u);
  EXPECT_GT(Median(*gb_per_s), 200);
  EXPECT_LT(Median(*gb_per_s), 20000);
}

BenchOptions Short() {
  BenchOptions options;
  options.engine = "cuda_shared";
  options.warmup_steps = 2;
  options.bench_steps = 5;
  options.witness_steps = 2;
  return options;
}

absl::StatusOr<std::optional<BenchReport>> BenchOn(int32_t ranks,
                                                   std::vector<RunDescription> runs) {
  absl::StatusOr<std::unique_ptr<BenchMachine>> machine =
      MakeCudaBenchMachine({.world_size = WorldSize{ranks}, .shared_gpu = true});
  if (!machine.ok()) return machine.status();
  for (RunDescription& run : runs) run.data.steps = StepsOfBench(Short());
  return RunBench(runs, **machine, /*job=*/nullptr, Short());
}

TEST(CudaBench, EveryModeOnTwoRanksOfOneGpu) {
  RunDescription run = TestRun("mlp:4x512", Mode::kReplicated, 2);
  run.data.micro_batch_size = 256;
  const auto report = BenchOn(2, InEveryMode(run));
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_TRUE(report->has_value());
  ASSERT_EQ((*report)->modes.size(), 8u);
  EXPECT_FALSE((*report)->machine.device.empty());
  for (const ModeReport& mode : (*report)->modes) {
    SCOPED_TRACE(ModeRowName(mode.run.sharding));
    EXPECT_EQ(mode.step_ms.samples, 5);
    EXPECT_EQ(mode.floor_gemms, 11);
    ASSERT_TRUE(mode.ratio_to_floor.has_value());
    // A step computes the same products and more; clocks may differ a little.
    EXPECT_GT(mode.ratio_to_floor->median, 0.9);
    EXPECT_GT(mode.unavoidable.ms, 0);
    ASSERT_TRUE(mode.unavoidable.bus_gb_per_s.has_value());
    EXPECT_GT(mode.unavoidable.bus_gb_per_s->median, 0);
    EXPECT_FALSE(mode.exposed_ms.has_value());
    EXPECT_THAT(mode.exposed_missing, HasSubstr("not NCCL's"));
    ASSERT_EQ(mode.memory.size(), 2u);
    for (const BenchMemory& memory : mode.memory) {
      EXPECT_GT(memory.arena_steady, 0);
      EXPECT_GE(memory.arena_total, memory.plan_peak);
      EXPECT_GE(memory.plan_peak, memory.arena_steady);
    }
  }
}

TEST(CudaBench, OneRankExposesNothing) {
  RunDescription run = TestRun("mlp:2x256", Mode::kFullShard, 1);
  const auto report = BenchOn(1, {run});
  ASSERT_TRUE(report.ok()) << report.status();
  const ModeReport& mode = (*report)->modes[0];
  ASSERT_TRUE(mode.exposed_ms.has_value());
  EXPECT_EQ(mode.exposed_ms->median, 0);
  EXPECT_FALSE(mode.unavoidable.bus_gb_per_s.has_value());
}

TEST(CudaBench, AProbeHasNoFloor) {
  const auto report = BenchOn(2, {TestRun("probe:100x3,7", Mode::kZero2, 2)});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE((*report)->modes[0].floor_ms.has_value());
}

}  // namespace
}  // namespace shardproof
