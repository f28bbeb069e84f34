// A step that several processes executed must be shown as one that a single process did: with
// every rank, every value and every parameter version; and where one process fails all must end.
#include "trainer/engines/gathered_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "invariants/observation/observation_wire.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/engines/split_world.h"
#include "trainer/engines/thread_jobs.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPlenty = int64_t{1} << 30;
constexpr absl::Duration kLong = absl::Seconds(60);

// Calls body(rank) for every rank on a thread of its own.
void OnEachRank(int32_t ranks, const std::function<void(int32_t rank)>& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

// ---------------------------------------------------------------- Agreement

// By rank, what each has back that gives `given`.
std::vector<absl::Status> Conclusions(const std::vector<absl::Status>& given,
                                      absl::Duration timeout) {
  const int32_t ranks = static_cast<int32_t>(given.size());
  ThreadBoard board(ranks);
  std::vector<absl::Status> back(given.size());
  OnEachRank(ranks, [&](int32_t rank) {
    ThreadJob job(board, rank);
    Agreement agreement(job, timeout);
    back[rank] = agreement.Conclude(given[rank]);
  });
  return back;
}

TEST(Agreement, IsOkWhereAllAre) {
  for (const absl::Status& status : Conclusions({{}, {}, {}}, kLong)) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Agreement, GivesEveryRankTheCauseAndNotItsConsequences) {
  const std::vector<absl::Status> back =
      Conclusions({absl::DeadlineExceededError("rank 0 waits"),
                   {},
                   absl::ResourceExhaustedError("rank 2 has no memory"),
                   absl::UnavailableError("rank 3 misses a peer")},
                  kLong);
  for (const absl::Status& status : back) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message(), "rank 2 has no memory");
    EXPECT_TRUE(IsKnownToAll(status));
  }
}

TEST(Agreement, GivesTheLowestRanksErrorWhereAllWaitedForOthers) {
  for (const absl::Status& status : Conclusions(
           {{}, absl::DeadlineExceededError("first"), absl::DeadlineExceededError("second")},
           kLong)) {
    EXPECT_EQ(status.message(), "first");
  }
}

TEST(Agreement, LeavesARankItsOwnErrorWhereNobodyAnswers) {
  ThreadBoard board(2);
  ThreadJob job(board, 1);
  Agreement agreement(job, absl::Milliseconds(50));
  const absl::Status status = agreement.Conclude(absl::InternalError("mine"));
  EXPECT_EQ(status.message(), "mine");
  EXPECT_FALSE(IsKnownToAll(status));
}

TEST(Agreement, EndsWhereARankDoesNotCome) {
  ThreadBoard board(2);
  ThreadJob job(board, 0);
  Agreement agreement(job, absl::Milliseconds(50));
  EXPECT_THAT(MessageOf(agreement.Conclude(absl::OkStatus())), HasSubstr("rank 1 did not give"));
  // Its own error comes before the complaint about others.
  EXPECT_EQ(agreement.Conclude(absl::InternalError("mine")).message(), "mine");
}

// ---------------------------------------------------------------- steps

// What two observations of all ranks differ in; packed steps hold everything but origins.
void ExpectSameStep(const StepObservation& gathered, const StepObservation& together) {
  const auto bytes = [](const StepObservation& step) {
    return absl::StrJoin(PackStep(step).Pieces(), "");
  };
  EXPECT_TRUE(bytes(gathered) == bytes(together)) << "step " << together.step;
}

TEST(GatheredEngine, ShowsTheStepsOfOneProcessOnRankZero) {
  for (RunDescription run : InEveryMode(TestRun("mlp:6,9,4:bias", Mode::kReplicated, 3))) {
    run.clip_grad_norm = 0.5;
    Meeting meeting(3);
    ThreadBoard board(3);
    const auto together = MakeCpuEngine(run, kPlenty);
    ASSERT_TRUE(together.ok()) << together.status();
    OnEachRank(3, [&](int32_t rank) {
      PartOfWorld world(meeting, {Rank{rank}}, kLong);
      ThreadJob job(board, rank);
      Agreement agreement(job, kLong);
      auto local = MakeCpuEngine(run, PlannedParts(run), {.limit_bytes = kPlenty}, &world);
      ASSERT_TRUE(local.ok()) << local.status();
      const std::unique_ptr<Engine> engine =
          MakeGatheredEngine(run, PlannedParts(run), *std::move(local), agreement);
      for (int64_t step = 0; step < run.data.steps; ++step) {
        const absl::StatusOr<const StepObservation*> observed = engine->Step();
        ASSERT_TRUE(observed.ok()) << observed.status();
        if (rank != 0) {
          EXPECT_EQ((*observed)->events.size(), 1u);
          continue;
        }
        ExpectSameStep(**observed, **(*together)->Step());
      }
    });
  }
}

