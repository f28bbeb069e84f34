// A group that never meets must say who is missing, and one that meets must share one id.
#include "collectives/nccl/group_meeting.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/job_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr Group kThree = {0, 1, 3};

// The meetings of three ranks: one object in one process, or one for each over a job.
class Meetings : public testing::TestWithParam<bool> {
 protected:
  Meetings() {
    if (over_job()) {
      for (int32_t rank = 0; rank < 3; ++rank) {
        jobs_.push_back(std::make_unique<JobForTest>(&board_, Rank{rank}, WorldSize{3}));
        meetings_.push_back(MakeGroupMeetingOverJob(*jobs_.back()));
      }
    } else {
      meetings_.push_back(MakeGroupMeetingInProcess());
    }
  }

  static bool over_job() { return GetParam(); }
  GroupMeeting& of(int32_t rank) { return *meetings_[over_job() ? rank : 0]; }

  // Every rank of `ranks` on a thread of its own; results by the order given.
  std::vector<absl::StatusOr<std::string>> MeetAll(const std::vector<int32_t>& ranks,
                                                   absl::Duration timeout, int round = 0) {
    std::vector<absl::StatusOr<std::string>> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        const std::string bytes = "of " + std::to_string(ranks[i]) + "." + std::to_string(round);
        results[i] = of(ranks[i]).Meet(Rank{ranks[i]}, kThree, bytes, timeout);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  JobBoardForTest board_;
  std::vector<std::unique_ptr<JobForTest>> jobs_;
  std::vector<std::unique_ptr<GroupMeeting>> meetings_;
};

TEST_P(Meetings, EverybodyGetsWhatTheFirstMemberBroughtThisTime) {
  for (int round = 0; round < 3; ++round) {
    for (const auto& got : MeetAll({2, 0, 1}, absl::Seconds(20), round)) {
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, "of 0." + std::to_string(round));
    }
  }
}

TEST_P(Meetings, NamesWhoHasNotCome) {
  for (const auto& got : MeetAll({0, 2}, absl::Milliseconds(300))) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(got.status())) << got.status();
    EXPECT_THAT(std::string(got.status().message()),
                AllOf(HasSubstr("not arrived: rank 1"), HasSubstr("ranks 0, 1, 2")));
  }
}

TEST_P(Meetings, AbortFreesWhoWaits) {
  std::thread aborts([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    of(0).Abort(absl::AbortedError("rank 7 has failed"));
  });
  const auto got = of(0).Meet(Rank{0}, kThree, "", absl::Seconds(30));
  aborts.join();
  EXPECT_EQ(got.status(), absl::AbortedError("rank 7 has failed"));
}

INSTANTIATE_TEST_SUITE_P(InProcessAndOverJob, Meetings, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("OverJob") : std::string("InProcess");
});

TEST(MeetingOverJob, ARankWhoseProcessIsGoneIsNamedLongBeforeTheTimeout) {
  JobBoardForTest board;
  JobForTest job(&board, Rank{0}, WorldSize{3});
  board.Leave(Rank{2});
  const auto got = MakeGroupMeetingOverJob(job)->Meet(Rank{0}, kThree, "id", absl::Seconds(600));
  EXPECT_TRUE(absl::IsUnavailable(got.status())) << got.status();
  EXPECT_THAT(std::string(got.status().message()), HasSubstr("gone: rank 2"));
}

}  // namespace
}  // namespace shardproof
