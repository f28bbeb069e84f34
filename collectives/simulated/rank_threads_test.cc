// Ranks with threads must be as reproducible as a plan engine: equal seeds, equal order; and
// whatever a rank does wrong must end in an error that names it, never in a hang.
#include "collectives/simulated/rank_threads.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/simulated/simulated_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Far beyond what a test needs: a test that comes near it would wait for a lost wake-up.
constexpr absl::Duration kAmple = absl::Minutes(1);

std::unique_ptr<SimulatedWorld> MakeWorld(int32_t ranks) {
  return *SimulatedWorld::Create(WorldSize{ranks});
}

Group All(const SimulatedWorld& world) { return Group{0, 1, world.size().value}; }

absl::Status MeetAll(RankThread& self, const SimulatedWorld& world, int32_t label = -1) {
  SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const group, self.communicator(All(world)));
  CollectiveCall call;
  call.kind = CollectiveKind::kBarrier;
  call.label = label;
  SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, group->Start(call));
  return group->Wait(handle, kAmple);
}

TEST(RunRanks, RanksReduceTogether) {
  for (const int32_t ranks : {1, 2, 3, 5, 8}) {
    const auto world = MakeWorld(ranks);
    std::vector<float> sums(ranks);
    const absl::Status status = RunRanks(*world, 1, kAmple, [&](RankThread& self) -> absl::Status {
      SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const group, self.communicator(All(*world)));
      float value = static_cast<float>(self.rank().value + 1);
      CollectiveCall call;
      call.kind = CollectiveKind::kAllReduce;
      call.elements = 1;
      call.send = call.recv = &value;
      SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, group->Start(call));
      SHARDPROOF_RETURN_IF_ERROR(group->Wait(handle, kAmple));
      sums[self.rank().value] = value;
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(sums, testing::Each(static_cast<float>(ranks * (ranks + 1) / 2)));
  }
}

// The order in which four ranks take 20 steps each, two of which meet the others.
std::string Interleaving(uint64_t seed) {
  const auto world = MakeWorld(4);
  std::string order;
  const absl::Status status = RunRanks(*world, seed, kAmple, [&](RankThread& self) {
    for (int step = 0; step < 20; ++step) {
      order += static_cast<char>('0' + self.rank().value);
      const bool meets = step == 7 || step == 13;
      SHARDPROOF_RETURN_IF_ERROR(meets ? MeetAll(self, *world) : self.Yield());
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(order.size(), 80);
  return order;
}

TEST(RunRanks, EqualSeedsGiveEqualInterleavings) {
  for (const uint64_t seed : {0, 1, 2, 12345}) EXPECT_EQ(Interleaving(seed), Interleaving(seed));
}

// The expected order comes from a separate program: SplitMix64 modulo the ranks that can go on.
TEST(RunRanks, AnInterleavingIsTheSameOnEveryMachine) {
  EXPECT_EQ(Interleaving(1),
            "13231011021202033120201033132302103011002332102232032131302203032033131102121120");
}

TEST(RunRanks, SeedsGiveManyInterleavings) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) seen.insert(Interleaving(seed));
  EXPECT_EQ(seen.size(), 20);
}

TEST(RunRanks, OneRankRunsAtATime) {
  const auto world = MakeWorld(8);
  int inside = 0;  // Plain, as ranks may share plain variables.
  const absl::Status status = RunRanks(*world, 3, kAmple, [&](RankThread& self) {
    for (int step = 0; step < 50; ++step) {
      EXPECT_EQ(++inside, 1);
      std::this_thread::yield();
      --inside;
      SHARDPROOF_RETURN_IF_ERROR(self.Yield());
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RunRanks, AWorldRunsAgain) {
  const auto world = MakeWorld(3);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const absl::Status status =
        RunRanks(*world, seed, kAmple, [&](RankThread& self) { return MeetAll(self, *world); });
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(world->waiter(), nullptr);
}

TEST(RunRanks, ADeadlockNamesWhoWaitsAndWhoReturned) {
  const auto world = MakeWorld(3);
  std::vector<absl::Status> seen(3);
  const absl::Time start = absl::Now();
  const absl::Status status = RunRanks(*world, 5, kAmple, [&](RankThread& self) -> absl::Status {
    if (self.rank().value == 2) return absl::OkStatus();
    return seen[self.rank().value] = MeetAll(self, *world, 4);
  });
  EXPECT_LT(absl::Now() - start, kAmple / 4) << "a deadlock does not wait for a timeout";
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "deadlock: rank 0 waits for barrier (label 4), position 0 of the group of ranks 0, 1, "
            "2, not arrived: rank 2; rank 1 waits for barrier (label 4), position 0 of the group "
            "of ranks 0, 1, 2, not arrived: rank 2; rank 2 already returned");
  EXPECT_EQ(seen[0], status);
  EXPECT_EQ(seen[1], status);
}

TEST(RunRanks, RanksThatWaitForEachOtherAreADeadlock) {
  const auto world = MakeWorld(3);
  // Each rank meets the next one first: nobody is left to arrive.
  const absl::Status status = RunRanks(*world, 6, kAmple, [&](RankThread& self) -> absl::Status {
    const int32_t rank = self.rank().value;
    const Group pairs[3] = {{0, 1, 2}, {1, 1, 2}, {0, 2, 2}};
    SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const pair, self.communicator(pairs[rank]));
    SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, pair->Start(CollectiveCall{}));
    return pair->Wait(handle, kAmple);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("group of ranks 0, 1, not arrived: rank 1"),
                    HasSubstr("group of ranks 1, 2, not arrived: rank 2"),
                    HasSubstr("group of ranks 0, 2, not arrived: rank 0")));
}

TEST(RunRanks, ARankThatFailsReleasesTheOthers) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const auto world = MakeWorld(4);
    int released = 0;
    const absl::Status status =
        RunRanks(*world, seed, kAmple, [&](RankThread& self) -> absl::Status {
          if (self.rank().value == 1) return absl::DataLossError("the shard is gone");
          const absl::Status met = MeetAll(self, *world);
          EXPECT_EQ(met.message(), "rank 1 returned an error: the shard is gone");
          ++released;
          return met;
        });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "rank 1 returned an error: the shard is gone");
    EXPECT_EQ(released, 3);
  }
}