TEST(ReplayedEngine, TellsTheVersionsThatAnEngineDoesNot) {
  // An engine that knows no versions.
  class Forgetful : public Engine {
   public:
    explicit Forgetful(std::unique_ptr<Engine> inner) : inner_(std::move(inner)) {}
    absl::StatusOr<const StepObservation*> Step() override {
      step_ = **inner_->Step();
      for (RankEvents& rank : step_.events) {
        for (Access& access : rank.accesses) access.version = -1;
      }
      return &step_;
    }

   private:
    std::unique_ptr<Engine> inner_;
    StepObservation step_;
  };
  const RunDescription run = TestRun("probe:5,6", Mode::kFullShard, 2);
  const auto knowing = MakeCpuEngine(run, kPlenty);
  const std::unique_ptr<Engine> engine = MakeReplayedEngine(
      run, PlannedParts(run), std::make_unique<Forgetful>(*MakeCpuEngine(run, kPlenty)));
  for (int64_t step = 0; step < run.data.steps; ++step) {
    const absl::StatusOr<const StepObservation*> observed = engine->Step();
    ASSERT_TRUE(observed.ok()) << observed.status();
    ExpectSameStep(**observed, **(*knowing)->Step());
  }
}

TEST(GatheredEngine, EndsOnEveryRankWithTheCauseOfTheOneThatFailed) {
  const RunDescription run = TestRun("probe:5,6", Mode::kZero2, 3);
  Meeting meeting(3);
  ThreadBoard board(3);
  std::vector<absl::Status> back(3);
  class Broken : public Engine {
   public:
    absl::StatusOr<const StepObservation*> Step() override {
      return absl::InternalError("rank 1: broken on purpose");
    }
  };
  OnEachRank(3, [&](int32_t rank) {
    PartOfWorld world(meeting, {Rank{rank}}, absl::Milliseconds(200));
    ThreadJob job(board, rank);
    Agreement agreement(job, absl::Seconds(30));
    auto local = MakeCpuEngine(run, PlannedParts(run), {.limit_bytes = kPlenty}, &world);
    ASSERT_TRUE(local.ok()) << local.status();
    std::unique_ptr<Engine> own = *std::move(local);
    if (rank == 1) own = std::make_unique<Broken>();
    back[rank] =
        MakeGatheredEngine(run, PlannedParts(run), std::move(own), agreement)->Step().status();
  });
  for (const absl::Status& status : back) {
    EXPECT_EQ(status.message(), "rank 1: broken on purpose");
    EXPECT_TRUE(IsKnownToAll(status));
  }
}

TEST(GatheredEngine, EndsWhereARankNeverComes) {
  const RunDescription run = TestRun("probe:5,6", Mode::kZero2, 3);
  Meeting meeting(3);
  ThreadBoard board(3);
  const absl::Time begin = absl::Now();
  OnEachRank(2, [&](int32_t rank) {
    PartOfWorld world(meeting, {Rank{rank}}, absl::Milliseconds(200));
    ThreadJob job(board, rank);
    Agreement agreement(job, absl::Seconds(1));
    auto local = MakeCpuEngine(run, PlannedParts(run), {.limit_bytes = kPlenty}, &world);
    ASSERT_TRUE(local.ok()) << local.status();
    const absl::Status status =
        MakeGatheredEngine(run, PlannedParts(run), *std::move(local), agreement)->Step().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("in step 0"), HasSubstr("not arrived: rank 2")));
  });
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

// ---------------------------------------------------------------- MergeSteps

StepObservation PartOf(std::vector<int32_t> ranks) {
  StepObservation part;
  for (const int32_t rank : ranks) {
    part.events.emplace_back().ranks = {rank, 1, 1};
    part.states.emplace_back().ranks = {rank, 1, 1};
    part.losses.push_back(rank);
  }
  return part;
}

std::string ErrorOf(const std::vector<StepObservation>& parts) {
  return MessageOf(MergeSteps(TestRun("probe:5", Mode::kReplicated, 3), parts).status());
}

TEST(MergeSteps, PutsRanksInOrder) {
  std::vector<StepObservation> parts;
  parts.push_back(PartOf({2, 0}));
  parts.push_back(PartOf({1}));
  parts[1].any_order = true;
  const absl::StatusOr<StepObservation> merged =
      MergeSteps(TestRun("probe:5", Mode::kReplicated, 3), parts);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_THAT(merged->losses, testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(merged->events[2].ranks.first, 2);
  EXPECT_EQ(merged->states[1].ranks.first, 1);
  EXPECT_TRUE(merged->any_order);
}

TEST(MergeSteps, NamesWhatDoesNotFit) {
  std::vector<StepObservation> parts;
  parts.push_back(PartOf({0, 2}));
  EXPECT_THAT(ErrorOf(parts), HasSubstr("nobody has shown rank 1"));
  parts.push_back(PartOf({2}));
  EXPECT_THAT(ErrorOf(parts), HasSubstr("rank 2 was shown twice"));
  parts[1] = PartOf({3});
  EXPECT_THAT(ErrorOf(parts), HasSubstr("from 3 on"));
  parts[1] = PartOf({1});
  parts[1].step = 4;
  EXPECT_THAT(ErrorOf(parts), HasSubstr("rank 1 shows step 4"));
  parts[1] = PartOf({1});
  parts[1].losses.clear();
  EXPECT_THAT(ErrorOf(parts), HasSubstr("losses"));
}

}  // namespace
}  // namespace shardproof
