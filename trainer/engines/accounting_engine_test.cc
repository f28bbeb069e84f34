// The accounting engine must show what the cpu engine shows, values and versions apart, and
// do so at a scale that no cpu engine reaches: there its totals are pinned to numbers worked
// out from the shapes.
#include "trainer/engines/accounting_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

std::string Describe(const RunDescription& run) {
  return absl::StrCat(run.model.name, " with ", run.model.units.size(), " units, ",
                      ModeRowName(run.sharding), ", ", Name(run.sharding.layout),
                      ", K=", run.data.num_micro_batches, ", ", Name(run.sharding.grad_sync));
}

std::unique_ptr<Engine> Ok(absl::StatusOr<std::unique_ptr<Engine>> engine) {
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

std::unique_ptr<Engine> AccountingOf(const RunDescription& run) {
  EXPECT_TRUE(Validate(run).ok()) << Validate(run);
  return Ok(MakeAccountingEngine(run));
}

const StepObservation& StepOf(Engine& engine) {
  static const StepObservation* const kNothing = new StepObservation();
  const absl::StatusOr<const StepObservation*> step = engine.Step();
  EXPECT_TRUE(step.ok()) << step.status();
  return step.ok() ? **step : *kNothing;
}

std::string Text(const Event& event) {
  return absl::StrCat(Name(event.kind), " ", Name(event.phase), " ", Name(event.stream), " ",
                      Name(event.collective), " ", Name(event.purpose), " of ", event.elements,
                      " root ", event.root, " k ", event.micro_batch, " unit ", event.unit,
                      " bucket ", event.bucket, " tensor ", event.tensor, " stages ", event.stage,
                      "+", event.stage_count);
}

std::vector<std::string> Texts(const RankEvents& rank, bool with_waits) {
  std::vector<std::string> events;
  for (const Event& event : rank.events) {
    std::string text = Text(event);
    for (uint32_t i = 0; with_waits && i < event.wait_count; ++i) {
      absl::StrAppend(&text, " after ", rank.waits[event.first_wait + i]);
    }
    events.push_back(std::move(text));
  }
  return events;
}

// `of_updates`: also what updates touch, which differs between ranks.
std::vector<std::string> Accesses(const RankEvents& rank, bool of_updates) {
  std::vector<std::string> accesses;
  for (size_t index = 0; index < rank.events.size(); ++index) {
    const Event& event = rank.events[index];
    if (!of_updates && event.phase == Phase::kOptimizer) continue;
    for (uint32_t i = 0; i < event.access_count; ++i) {
      const Access& access = rank.accesses[event.first_access + i];
      accesses.push_back(absl::StrCat(index, ": ", Name(access.kind), " ", access.buffer, " ",
                                      access.range.first, "+", access.range.count));
    }
  }
  return accesses;
}

std::vector<std::string> Buffers(const RankEvents& rank) {
  std::vector<std::string> buffers;
  for (const BufferInfo& buffer : rank.buffers) {
    buffers.push_back(absl::StrCat(Name(buffer.role), " ", buffer.elements, " unit ", buffer.unit,
                                   " bucket ", buffer.bucket));
  }
  return buffers;
}

// What an accounting engine shows of segments: who holds which element of exp_avg.
std::vector<std::string> Owned(const RankState& state, bool with_buffers) {
  std::vector<std::string> owned;
  for (const StateSegment& segment : state.segments) {
    if (segment.state != StateClass::kExpAvg) continue;
    owned.push_back(absl::StrCat(segment.tensor, ": ", segment.range.first, "+",
                                 segment.range.count, " in ", with_buffers ? segment.buffer : -1,
                                 " at ", segment.buffer_offset));
  }
  return owned;
}

// Whether the rank's buffers are those of rank 0, whose events are shown: an owner's are not.
bool HasBuffersOfRank0(const RunDescription& run, int32_t rank) {
  return rank == 0 || run.sharding.mode != Mode::kZero1Broadcast;
}

void ExpectSameEvents(const RunDescription& run, const StepObservation& accounting,
                      const StepObservation& cpu) {
  size_t ranks = 0;
  for (const RankEvents& shown : accounting.events) {
    for (int32_t i = 0; i < shown.ranks.count; ++i, ++ranks) {
      const RankEvents& executed = cpu.events[shown.ranks.member(i).value];
      const bool same_buffers = HasBuffersOfRank0(run, i);
      EXPECT_EQ(Texts(shown, same_buffers), Texts(executed, same_buffers));
      if (!same_buffers) continue;
      EXPECT_EQ(Accesses(shown, i == 0), Accesses(executed, i == 0));
      EXPECT_EQ(shown.live_before, executed.live_before);
      if (i == 0) {
        EXPECT_EQ(Buffers(shown), Buffers(executed));
      }
    }
  }
  EXPECT_EQ(ranks, cpu.events.size());
}

void ExpectSameStates(const RunDescription& run, const StepObservation& accounting,
                      const StepObservation& cpu) {
  size_t ranks = 0;
  for (const RankState& shown : accounting.states) {
    for (const StateSegment& segment : shown.segments) {
      EXPECT_EQ(segment.state, StateClass::kExpAvg);
      EXPECT_EQ(segment.values, nullptr);
    }
    for (int32_t i = 0; i < shown.ranks.count; ++i, ++ranks) {
      const int32_t rank = shown.ranks.member(i).value;
      const RankState& executed = cpu.states[rank];
      EXPECT_EQ(shown.bytes, executed.bytes);
      const bool same_buffers = HasBuffersOfRank0(run, rank);
      EXPECT_EQ(Owned(shown, same_buffers), Owned(executed, same_buffers));
    }
  }
  EXPECT_EQ(ranks, cpu.states.size());
}

void ExpectShowsWhatTheCpuEngineDoes(const RunDescription& run) {
  SCOPED_TRACE(Describe(run));
  const std::unique_ptr<Engine> accounting = AccountingOf(run);
  const std::unique_ptr<Engine> cpu = Ok(MakeCpuEngine(run, int64_t{1} << 30));
  ASSERT_TRUE(accounting != nullptr && cpu != nullptr);
  for (int64_t index = 0; index < 3; ++index) {
    const StepObservation& shown = StepOf(*accounting);
    const StepObservation& executed = StepOf(*cpu);
    EXPECT_EQ(shown.step, index);
    EXPECT_TRUE(shown.losses.empty());
    ExpectSameEvents(run, shown, executed);
    ExpectSameStates(run, shown, executed);
  }
}

TEST(AccountingEngine, ShowsTheEventsAndBytesOfTheCpuEngineInEveryMode) {
  std::vector<ModelDescription> models = AwkwardProbes();
  for (ModelDescription& model : AwkwardMlps()) models.push_back(std::move(model));
  for (ModelDescription& model : models) {
    RunDescription base = TestRun("probe:1", Mode::kReplicated, 3);
    base.model = std::move(model);
    base.sharding.bucket_cap_bytes = 60;
    for (const RunDescription& synced : WithEveryGradSync(base)) {
      for (const RunDescription& run : InEveryMode(synced)) {
        ExpectShowsWhatTheCpuEngineDoes(run);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(AccountingEngine, ShowsTheEventsAndBytesOfTheCpuEngineInEveryLayout) {
  for (Mode mode : {Mode::kZero1AllGather, Mode::kZero2, Mode::kShardGradOp, Mode::kFullShard}) {
    for (const RunDescription& run : InEveryLayout(TestRun("mlp:5,7,3,2:bias", mode, 4))) {
      ExpectShowsWhatTheCpuEngineDoes(run);
    }
  }
}

TEST(AccountingEngine, CountsSgdWithAndWithoutMomentum) {
  for (double momentum : {0.0, 0.9}) {
    for (RunDescription& run : InEveryMode(TestRun("mlp:5,7,3:bias", Mode::kReplicated, 2))) {
      run.optimizer.kind = OptimizerKind::kSgd;
      run.optimizer.momentum = momentum;
      ExpectShowsWhatTheCpuEngineDoes(run);
    }
  }
}

TEST(AccountingEngine, ShowsTheEventsOnceAndTheStateOfEveryRankThatDiffers) {
  for (const RunDescription& run : InEveryMode(TestRun("probe:3,4,5", Mode::kReplicated, 4))) {
    const std::unique_ptr<Engine> engine = AccountingOf(run);
    ASSERT_NE(engine, nullptr);
    const StepObservation& step = StepOf(*engine);
    ASSERT_EQ(step.events.size(), 1u) << Describe(run);
    EXPECT_EQ(step.events[0].ranks, (Group{0, 1, 4})) << Describe(run);
    const bool alike = run.sharding.mode == Mode::kReplicated;
    EXPECT_EQ(step.states.size(), alike ? 1u : 4u) << Describe(run);
  }
}

TEST(MakeAccountingEngine, RefusesWhatNoPlannerSupports) {
  RunDescription run = TestRun("probe:3,4", Mode::kFullShard, 2);
  run.sharding.precision.parameter = Dtype::kBFloat16;
  const absl::Status status = MakeAccountingEngine(run).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bfloat16"));
}

// ---------------------------------------------------------------- scale

RunDescription Published(absl::string_view name, Mode mode, int32_t ranks) {
  return TestRun(absl::StrCat("fixtures/models/", name, ".config.json"), mode, ranks);
}

// Of the second step, a steady one.
StepObservation SteadyStepOf(const RunDescription& run) {
  const std::unique_ptr<Engine> engine = AccountingOf(run);
  if (engine == nullptr) return {};
  StepOf(*engine);
  return StepOf(*engine);
}

StateBytes SumOverRanks(const StepObservation& step) {
  StateBytes sum;
  for (const RankState& state : step.states) {
    sum.parameter += state.ranks.count * state.bytes.parameter;
    sum.gradient += state.ranks.count * state.bytes.gradient;
    sum.optimizer += state.ranks.count * state.bytes.optimizer;
    sum.padding += state.ranks.count * state.bytes.padding;
    sum.scalar += state.ranks.count * state.bytes.scalar;
  }
  return sum;
}

int64_t Count(const StepObservation& step, Phase phase, CollectiveKind kind) {
  int64_t count = 0;
  for (const Event& event : step.events[0].events) {
    count +=
        event.kind == EventKind::kCollective && event.phase == phase && event.collective == kind;
  }
  return count;
}

// A gpt2 block has 7,087,872 elements and the root 39,385,344; over 100 ranks the shards have
// 70,879 and 393,854, and the units 28 and 56 elements of padding, all on the last rank.
TEST(AccountingEngine, CountsGpt2OverAHundredRanks) {
  const StepObservation step = SteadyStepOf(Published("gpt2", Mode::kFullShard, 100));
  ASSERT_EQ(step.states.size(), 100u);
  constexpr int64_t kShard = 12 * 70'879 + 393'854;
  constexpr int64_t kPadding = 12 * 28 + 56;
  static_assert(4 * kShard == 4'977'608);
  const StateBytes& first = step.states[0].bytes;
  EXPECT_EQ(first.parameter, 4'977'608);
  EXPECT_EQ(first.gradient, 4'977'608);
  EXPECT_EQ(first.optimizer, 9'955'216);
  EXPECT_EQ(first.padding, 0);
  const StateBytes& last = step.states[99].bytes;
  EXPECT_EQ(last.parameter, 4 * (kShard - kPadding));
  EXPECT_EQ(last.padding, 4 * 4 * kPadding);
  const StateBytes sum = SumOverRanks(step);
  EXPECT_EQ(sum.parameter, 4 * int64_t{124'439'808});
  EXPECT_EQ(sum.gradient, 4 * int64_t{124'439'808});
  EXPECT_EQ(sum.optimizer, 8 * int64_t{124'439'808});
  EXPECT_EQ(sum.padding, 4 * 4 * kPadding);
}

// 126 blocks of 3,187,703,808 elements and a root of 4,202,708,992, all divisible by 64. The
// root is gathered once and kept, so backward gathers the blocks only.
TEST(AccountingEngine, CountsLlama405bOverSixtyFourRanks) {
  const StepObservation step = SteadyStepOf(Published("llama-3.1-405b", Mode::kFullShard, 64));
  ASSERT_EQ(step.states.size(), 64u);
  for (const RankState& state : step.states) {
    EXPECT_EQ(state.bytes.parameter, 25'365'836'800);
    EXPECT_EQ(state.bytes.gradient, 25'365'836'800);
    EXPECT_EQ(state.bytes.optimizer, 50'731'673'600);
    EXPECT_EQ(state.bytes.padding, 0);
  }
  EXPECT_EQ(Count(step, Phase::kForward, CollectiveKind::kAllGather), 127);
  EXPECT_EQ(Count(step, Phase::kBackward, CollectiveKind::kAllGather), 126);
  EXPECT_EQ(Count(step, Phase::kBackward, CollectiveKind::kReduceScatter), 127);
  int64_t gathered = 0;
  for (const Event& event : step.events[0].events) {
    if (event.purpose == Purpose::kUnshardParameters) gathered += event.elements;
  }
  EXPECT_EQ(gathered, 2 * 126 * int64_t{3'187'703'808} + 4'202'708'992);
}

TEST(AccountingEngine, CountsEveryModeOfGpt2OverSixtyFourRanks) {
  constexpr int64_t kP = 4 * int64_t{124'439'808};
  for (const RunDescription& run : InEveryMode(Published("gpt2", Mode::kReplicated, 64))) {
    SCOPED_TRACE(ModeRowName(run.sharding));
    const StateBytes sum = SumOverRanks(SteadyStepOf(run));
    const Mode mode = run.sharding.mode;
    const bool unit_mode = mode == Mode::kShardGradOp || mode == Mode::kFullShard;
    EXPECT_EQ(sum.parameter, unit_mode ? kP : 64 * kP);
    EXPECT_EQ(sum.gradient, unit_mode || mode == Mode::kZero2 ? kP : 64 * kP);
    EXPECT_EQ(sum.optimizer, mode == Mode::kReplicated ? 128 * kP : 2 * kP);
    if (mode == Mode::kReplicated) {
      EXPECT_EQ(sum.scalar, 64 * 4 * 148);
    }
    if (mode == Mode::kZero1Broadcast) {
      EXPECT_EQ(sum.scalar, 4 * 148);
    }
  }
}

TEST(MakeAccountingEngine, RefusesShardsThatDoNotFitTheMemory) {
  RunDescription run = TestRun("probe:3,4,5", Mode::kFullShard, 4);
  run.sharding.layout = LayoutKind::kRows;
  const absl::Status status = MakeAccountingEngine(run, /*memory_limit_bytes=*/1000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("may use 1000"));
  EXPECT_TRUE(MakeAccountingEngine(run, /*memory_limit_bytes=*/1000000).ok());
}

}  // namespace
}  // namespace shardproof
