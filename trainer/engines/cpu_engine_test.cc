// The cpu engine executes plans: every mode, layout and order of sums must leave the bits
// of the oracle, memory that nobody wrote must stay poison, and what is shown must be what
// happened.
#include "trainer/engines/cpu_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/engines/parameter_versions.h"
#include "trainer/engines/rank_memory.h"
#include "trainer/plan/planner.h"
#include "trainer/replicated/replicated_trainer.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int64_t kPlenty = int64_t{1} << 30;

std::string Describe(const RunDescription& run) {
  return absl::StrCat(run.model.name, " with ", run.model.units.size(), " units, ",
                      ModeRowName(run.sharding), ", ", Name(run.sharding.layout),
                      ", N=", run.sharding.world_size.value, ", K=", run.data.num_micro_batches,
                      ", ", Name(run.sharding.grad_sync));
}

std::unique_ptr<Engine> EngineOf(const RunDescription& run) {
  EXPECT_TRUE(Validate(run).ok()) << Validate(run);
  absl::StatusOr<std::unique_ptr<Engine>> engine = MakeCpuEngine(run, kPlenty);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

const StepObservation& StepOf(Engine& engine) {
  static const StepObservation* const kNothing = new StepObservation();
  const absl::StatusOr<const StepObservation*> step = engine.Step();
  EXPECT_TRUE(step.ok()) << step.status();
  return step.ok() ? **step : *kNothing;
}

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

std::vector<uint32_t> BitsOf(const float* values, int64_t count) {
  std::vector<uint32_t> bits;
  for (int64_t i = 0; i < count; ++i) bits.push_back(Bits(values[i]));
  return bits;
}

// Everything that all ranks hold at the boundary, padding included, as bits.
std::vector<uint32_t> AllBits(const StepObservation& step) {
  std::vector<uint32_t> bits;
  for (const RankState& state : step.states) {
    for (const StateSegment& segment : state.segments) {
      const std::vector<uint32_t> part = BitsOf(segment.values, segment.range.count);
      bits.insert(bits.end(), part.begin(), part.end());
    }
  }
  for (double loss : step.losses) bits.push_back(Bits(static_cast<float>(loss)));
  return bits;
}

// The model's parameters, put together from the ranks' parts.
std::vector<std::vector<uint32_t>> ParameterBits(const RunDescription& run,
                                                 const StepObservation& step) {
  std::vector<std::vector<uint32_t>> bits;
  for (const TensorSpec& tensor : run.model.tensors) bits.emplace_back(Elements(tensor), 0u);
  for (const RankState& state : step.states) {
    for (const StateSegment& segment : state.segments) {
      if (segment.state != StateClass::kParameter || segment.tensor < 0) continue;
      const std::vector<uint32_t> part = BitsOf(segment.values, segment.range.count);
      std::copy(part.begin(), part.end(), bits[segment.tensor].begin() + segment.range.first);
    }
  }
  return bits;
}

// ---------------------------------------------------------------- the oracle's bits

const float* Expected(const ReferenceTensor& tensor, StateClass state) {
  switch (state) {
    case StateClass::kParameter:
      return tensor.parameter;
    case StateClass::kReducedGradient:
      return tensor.gradient;
    case StateClass::kExpAvg:
      return tensor.exp_avg;
    case StateClass::kExpAvgSq:
      return tensor.exp_avg_sq;
  }
  return nullptr;
}

void ExpectStateOf(const StepObservation& step, const ReferenceStep& oracle) {
  for (const RankState& state : step.states) {
    for (const StateSegment& segment : state.segments) {
      if (segment.tensor < 0) continue;
      const float* expected = Expected(oracle.tensors[segment.tensor], segment.state);
      ASSERT_NE(expected, nullptr) << Name(segment.state) << " of tensor " << segment.tensor;
      ASSERT_EQ(BitsOf(segment.values, segment.range.count),
                BitsOf(expected + segment.range.first, segment.range.count))
          << Name(segment.state) << " of tensor " << segment.tensor << " from element "
          << segment.range.first << " on rank " << state.ranks.first << " in step " << step.step;
    }
    for (const TensorStep& steps : state.steps) {
      EXPECT_EQ(steps.updates, oracle.tensors[steps.tensor].updates);
    }
  }
}

void ExpectTrainsAsTheOracle(const RunDescription& run, int32_t steps) {
  SCOPED_TRACE(Describe(run));
  const std::unique_ptr<Engine> engine = EngineOf(run);
  absl::StatusOr<std::unique_ptr<ReplicatedTrainer>> oracle = ReplicatedTrainer::Create(run);
  ASSERT_TRUE(oracle.ok()) << oracle.status();
  ASSERT_NE(engine, nullptr);
  for (int32_t step = 0; step < steps; ++step) {
    const StepObservation& observed = StepOf(*engine);
    std::optional<float> coefficient;
    if (!observed.clips.empty()) coefficient = observed.clips[0].coefficient;
    const ReferenceStep& expected = (*oracle)->Step(coefficient);
    EXPECT_EQ(expected.used_coefficient, coefficient.value_or(1.0f));
    ExpectStateOf(observed, expected);
    // Without backward the engine computes no loss.
    if (TrainableElements(run.model) > 0) {
      EXPECT_EQ(observed.losses, expected.losses);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

void ExpectEveryModeTrainsAsTheOracle(const ModelDescription& model, bool scale_before_reduce,
                                      OptimizerKind optimizer, int32_t ranks) {
  RunDescription base = TestRun("probe:1", Mode::kReplicated, ranks);
  base.model = model;
  base.sharding.bucket_cap_bytes = 60;
  base.sharding.scale_before_reduce = scale_before_reduce;
  base.optimizer.kind = optimizer;
  for (const RunDescription& synced : WithEveryGradSync(base)) {
    for (const RunDescription& mode : InEveryMode(synced)) {
      for (const RunDescription& run : InEveryLayout(mode)) {
        ExpectTrainsAsTheOracle(run, /*steps=*/3);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CpuEngine, LeavesTheBitsOfTheOracleForMlpsInEveryModeAndLayout) {
  for (const ModelDescription& model : AwkwardMlps()) {
    ExpectEveryModeTrainsAsTheOracle(model, /*scale_before_reduce=*/false, OptimizerKind::kAdamW,
                                     /*ranks=*/3);
  }
}

TEST(CpuEngine, LeavesTheBitsOfTheOracleForProbesInEveryModeAndLayout) {
  for (const ModelDescription& model : AwkwardProbes()) {
    ExpectEveryModeTrainsAsTheOracle(model, /*scale_before_reduce=*/false, OptimizerKind::kAdamW,
                                     /*ranks=*/4);
  }
}

TEST(CpuEngine, LeavesTheBitsOfTheOracleWithSgdAndScalingBeforeTheSum) {
  ExpectEveryModeTrainsAsTheOracle(AwkwardMlps()[0], /*scale_before_reduce=*/true,
                                   OptimizerKind::kSgd, /*ranks=*/2);
}

TEST(CpuEngine, LeavesTheBitsOfTheOracleOnOneRank) {
  ExpectEveryModeTrainsAsTheOracle(AwkwardMlps()[0], /*scale_before_reduce=*/false,
                                   OptimizerKind::kAdamW, /*ranks=*/1);
}

TEST(CpuEngine, LeavesTheBitsOfTheOracleWithUnitsKeptUnsharded) {
  for (Mode mode : {Mode::kShardGradOp, Mode::kFullShard}) {
    RunDescription run = TestRun("mlp:5,7,3,2:bias", mode, 3);
    run.data.num_micro_batches = 3;
    run.sharding.grad_sync = GradSync::kLast;
    run.sharding.keep_unsharded_between_micro_batches = true;
    ExpectTrainsAsTheOracle(run, 3);
  }
}

TEST(CpuEngine, LeavesTheBitsOfTheOracleWithOneBroadcastPerOwner) {
  RunDescription run = TestRun("mlp:5,7,3,2:bias", Mode::kZero1Broadcast, 3);
  run.sharding.broadcast_bucket_view = true;
  ExpectTrainsAsTheOracle(run, 3);
}

TEST(CpuEngine, LeavesTheBitsOfTheOracleWhenClipping) {
  for (const char* model : {"mlp:5,7,3,2:bias", "probe:7,1,5x3,2"}) {
    for (const double norm : {1e-3, 1.0, 1e6}) {
      for (const RunDescription& mode : InEveryMode(TestRun(model, Mode::kReplicated, 3))) {
        for (RunDescription run : WithEveryGradSync(mode)) {
          run.clip_grad_norm = norm;
          ExpectTrainsAsTheOracle(run, 2);
        }
      }
    }
  }
}

TEST(CpuEngine, ClipsWithTheSameCoefficientOnEveryRank) {
  for (RunDescription run : InEveryMode(TestRun("probe:7,1,5x3,2", Mode::kReplicated, 3))) {
    run.clip_grad_norm = 0.5;
    const std::unique_ptr<Engine> engine = EngineOf(run);
    const StepObservation& step = StepOf(*engine);
    ASSERT_EQ(step.clips.size(), 3u) << Describe(run);
    // The boundary holds clipped gradients; the norm is theirs before.
    for (const ClipObservation& clip : step.clips) {
      EXPECT_GT(clip.norm, 0.5);
      EXPECT_EQ(clip.coefficient, static_cast<float>(0.5 / (clip.norm + 1e-6)));
      EXPECT_EQ(clip.norm, step.clips[0].norm) << Describe(run);
    }
  }
}

TEST(CpuEngine, LeavesTheBitsOfTheOracleWithTensorsThatAreUsedSometimes) {
  for (const RunDescription& mode :
       InEveryMode(TestRun("probe:7,1,5x3,2,4,3", Mode::kReplicated, 3))) {
    for (RunDescription run : WithEveryGradSync(mode)) {
      const int32_t last = static_cast<int32_t>(run.data.num_micro_batches) - 1;
      run.usage = {{.tensor = 0, .rank = 1},
                   {.tensor = 1, .micro_batch = last},
                   {.tensor = 2, .steps = StepUse::kNever},
                   {.tensor = 3, .steps = StepUse::kOdd},
                   {.tensor = 4, .rank = 2, .micro_batch = 0, .steps = StepUse::kEven}};
      ExpectTrainsAsTheOracle(run, 4);
    }
  }
}

TEST(CpuEngine, UpdatesAnUnusedTensorInNoStep) {
  RunDescription run = TestRun("probe:7,5", Mode::kFullShard, 2);
  run.optimizer.weight_decay = 0.5;
  run.usage = {{.tensor = 1, .steps = StepUse::kOdd}};
  const std::unique_ptr<Engine> engine = EngineOf(run);
  const auto updates = [](const StepObservation& step) {
    for (const TensorStep& tensor : step.states[0].steps) {
      if (tensor.tensor == 1) return tensor.updates;
    }
    return int64_t{-1};
  };
  const std::vector<uint32_t> before = ParameterBits(run, StepOf(*engine))[1];
  EXPECT_EQ(updates(StepOf(*engine)), 1);  // the second step
  const std::vector<uint32_t> moved = ParameterBits(run, StepOf(*engine))[1];
  EXPECT_NE(moved, before);
  EXPECT_NE(ParameterBits(run, StepOf(*engine))[1], moved);
}

TEST(CpuEngine, LeavesTheBitsOfTheOracleWithOptimizerGroups) {
  for (RunDescription run : InEveryMode(TestRun("mlp:5,7,3,2:bias", Mode::kReplicated, 3))) {
    run.optimizer.groups = {{.tensors = {1, 3, 5}, .learning_rate = 0.01, .weight_decay = 0},
                            {.tensors = {2}, .beta1 = 0.5, .beta2 = 0.7}};
    ExpectTrainsAsTheOracle(run, 3);
    run.optimizer.kind = OptimizerKind::kSgd;
    ExpectTrainsAsTheOracle(run, 3);
  }
}

// What an edit may do to a plan: it must end in an error that says where, never in a crash.
TEST(CpuEngine, RefusesPlansThatLeaveTheirBuffers) {
  const RunDescription run = TestRun("mlp:2x4", Mode::kFullShard, 2);
  const auto error = [&run](const std::function<void(StepPlan&)>& edit) {
    EngineParts parts = PlannedParts(run);
    parts.plan = [edit](const RunDescription& described, const Placement& placement, Rank rank,
                        int64_t step) {
      StepPlan plan = PlanStep(described, placement, rank, step);
      edit(plan);
      return plan;
    };
    absl::StatusOr<std::unique_ptr<Engine>> engine =
        MakeCpuEngine(run, std::move(parts), {.limit_bytes = kPlenty});
    if (!engine.ok()) return std::string(engine.status().message());
    return std::string((*engine)->Step().status().message());
  };
  EXPECT_EQ(error([](StepPlan&) {}), "");
  EXPECT_THAT(error([](StepPlan& plan) { plan.ops[0].recv.range.first = 1; }),
              AllOf(HasSubstr("rank 0, operation 0"), HasSubstr("where it receives")));
  EXPECT_THAT(error([](StepPlan& plan) { plan.ops[0].send.buffer = 1000; }),
              HasSubstr("what it sends"));
  EXPECT_THAT(error([](StepPlan& plan) { plan.ops[0].group.count = 3; }), HasSubstr("its group"));
  EXPECT_THAT(error([](StepPlan& plan) { plan.ops[1].wait_count = 1000; }), HasSubstr("a slice"));
  EXPECT_THAT(error([](StepPlan& plan) { plan.waits[0] = -1; }), HasSubstr("wait -1"));
  EXPECT_THAT(error([](StepPlan& plan) { plan.homes[1].exp_avg = 99; }), HasSubstr("the home"));
  EXPECT_THAT(error([](StepPlan& plan) { plan.activations.pop_back(); }),
              HasSubstr("an activation"));
  EXPECT_THAT(error([](StepPlan& plan) { plan.parameter_uses[0].set = 1; }),
              HasSubstr("the parameter of tensor 0"));
  EXPECT_THAT(error([](StepPlan& plan) { plan.updates[0].counter_of = 9; }),
              HasSubstr("an update's operand"));
  EXPECT_THAT(error([](StepPlan& plan) {
                plan.waits.push_back(static_cast<int32_t>(plan.ops.size()) - 1);
                plan.ops[0].first_wait = static_cast<int32_t>(plan.waits.size()) - 1;
                plan.ops[0].wait_count = 1;
              }),
              HasSubstr("deadlock"));
}

// Memory is made for the first plan, so a later one may not believe in more of it.
TEST(CpuEngine, RefusesALaterPlanOverOtherBuffers) {
  const RunDescription run = TestRun("mlp:2x4", Mode::kFullShard, 2);
  for (const bool fewer : {false, true}) {
    EngineParts parts = PlannedParts(run);
    parts.plan = [fewer](const RunDescription& described, const Placement& placement, Rank rank,
                         int64_t step) {
      StepPlan plan = PlanStep(described, placement, rank, step);
      if (step == 0) return plan;
      fewer ? plan.buffers.pop_back() : void(++plan.buffers[0].elements);
      return plan;
    };
    const auto engine = MakeCpuEngine(run, std::move(parts), {.limit_bytes = kPlenty});
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->Step().ok());
    const absl::Status status = (*engine)->Step().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 has other buffers in step 1"));
  }
}

TEST(CpuEngine, RunsACollectiveInThePlansGroupAndSaysWhoIsMissing) {
  const RunDescription run = TestRun("probe:4", Mode::kReplicated, 2);
  EngineParts parts = PlannedParts(run);
  parts.plan = [](const RunDescription& described, const Placement& placement, Rank rank,
                  int64_t step) {
    StepPlan plan = PlanStep(described, placement, rank, step);
    for (Op& op : plan.ops) {
      if (op.kind == OpKind::kCollective) op.group = {rank.value, 1, 1};
    }
    return plan;
  };
  const auto engine = MakeCpuEngine(run, std::move(parts), {.limit_bytes = kPlenty});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const StepObservation& step = StepOf(**engine);
  EXPECT_EQ(step.events[1].events[2].group, (Group{1, 1, 1}));
  EXPECT_NE(ParameterBits(run, step), ParameterBits(run, StepOf(*EngineOf(run))));
}

TEST(CpuEngine, LeavesTheSameParametersInEveryModeAndLayout) {
  const RunDescription base = TestRun("mlp:6,9,4:bias", Mode::kReplicated, 4);
  std::vector<std::vector<uint32_t>> replicated;
  for (const RunDescription& mode : InEveryMode(base)) {
    for (const RunDescription& run : InEveryLayout(mode)) {
      const std::unique_ptr<Engine> engine = EngineOf(run);
      ASSERT_NE(engine, nullptr);
      for (int32_t step = 0; step < 3; ++step) StepOf(*engine);
      const std::vector<std::vector<uint32_t>> bits = ParameterBits(run, StepOf(*engine));
      if (replicated.empty()) replicated = bits;
      EXPECT_EQ(bits, replicated) << Describe(run);
    }
  }
}

TEST(CpuEngine, RepeatsARunBitForBit) {
  for (const RunDescription& run : InEveryMode(TestRun("mlp:3x5", Mode::kReplicated, 3))) {
    const std::unique_ptr<Engine> one = EngineOf(run);
    const std::unique_ptr<Engine> other = EngineOf(run);
    ASSERT_TRUE(one != nullptr && other != nullptr);
    for (int32_t step = 0; step < 3; ++step) {
      EXPECT_EQ(AllBits(StepOf(*one)), AllBits(StepOf(*other))) << Describe(run);
    }
  }
}

TEST(CpuEngine, TrainsOtherBitsFromAnotherSeed) {
  RunDescription run = TestRun("mlp:3x5", Mode::kFullShard, 2);
  const std::unique_ptr<Engine> one = EngineOf(run);
  RunDescription reseeded = run;
  reseeded.data.seed = 2;
  const std::unique_ptr<Engine> other = EngineOf(reseeded);
  ASSERT_TRUE(one != nullptr && other != nullptr);
  EXPECT_NE(AllBits(StepOf(*one)), AllBits(StepOf(*other)));
}

TEST(CpuEngine, LowersTheLoss) {
  RunDescription run = TestRun("mlp:3x8", Mode::kFullShard, 2);
  run.data.micro_batch_size = 32;
  run.optimizer.learning_rate = 1e-2;
  const std::unique_ptr<Engine> engine = EngineOf(run);
  ASSERT_NE(engine, nullptr);
  const auto mean_loss = [](const StepObservation& step) {
    EXPECT_EQ(step.losses.size(), 2u);
    EXPECT_NE(step.losses[0], step.losses[1]) << "ranks must see different samples";
    return (step.losses[0] + step.losses[1]) / 2;
  };
  const double first = mean_loss(StepOf(*engine));
  for (int32_t step = 1; step < 19; ++step) StepOf(*engine);
  const double last = mean_loss(StepOf(*engine));
  EXPECT_GT(first, 0.3);  // targets are uniform in +-1: their variance is 1/3
  EXPECT_LT(last, first);
}

// ---------------------------------------------------------------- poison

TEST(CpuEngine, LeavesPaddingPoisoned) {
  for (const RunDescription& mode : InEveryMode(TestRun("probe:5x3,7,1", Mode::kReplicated, 4))) {
    for (const RunDescription& run : InEveryLayout(mode)) {
      SCOPED_TRACE(Describe(run));
      const std::unique_ptr<Engine> engine = EngineOf(run);
      ASSERT_NE(engine, nullptr);
      int64_t padding = 0;
      for (int32_t step = 0; step < 3; ++step) {
        for (const RankState& state : StepOf(*engine).states) {
          for (const StateSegment& segment : state.segments) {
            for (int64_t i = 0; i < segment.range.count; ++i) {
              const float value = segment.values[i];
              EXPECT_EQ(std::isnan(value), segment.tensor < 0);
              padding += segment.tensor < 0;
              // A padded gradient is what the sum of the ranks' poison leaves.
              if (segment.tensor >= 0 || segment.state == StateClass::kReducedGradient) continue;
              EXPECT_EQ(Bits(value), 0x7fc10000u | static_cast<uint32_t>(segment.buffer));
            }
          }
        }
      }
      const bool whole =
          run.sharding.mode == Mode::kReplicated || run.sharding.mode == Mode::kZero1Broadcast;
      EXPECT_EQ(padding == 0, whole);
    }
  }
}

TEST(CpuEngine, PoisonsFrozenPlacesOfGradientsAndMoments) {
  RunDescription run = TestRun("probe:3,5", Mode::kFullShard, 2);
  run.model.stages = {{"a", {0, 1}}};
  SetUnits({{0}}, run.model);
  Freeze({0}, run.model);
  const std::unique_ptr<Engine> engine = EngineOf(run);
  ASSERT_NE(engine, nullptr);
  const StepObservation& step = StepOf(*engine);
  for (const StateSegment& segment : step.states[0].segments) {
    // Rank 0 has the frozen tensor's 3 elements and the first of the other.
    if (segment.buffer_offset >= 3) continue;
    EXPECT_EQ(segment.tensor, segment.state == StateClass::kParameter ? 0 : -1);
    EXPECT_EQ(std::isnan(segment.values[0]), segment.state != StateClass::kParameter);
  }
}

// Two buffers: a parameter of a set over two ranks, and a full unit.
struct TwoBuffers {
  StepPlan plan;
  Placement placement;
  TwoBuffers() {
    placement.sets.emplace_back();
    placement.sets[0].layout.shards = 2;
    placement.sets[0].layout.shard_elements = 3;
    BufferSpec spec;
    spec.set = 0;
    spec.elements = 3;
    plan.buffers.push_back(spec);
    spec.role = BufferRole::kUnshardedParameter;
    spec.elements = 6;
    plan.buffers.push_back(spec);
  }
};

TEST(RankMemory, PoisonsWhatWasNeverWrittenAndWhatWasFreed) {
  const TwoBuffers two;
  RankMemory memory(two.plan);
  memory.Allocate(1);
  EXPECT_EQ(BitsOf(memory.data(1), 6), std::vector<uint32_t>(6, 0x7fc20001u));
  std::fill_n(memory.data(1), 6, 1.0f);
  memory.Free(1);
  EXPECT_EQ(BitsOf(memory.data(1), 6), std::vector<uint32_t>(6, 0x7fc30001u));
  // What is allocated again has not been written since it was freed.
  memory.Allocate(1);
  EXPECT_EQ(BitsOf(memory.data(1), 6), std::vector<uint32_t>(6, 0x7fc30001u));
  memory.Fill(0, {1, 2}, Poison::kPadding);
  EXPECT_EQ(BitsOf(memory.data(0) + 1, 2), std::vector<uint32_t>(2, 0x7fc10000u));
}

TEST(ParameterVersions, TellTheOldestOfWhatIsRead) {
  const TwoBuffers two;
  ParameterVersions versions(two.plan, two.placement);
  EXPECT_EQ(versions.Of(0, {0, 3}), 0);
  EXPECT_EQ(versions.Of(1, {0, 6}), -1);
  versions.Set(1, {0, 3}, 2);
  EXPECT_EQ(versions.Of(1, {0, 3}), 2);
  EXPECT_EQ(versions.Of(1, {0, 6}), -1);  // the other rank's part has not arrived
  versions.Set(1, {3, 3}, 1);
  EXPECT_EQ(versions.Of(1, {0, 6}), 1);  // and is stale when it does
  versions.Forget(1);
  EXPECT_EQ(versions.Of(1, {0, 3}), -1);
}

// ---------------------------------------------------------------- versions

// Every version that the accesses of a kind of event show of parameter buffers.
void ExpectVersions(const StepObservation& step, EventKind kind, Purpose purpose,
                    AccessKind access_kind, int32_t version) {
  int32_t seen = 0;
  for (const RankEvents& rank : step.events) {
    for (const Event& event : rank.events) {
      if (event.kind != kind || event.purpose != purpose) continue;
      for (uint32_t i = 0; i < event.access_count; ++i) {
        const Access& access = rank.accesses[event.first_access + i];
        const BufferRole role = rank.buffers[access.buffer].role;
        const bool parameters =
            role == BufferRole::kParameter || role == BufferRole::kUnshardedParameter;
        if (access.kind != access_kind) continue;
        EXPECT_EQ(access.version, parameters ? version : -1) << Name(kind) << " " << Name(purpose);
        seen += parameters;
      }
    }
  }
  EXPECT_GT(seen, 0) << Name(kind) << " " << Name(purpose) << " " << Name(access_kind);
}

TEST(CpuEngine, ShowsThatComputationReadsTheParametersOfTheStep) {
  for (const RunDescription& mode : InEveryMode(TestRun("probe:5x3,2,4", Mode::kReplicated, 3))) {
    for (const RunDescription& run : InEveryLayout(mode)) {
      SCOPED_TRACE(Describe(run));
      const std::unique_ptr<Engine> engine = EngineOf(run);
      ASSERT_NE(engine, nullptr);
      for (int32_t step = 0; step < 3; ++step) {
        const StepObservation& observed = StepOf(*engine);
        const auto expect = [&](EventKind kind, Purpose purpose, AccessKind access, int32_t v) {
          ExpectVersions(observed, kind, purpose, access, v);
        };
        expect(EventKind::kCompute, Purpose::kNone, AccessKind::kRead, step);
        expect(EventKind::kOptimizer, Purpose::kNone, AccessKind::kRead, step);
        expect(EventKind::kOptimizer, Purpose::kNone, AccessKind::kWrite, step + 1);
        const Mode mode = run.sharding.mode;
        if (mode == Mode::kShardGradOp || mode == Mode::kFullShard) {
          expect(EventKind::kCollective, Purpose::kUnshardParameters, AccessKind::kRead, step);
          expect(EventKind::kCollective, Purpose::kUnshardParameters, AccessKind::kWrite, step);
        } else if (mode != Mode::kReplicated) {
          const Purpose purpose = mode == Mode::kZero1Broadcast ? Purpose::kBroadcastParameters
                                                                : Purpose::kGatherParameters;
          expect(EventKind::kCollective, purpose, AccessKind::kRead, step + 1);
          expect(EventKind::kCollective, purpose, AccessKind::kWrite, step + 1);
        }
      }
    }
  }
}

// ---------------------------------------------------------------- what is shown

TEST(CpuEngine, ShowsTheEventsOfEveryRankInIssueOrder) {
  const RunDescription run = TestRun("mlp:2x4", Mode::kFullShard, 2);
  const std::unique_ptr<Engine> engine = EngineOf(run);
  ASSERT_NE(engine, nullptr);
  for (int32_t index = 0; index < 3; ++index) {
    const StepObservation& step = StepOf(*engine);
    EXPECT_EQ(step.step, index);
    ASSERT_EQ(step.events.size(), 2u);
    for (int32_t rank = 0; rank < 2; ++rank) {
      const RankEvents& events = step.events[rank];
      EXPECT_EQ(events.ranks, (Group{rank, 1, 1}));
      std::vector<std::string> issued;
      for (const Event& event : events.events) {
        EXPECT_TRUE(event.completed);
        for (uint32_t i = 0; i < event.wait_count; ++i) {
          EXPECT_LT(events.waits[event.first_wait + i], static_cast<int32_t>(issued.size()));
        }
        issued.push_back(absl::StrCat(Name(event.kind), event.unit));
      }
      if (index > 0) {
        EXPECT_EQ(issued.front(), "release-1");
        issued.erase(issued.begin());
      }
      EXPECT_THAT(
          issued,
          ElementsAre("collective0", "compute0", "collective1", "reshard0", "compute1", "reshard1",
                      // backward
                      "collective1", "collective0", "compute1", "reshard1", "collective1", "local1",
                      "compute0", "reshard0", "collective0", "local0", "release1", "release0",
                      // gradients are kept, activations were freed by what used them last
                      "optimizer0", "optimizer1"));
    }
  }
}

TEST(CpuEngine, ShowsWhatLivesBeforeTheStepAndWhatEachRankHolds) {
  // Two units of 16 elements: 8 a rank.
  const RunDescription run = TestRun("mlp:2x4", Mode::kFullShard, 2);
  const std::unique_ptr<Engine> engine = EngineOf(run);
  ASSERT_NE(engine, nullptr);
  const StepObservation* step = &StepOf(*engine);
  for (int32_t index = 0; index < 2; ++index) {
    ASSERT_EQ(step->states.size(), 2u);
    for (int32_t rank = 0; rank < 2; ++rank) {
      const RankState& state = step->states[rank];
      EXPECT_EQ(state.ranks, (Group{rank, 1, 1}));
      const StateBytes bytes = {
          .parameter = 64, .gradient = 64, .optimizer = 128, .padding = 0, .scalar = 8};
      EXPECT_EQ(state.bytes, bytes);
      std::vector<std::string> held;
      for (const StateSegment& segment : state.segments) {
        held.push_back(absl::StrCat(Name(segment.state), " ", segment.tensor, ": ",
                                    segment.range.first, "+", segment.range.count));
        EXPECT_EQ(segment.buffer_offset, 0);
      }
      const std::string part = rank == 0 ? ": 0+8" : ": 8+8";
      EXPECT_THAT(held, UnorderedElementsAre("parameter 0" + part, "reduced_gradient 0" + part,
                                             "exp_avg 0" + part, "exp_avg_sq 0" + part,
                                             "parameter 1" + part, "reduced_gradient 1" + part,
                                             "exp_avg 1" + part, "exp_avg_sq 1" + part));
      std::vector<int64_t> updates;
      for (const TensorStep& steps : state.steps) updates.push_back(steps.updates);
      EXPECT_THAT(updates, ElementsAre(index + 1, index + 1));
      int32_t gradients = 0;
      for (int32_t buffer : step->events[rank].live_before) {
        gradients += step->events[rank].buffers[buffer].role == BufferRole::kGradient;
      }
      EXPECT_EQ(gradients, index == 0 ? 0 : 2);
    }
    step = &StepOf(*engine);
  }
}

TEST(CpuEngine, ShowsStateOfEveryElementInEveryMode) {
  for (const RunDescription& run : InEveryMode(TestRun("mlp:5,7,3:bias", Mode::kReplicated, 3))) {
    const std::unique_ptr<Engine> engine = EngineOf(run);
    ASSERT_NE(engine, nullptr);
    const StepObservation& step = StepOf(*engine);
    EXPECT_EQ(step.losses.size(), 3u);
    std::vector<std::vector<int32_t>> holders;
    for (const TensorSpec& tensor : run.model.tensors) holders.emplace_back(Elements(tensor), 0);
    StateBytes shown;
    for (size_t rank = 0; rank < step.states.size(); ++rank) {
      EXPECT_EQ(step.states[rank].ranks, (Group{static_cast<int32_t>(rank), 1, 1}));
      shown.padding -= step.states[rank].bytes.padding;
      for (const StateSegment& segment : step.states[rank].segments) {
        ASSERT_NE(segment.values, nullptr);
        if (segment.tensor < 0) shown.padding += 4 * segment.range.count;
        if (segment.tensor < 0 || segment.state != StateClass::kExpAvgSq) continue;
        for (int64_t i = 0; i < segment.range.count; ++i) {
          ++holders[segment.tensor][segment.range.first + i];
        }
      }
    }
    EXPECT_EQ(shown.padding, 0) << Describe(run);
    const int32_t times = run.sharding.mode == Mode::kReplicated ? 3 : 1;
    for (const std::vector<int32_t>& tensor : holders) {
      EXPECT_EQ(tensor, std::vector<int32_t>(tensor.size(), times)) << Describe(run);
    }
  }
}

// ---------------------------------------------------------------- refusals

TEST(MakeCpuEngine, RefusesWhatDoesNotFitAndSaysHowManyBytesItNeeds) {
  // Buffers are rounded up to 64 bytes: parameter, gradient and two moments of 16 elements
  // and a counter are 5 x 64; input, output and its gradient, 4 x 4 elements, 3 x 64.
  const RunDescription run = TestRun("mlp:1x4", Mode::kReplicated, 2);
  EXPECT_TRUE(MakeCpuEngine(run, 1024).ok());
  const absl::Status status = MakeCpuEngine(run, 1023).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("needs 1024 bytes"), HasSubstr("may use 1023"),
                    HasSubstr("replicated on 2 ranks"), HasSubstr("accounting engine")));
}

TEST(MakeCpuEngine, RefusesAModelWhoseLayersItCannotCompute) {
  RunDescription run = TestRun("probe:3,4", Mode::kFullShard, 2);
  run.model.kind = ModelKind::kOpaque;
  const absl::Status status = MakeCpuEngine(run, kPlenty).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("probe"));
}

TEST(MakeCpuEngine, RefusesWhatNoPlannerSupports) {
  RunDescription run = TestRun("probe:3,4", Mode::kFullShard, 2);
  run.sharding.precision.reduce = Dtype::kBFloat16;
  EXPECT_EQ(MakeCpuEngine(run, kPlenty).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace shardproof
