// The cpu engine over a world whose ranks are not all here. Two engines share one SimulatedWorld,
// each on a thread of its own with some of the ranks, as two processes would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/world.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/engines/split_world.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPlenty = int64_t{1} << 30;

// Bits of all values that each shown rank holds, its losses' and its clips' after them.
std::vector<std::vector<uint64_t>> BitsOfRanks(const StepObservation& step) {
  std::vector<std::vector<uint64_t>> ranks;
  for (size_t rank = 0; rank < step.states.size(); ++rank) {
    std::vector<uint64_t> bits = {static_cast<uint64_t>(step.states[rank].ranks.first)};
    for (const StateSegment& segment : step.states[rank].segments) {
      for (int64_t i = 0; i < segment.range.count; ++i) {
        bits.push_back(std::bit_cast<uint32_t>(segment.values[i]));
      }
    }
    bits.push_back(std::bit_cast<uint64_t>(step.losses[rank]));
    if (!step.clips.empty()) bits.push_back(std::bit_cast<uint64_t>(step.clips[rank].norm));
    ranks.push_back(std::move(bits));
  }
  return ranks;
}

using RankBits = std::vector<std::vector<uint64_t>>;

// All steps; by rank after the last.
absl::StatusOr<RankBits> Train(const RunDescription& run, World* world) {
  const auto engine = MakeCpuEngine(run, PlannedParts(run), {.limit_bytes = kPlenty}, world);
  if (!engine.ok()) return engine.status();
  RankBits bits;
  for (int64_t step = 0; step < run.data.steps; ++step) {
    const absl::StatusOr<const StepObservation*> observed = (*engine)->Step();
    if (!observed.ok()) return observed.status();
    bits = BitsOfRanks(**observed);
  }
  return bits;
}

TEST(CpuEngineInParts, TrainsTheSameBitsAsWithAllRanksHere) {
  for (RunDescription run : InEveryMode(TestRun("mlp:6,9,4:bias", Mode::kReplicated, 3))) {
    run.clip_grad_norm = 0.5;
    Meeting meeting(3);
    PartOfWorld first(meeting, {Rank{0}, Rank{2}}, absl::Seconds(60));
    PartOfWorld second(meeting, {Rank{1}}, absl::Seconds(60));
    absl::StatusOr<RankBits> of_second;
    std::thread other([&] { of_second = Train(run, &second); });
    const absl::StatusOr<RankBits> of_first = Train(run, &first);
    other.join();
    ASSERT_TRUE(of_first.ok()) << of_first.status();
    ASSERT_TRUE(of_second.ok()) << of_second.status();
    const absl::StatusOr<RankBits> together = Train(run, nullptr);
    ASSERT_TRUE(together.ok()) << together.status();
    EXPECT_EQ((RankBits{(*of_first)[0], (*of_second)[0], (*of_first)[1]}), *together)
        << ModeRowName(run.sharding);
  }
}

TEST(CpuEngineInParts, DoesNotKnowTheVersionsThatComeFromElsewhere) {
  const RunDescription run = TestRun("probe:5,6", Mode::kFullShard, 2);
  Meeting meeting(2);
  PartOfWorld first(meeting, {Rank{0}}, absl::Seconds(60));
  PartOfWorld second(meeting, {Rank{1}}, absl::Seconds(60));
  std::thread other([&] { EXPECT_TRUE(Train(run, &second).ok()); });
  const auto engine = MakeCpuEngine(run, PlannedParts(run), {.limit_bytes = kPlenty}, &first);
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (int64_t step = 0; step < run.data.steps; ++step) {
    const absl::StatusOr<const StepObservation*> observed = (*engine)->Step();
    ASSERT_TRUE(observed.ok()) << observed.status();
    ASSERT_EQ((*observed)->events.size(), 1u);
    const RankEvents& events = (*observed)->events[0];
    for (const Event& event : events.events) {
      const Access& access = events.accesses[event.first_access];
      if (event.kind == EventKind::kCompute) {
        EXPECT_EQ(access.version, -1);
      }
      if (event.kind == EventKind::kOptimizer && access.kind == AccessKind::kWrite) {
        EXPECT_EQ(access.version, step + 1);
      }
    }
  }
  other.join();
}

TEST(CpuEngineInParts, NamesTheRankThatDoesNotArriveWithinItsPatience) {
  const RunDescription run = TestRun("probe:5,6", Mode::kZero2, 3);
  Meeting meeting(3);
  PartOfWorld world(meeting, {Rank{0}, Rank{2}}, absl::Milliseconds(100));
  const absl::Time begin = absl::Now();
  const absl::Status status = Train(run, &world).status();
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(100));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 in step 0, without progress for 100ms: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("reduce_scatter"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("not arrived: rank 1"));
}

// Patience is for others: where none of the local ranks is in a collective nobody can help.
TEST(CpuEngineInParts, DoesNotWaitForOthersWhereTheyCannotHelp) {
  const RunDescription run = TestRun("probe:5", Mode::kReplicated, 2);
  EngineParts parts = PlannedParts(run);
  parts.plan = [plan = parts.plan](const RunDescription& described, const Placement& placement,
                                   Rank rank, int64_t step) {
    StepPlan edited = plan(described, placement, rank, step);
    edited.waits.push_back(static_cast<int32_t>(edited.ops.size()) - 1);  // it waits for the last
    edited.ops[0].first_wait = static_cast<int32_t>(edited.waits.size()) - 1;
    edited.ops[0].wait_count = 1;
    return edited;
  };
  Meeting meeting(2);
  PartOfWorld world(meeting, {Rank{0}}, absl::Hours(1));
  const auto engine = MakeCpuEngine(run, std::move(parts), {.limit_bytes = kPlenty}, &world);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const absl::Status status = (*engine)->Step().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("deadlock in step 0"));
}

TEST(CpuEngineInParts, RefusesAWorldOfAnotherSize) {
  const RunDescription run = TestRun("probe:5", Mode::kReplicated, 2);
  Meeting meeting(3);
  PartOfWorld world(meeting, {Rank{0}}, absl::Seconds(1));
  const absl::Status status = Train(run, &world).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 ranks"));
}

}  // namespace
}  // namespace shardproof
