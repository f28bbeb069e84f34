// When a GPU hangs, the roll call is all that a user has: it must name who is missing and who
// called something else, and must not blame anybody who has done its part.
#include "collectives/roll_call.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/job_for_test.h"
#include "collectives/launch/job.h"
#include "collectives/roll_call_in_process.h"
#include "collectives/roll_call_over_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr Group kThree = {1, 2, 3};  // ranks 1, 3, 5

CollectiveCall AllReduce(int64_t elements, int32_t label = -1) {
  CollectiveCall call;
  call.kind = CollectiveKind::kAllReduce;
  call.elements = elements;
  call.label = label;
  return call;
}

// The roll calls of ranks 1, 3 and 5: one object in one process, or one for each over a job.
class RollCalls : public testing::TestWithParam<bool> {
 protected:
  RollCalls() {
    for (int32_t rank : {1, 3, 5}) {
      jobs_.push_back(std::make_unique<JobForTest>(&board_, Rank{rank}, WorldSize{6}));
      if (over_job()) roll_calls_.push_back(MakeRollCallOverJob(*jobs_.back()));
    }
    if (!over_job()) roll_calls_.push_back(MakeRollCallInProcess());
  }

  static bool over_job() { return GetParam(); }
  RollCall& of(int32_t rank) { return *roll_calls_[over_job() ? rank / 2 : 0]; }

  void Answer(int32_t rank, int64_t position, const CollectiveCall& call) {
    of(rank).Answer(Rank{rank}, kThree, position, call);
  }

  // Answers travel on their own: asks until they have come, which they must soon.
  absl::Status ExplainWith(int32_t rank, int64_t position, const std::string& words) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    absl::Status why;
    do {
      why = of(rank).Explain(Rank{rank}, kThree, position);
      if (why.message().find(words) != absl::string_view::npos) return why;
      absl::SleepFor(absl::Milliseconds(1));
    } while (absl::Now() < deadline);
    return why;
  }

  JobBoardForTest board_;
  std::vector<std::unique_ptr<JobForTest>> jobs_;
  std::vector<std::unique_ptr<RollCall>> roll_calls_;
};

TEST_P(RollCalls, NamesWhoHasNotArrivedAndWhatItDidLast) {
  Answer(1, 0, AllReduce(8));
  Answer(3, 0, AllReduce(8));
  Answer(1, 1, AllReduce(4, 77));
  const absl::Status why = ExplainWith(1, 1, "rank 3 (last started all_reduce of 8 float32");
  EXPECT_TRUE(absl::IsDeadlineExceeded(why)) << why;
  EXPECT_THAT(
      std::string(why.message()),
      AllOf(HasSubstr("rank 1 waits for all_reduce of 4 float32 (label 77), position 1"),
            HasSubstr("rank 3 (last started all_reduce of 8 float32 (label -1), position 0)"),
            HasSubstr("rank 5 (has started nothing)")));
}

TEST_P(RollCalls, SaysThatAllHaveArrived) {
  for (int32_t rank : {1, 3, 5}) Answer(rank, 0, AllReduce(8));
  const absl::Status why = ExplainWith(3, 0, "all ranks have started it");
  EXPECT_TRUE(absl::IsDeadlineExceeded(why)) << why;
  EXPECT_THAT(std::string(why.message()), HasSubstr("all ranks have started it"));
}

TEST_P(RollCalls, ARankThatIsAheadHasArrived) {
  Answer(1, 0, AllReduce(8));
  // So far ahead that its answer there is forgotten.
  for (int64_t position = 0; position < 2000; ++position) Answer(3, position, AllReduce(8));
  Answer(5, 0, AllReduce(8));
  const absl::Status why = ExplainWith(1, 0, "all ranks have started it");
  EXPECT_THAT(std::string(why.message()), HasSubstr("all ranks have started it"));
}

