#include "trainer/engines/cuda/rank_team.h"

#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

constexpr absl::Duration kGrace = absl::Milliseconds(300);
constexpr absl::Duration kLong = absl::Seconds(60);

// Threads that wait for it go on once it is notified.
class Notification {
 public:
  void Notify() { promise_.set_value(); }
  void WaitForNotification() { future_.wait(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

std::string Member(size_t i) { return absl::StrCat("rank ", i, " at operation 7"); }

RankTeam::Options WithAbort(std::function<void(const absl::Status&)> abort) {
  return {kGrace, Member, std::move(abort)};
}

TEST(RankTeam, EveryMemberWorksAndAllAreWaitedFor) {
  RankTeam team(3, WithAbort([](const absl::Status&) { FAIL() << "nothing has failed"; }));
  std::atomic<int> sum = 0;
  for (int repetition = 0; repetition < 100; ++repetition) {
    const absl::Status status = team.OnEvery(
        [&](size_t i) {
          sum += 1 << i;
          return absl::OkStatus();
        },
        kLong);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(sum.load(), 700);
  EXPECT_FALSE(team.failed().load());
}

TEST(RankTeam, TheFirstErrorAbortsWhatTheOthersWaitIn) {
  Notification aborted;
  RankTeam team(2, WithAbort([&](const absl::Status& why) {
                  EXPECT_EQ(why.message(), "out of memory");
                  aborted.Notify();
                }));
  const absl::Time begin = absl::Now();
  const absl::Status status = team.OnEvery(
      [&](size_t i) -> absl::Status {
        if (i == 0) return absl::ResourceExhaustedError("out of memory");
        aborted.WaitForNotification();
        return absl::CancelledError("by the other");
      },
      kLong);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_LT(absl::Now() - begin, kLong / 2);
  EXPECT_TRUE(team.failed().load());
  // It does no further work.
  EXPECT_EQ(team.OnEvery([](size_t) -> absl::Status { return absl::OkStatus(); }, kLong), status);
}

// A thread in a launch that is blocked: only an abort gets it out.
TEST(RankTeam, WhoIsLateIsNamedAndAborted) {
  Notification aborted;
  RankTeam team(3, WithAbort([&](const absl::Status&) { aborted.Notify(); }));
  std::atomic<bool> returned = false;
  const absl::Status status = team.OnEvery(
      [&](size_t i) {
        if (i == 1) {
          aborted.WaitForNotification();
          returned = true;
        }
        return absl::OkStatus();
      },
      absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(status.message(), "not returned within 200ms: rank 1 at operation 7");
  EXPECT_TRUE(returned.load());
  EXPECT_TRUE(team.Finish([](size_t) {}, kLong));
}

TEST(RankTeam, WhoNeverReturnsIsGivenUp) {
  Notification test_ends;
  RankTeam team(2, WithAbort([](const absl::Status&) {}));
  const absl::Time begin = absl::Now();
  const absl::Status status = team.OnEvery(
      [&](size_t i) {
        if (i == 0) test_ends.WaitForNotification();
        return absl::OkStatus();
      },
      absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_FALSE(team.Finish([](size_t) { FAIL() << "a member is still at work"; }, kGrace));
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(200) + 2 * kGrace);
  EXPECT_LT(absl::Now() - begin, kLong / 2);
  test_ends.Notify();  // as the process's end would
}

TEST(RankTeam, AnAbortThatBlocksIsGivenUpToo) {
  Notification test_ends;
  RankTeam team(2, WithAbort([&](const absl::Status&) { test_ends.WaitForNotification(); }));
  const absl::Time begin = absl::Now();
  const absl::Status status =
      team.OnEvery([](size_t) -> absl::Status { return absl::InternalError("failed"); }, kLong);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_FALSE(team.Finish([](size_t) {}, kGrace));
  EXPECT_LT(absl::Now() - begin, kLong / 2);
  test_ends.Notify();
}

// Filling in a large model's state takes what it takes, and ends.
TEST(RankTeam, WorkThatWaitsForNobodyHasNoBound) {
  RankTeam team(2, WithAbort([](const absl::Status&) {}));
  std::atomic<bool> returned = false;
  const absl::Status status = team.OnEvery(
      [&](size_t i) -> absl::Status {
        if (i == 0) return absl::ResourceExhaustedError("out of memory");
        absl::SleepFor(3 * kGrace);
        returned = true;
        return absl::OkStatus();
      },
      absl::InfiniteDuration());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(returned.load());
  EXPECT_TRUE(team.Finish([](size_t) {}, kLong));
}

}  // namespace
}  // namespace shardproof