TEST(RunRanks, ARankThatIgnoresTheReleaseGetsItAgain) {
  const auto world = MakeWorld(2);
  const absl::Status status = RunRanks(*world, 1, kAmple, [&](RankThread& self) -> absl::Status {
    if (self.rank().value == 1) return absl::AbortedError("no");
    EXPECT_EQ(MeetAll(self, *world).code(), absl::StatusCode::kAborted);
    EXPECT_EQ(MeetAll(self, *world).code(), absl::StatusCode::kAborted);
    EXPECT_EQ(self.Yield().code(), absl::StatusCode::kAborted);
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
}

TEST(RunRanks, ADisagreementReachesEveryRank) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const auto world = MakeWorld(3);
    int failed = 0;
    const absl::Status status =
        RunRanks(*world, seed, kAmple, [&](RankThread& self) -> absl::Status {
          SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const group, self.communicator(All(*world)));
          CollectiveCall call;
          float value = 0;
          call.kind = CollectiveKind::kAllReduce;
          call.elements = self.rank().value == 1 ? 0 : 1;
          call.send = call.recv = &value;
          const auto handle = group->Start(call);
          const absl::Status waited = handle.ok() ? group->Wait(*handle, kAmple) : handle.status();
          EXPECT_EQ(waited.code(), absl::StatusCode::kFailedPrecondition);
          ++failed;
          return waited;
        });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 called all_reduce of 0 float32"));
    EXPECT_EQ(failed, 3);
  }
}

TEST(RunRanks, AWaitWithoutTimeDoesNotWait) {
  const auto world = MakeWorld(2);
  const absl::Status status = RunRanks(*world, 1, kAmple, [&](RankThread& self) -> absl::Status {
    SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const group, self.communicator(All(*world)));
    SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, group->Start(CollectiveCall{}));
    const absl::Status now = group->Wait(handle, absl::ZeroDuration());
    EXPECT_TRUE(now.ok() || now.code() == absl::StatusCode::kDeadlineExceeded) << now;
    return group->Wait(handle, kAmple);
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RunRanks, RanksThatYieldForEverAreEnded) {
  const auto world = MakeWorld(2);
  const absl::Status status =
      RunRanks(*world, 1, absl::Milliseconds(50), [&](RankThread& self) -> absl::Status {
        if (self.rank().value == 0) return MeetAll(self, *world);
        while (true) SHARDPROOF_RETURN_IF_ERROR(self.Yield());
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the ranks did not return within 50ms"),
                    HasSubstr("rank 0 waits for barrier"), HasSubstr("rank 1 can go on")));
  EXPECT_EQ(world->waiter(), nullptr);
}

TEST(RunRanks, ARankThatNeverEndsItsTurnIsNamed) {
  const auto world = MakeWorld(3);
  std::atomic<bool> stop{false};
  std::atomic<bool> stopped{false};
  std::atomic<int> released{0};
  const absl::Status status =
      RunRanks(*world, 1, absl::Milliseconds(50), [&](RankThread& self) -> absl::Status {
        if (self.rank().value != 1) {
          const absl::Status met = MeetAll(self, *world);
          EXPECT_THAT(std::string(met.message()), HasSubstr("rank 1 did not"));
          ++released;
          return met;
        }
        while (!stop) std::this_thread::yield();
        // Long after the run: waiting ends at once.
        EXPECT_EQ(MeetAll(self, *world).code(), absl::StatusCode::kDeadlineExceeded);
        EXPECT_EQ(self.Yield().code(), absl::StatusCode::kDeadlineExceeded);
        stopped = true;
        return absl::OkStatus();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "rank 1 did not wait, yield or return within 50ms and still runs");
  EXPECT_EQ(released, 2);
  EXPECT_EQ(RunRanks(*world, 1, kAmple, [](RankThread&) { return absl::OkStatus(); }).code(),
            absl::StatusCode::kFailedPrecondition);
  // The thread refers to this test's variables and to the world: let it end before they do.
  stop = true;
  while (!stopped) std::this_thread::yield();
}

TEST(RunRanks, WaitOutsideARunEndsAtOnce) {
  const auto world = MakeWorld(2);
  Communicator& zero = **world->communicator(Rank{0}, All(*world));
  const CollectiveHandle handle = *zero.Start(CollectiveCall{});
  const absl::Status status = zero.Wait(handle, kAmple);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not arrived: rank 1"));
}

TEST(RunRanks, RefusesARunInsideARunAndATimeoutThatBoundsNothing) {
  const auto world = MakeWorld(1);
  const auto nothing = [](RankThread&) { return absl::OkStatus(); };
  EXPECT_TRUE(RunRanks(*world, 1, kAmple, [&](RankThread&) {
                EXPECT_EQ(RunRanks(*world, 1, kAmple, nothing).code(),
                          absl::StatusCode::kFailedPrecondition);
                return absl::OkStatus();
              }).ok());
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), -absl::Seconds(1), absl::InfiniteDuration()}) {
    EXPECT_EQ(RunRanks(*world, 1, timeout, nothing).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace shardproof