TEST_P(RollCalls, WhoCalledSomethingElseIsNamedAndRemembered) {
  Answer(1, 0, AllReduce(8));
  CollectiveCall other = AllReduce(8);
  other.kind = CollectiveKind::kReduceScatter;
  Answer(5, 0, other);
  const absl::Status why = ExplainWith(1, 0, "disagree");
  EXPECT_TRUE(absl::IsFailedPrecondition(why)) << why;
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("rank 1 called all_reduce of 8"),
                    HasSubstr("rank 5 called reduce_scatter of 8"), HasSubstr("position 0")));
  EXPECT_TRUE(absl::IsFailedPrecondition(of(1).Disagreement(kThree)));
}

TEST_P(RollCalls, LabelsAndOtherGroupsAreNoDisagreement) {
  Answer(1, 0, AllReduce(8, 3));
  Answer(3, 0, AllReduce(8, 4));
  Answer(5, 0, AllReduce(8, 5));
  of(1).Answer(Rank{1}, Group{1, 2, 2}, 0, AllReduce(9));
  const absl::Status why = ExplainWith(1, 0, "all ranks have started it");
  EXPECT_TRUE(absl::IsDeadlineExceeded(why)) << why;
  EXPECT_TRUE(of(1).Disagreement(kThree).ok());
}

INSTANTIATE_TEST_SUITE_P(InProcessAndOverJob, RollCalls, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("OverJob") : std::string("InProcess");
});

TEST(RollCallInProcess, TheSecondOfTwoThatDisagreeKnowsAtOnce) {
  const auto roll_call = MakeRollCallInProcess();
  roll_call->Answer(Rank{1}, kThree, 0, AllReduce(8));
  EXPECT_TRUE(roll_call->Disagreement(kThree).ok());
  roll_call->Answer(Rank{3}, kThree, 0, AllReduce(9));
  EXPECT_TRUE(absl::IsFailedPrecondition(roll_call->Disagreement(kThree)));
  EXPECT_TRUE(roll_call->Disagreement(Group{0, 1, 2}).ok());
}

TEST(RollCallOverJob, ARankWhoseProcessIsGoneIsNamedEvenIfItArrived) {
  JobBoardForTest board;
  JobForTest job1(&board, Rank{1}, WorldSize{6}), job3(&board, Rank{3}, WorldSize{6}),
      job5(&board, Rank{5}, WorldSize{6});
  const auto rank1 = MakeRollCallOverJob(job1), rank3 = MakeRollCallOverJob(job3),
             rank5 = MakeRollCallOverJob(job5);
  rank1->Answer(Rank{1}, kThree, 0, AllReduce(8));
  rank3->Answer(Rank{3}, kThree, 0, AllReduce(8));
  rank5->Answer(Rank{5}, kThree, 0, AllReduce(8));
  board.Leave(Rank{5});
  const absl::Status why = rank1->Explain(Rank{1}, kThree, 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(why)) << why;
  EXPECT_THAT(std::string(why.message()), HasSubstr("rank 5 (its process is gone"));
}

// Rank 0's process, which serves the job, has ended.
class JobWithoutRankZero final : public Job {
 public:
  Rank rank() const override { return Rank{3}; }
  WorldSize world_size() const override { return WorldSize{6}; }
  absl::Status Set(absl::string_view, absl::string_view) override { return gone_; }
  absl::StatusOr<std::optional<std::string>> Get(absl::string_view) override { return gone_; }
  absl::StatusOr<std::string> Await(absl::string_view, absl::string_view, absl::Duration) override {
    return gone_;
  }
  absl::StatusOr<std::vector<std::string>> Gather(std::string, absl::Duration) override {
    return gone_;
  }
  absl::StatusOr<std::vector<Rank>> GoneRanks() override { return gone_; }

 private:
  const absl::Status gone_ = absl::UnavailableError("rank 0 is gone: its connection has ended");
};

TEST(RollCallOverJob, WithoutRankZeroItIsNamedWithTheCollective) {
  JobWithoutRankZero job;
  const auto roll_call = MakeRollCallOverJob(job);
  roll_call->Answer(Rank{3}, kThree, 0, AllReduce(8, 77));
  const absl::Status why = roll_call->Explain(Rank{3}, kThree, 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(why)) << why;
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("rank 3 waits for all_reduce of 8"), HasSubstr("label 77"),
                    HasSubstr("position 0"), HasSubstr("rank 0 is gone")));
}

}  // namespace
}  // namespace shardproof
