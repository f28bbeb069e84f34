// Shapes as in collectives/communicator.h, on origins.
#include "trainer/engines/provenance_meeting.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

// Two ranks with one buffer of four elements each: rank r holds the gradients of elements 0 to 3
// of tensor 0, of which it contributed its own term.
class MeetTest : public ::testing::Test {
 protected:
  MeetTest() {
    for (int32_t rank = 0; rank < 2; ++rank) {
      buffers_[rank].emplace_back(4, Origin());
      const OriginRun run = {4, Gradient(0, {rank})};
      buffers_[rank][0].Write(0, {&run, 1});
      Op& op = ops_[rank];
      op.kind = OpKind::kCollective;
      op.collective = CollectiveKind::kAllReduce;
      op.group = {0, 1, 2};
      op.elements = 4;
      op.send = op.recv = {0, {0, 4}};
    }
  }

  Origin Gradient(int64_t element, const std::vector<int32_t>& ranks) {
    Origin origin;
    origin.kind = OriginKind::kGradient;
    origin.tensor = 0;
    origin.element = element;
    origin.terms = arithmetic_.NoTerms();
    for (int32_t rank : ranks) {
      OriginTerm term;
      term.rank = rank;
      origin.terms = arithmetic_.SumOfTerms(origin.terms, arithmetic_.OneTerm(term));
    }
    return origin;
  }

  absl::Status MeetAll() {
    const Participant members[] = {{Rank{0}, 5, &ops_[0], &buffers_[0]},
                                   {Rank{1}, 6, &ops_[1], &buffers_[1]}};
    return Meet(members, arithmetic_);
  }
  void SetKind(CollectiveKind kind) {
    for (Op& op : ops_) op.collective = kind;
  }
  std::vector<OriginRun> Held(int32_t rank) const {
    std::vector<OriginRun> runs;
    buffers_[rank][0].Read({0, 4}, 0, runs);
    return runs;
  }
  using Runs = std::vector<OriginRun>;

  StepOrigins origins_;
  OriginArithmetic arithmetic_{&origins_};
  std::vector<OriginBuffer> buffers_[2];
  Op ops_[2];
};

TEST_F(MeetTest, AllReduceSumsInPlace) {
  ASSERT_TRUE(MeetAll().ok());
  EXPECT_EQ(Held(0), (Runs{{4, Gradient(0, {0, 1})}}));
  EXPECT_EQ(Held(1), Held(0));
}

TEST_F(MeetTest, ReduceScatterGivesEachItsPartOfTheSum) {
  SetKind(CollectiveKind::kReduceScatter);
  ASSERT_TRUE(MeetAll().ok());
  EXPECT_EQ(Held(0), (Runs{{2, Gradient(0, {0, 1})}, {2, Gradient(2, {0})}}));
  EXPECT_EQ(Held(1), (Runs{{2, Gradient(2, {0, 1})}, {2, Gradient(2, {1})}}));
}

TEST_F(MeetTest, AllGatherReadsEverySendBeforeItWrites) {
  SetKind(CollectiveKind::kAllGather);
  ops_[1].send.range.first = 2;
  ASSERT_TRUE(MeetAll().ok());
  EXPECT_EQ(Held(0), (Runs{{2, Gradient(0, {0})}, {2, Gradient(2, {1})}}));
  EXPECT_EQ(Held(1), Held(0));
}

TEST_F(MeetTest, BroadcastGivesTheRootsValues) {
  SetKind(CollectiveKind::kBroadcast);
  for (Op& op : ops_) op.root = 1;
  ASSERT_TRUE(MeetAll().ok());
  EXPECT_EQ(Held(0), (Runs{{4, Gradient(0, {1})}}));
}

TEST_F(MeetTest, DisagreementNamesBothRanksAndCalls) {
  ops_[1].elements = 2;
  const absl::Status status = MeetAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 calls all_reduce of 4 float32 elements over ranks 0, 1 (operation "
                        "5), rank 1 all_reduce of 2 float32 elements"));
}

TEST_F(MeetTest, CallsThatNoGroupCanServeAreErrors) {
  SetKind(CollectiveKind::kAllGather);
  for (Op& op : ops_) op.elements = 3;
  EXPECT_THAT(std::string(MeetAll().message()), HasSubstr("a multiple of the 2 ranks"));
  SetKind(CollectiveKind::kBroadcast);
  EXPECT_THAT(std::string(MeetAll().message()), HasSubstr("a root of the group"));
}

TEST_F(MeetTest, WhoIsStuckIsSaidOfEveryRank) {
  const Standing deadlock[] = {{Rank{0}, 5, &ops_[0], -1}, {Rank{1}, 9, nullptr, -1}};
  absl::Status status = StuckError(2, deadlock);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "deadlock in step 2: rank 0 waits in all_reduce of 4 float32 elements over ranks 0, 1 "
            "(operation 5); rank 1 has ended its step");
  ops_[1].group = {0, 1, 3};
  const Standing groups[] = {{Rank{0}, 5, &ops_[0], -1}, {Rank{1}, 9, &ops_[1], -1}};
  EXPECT_EQ(StuckError(2, groups).code(), absl::StatusCode::kFailedPrecondition);
  const Standing waits[] = {{Rank{0}, 5, &ops_[0], 8}};
  EXPECT_THAT(std::string(StuckError(0, waits).message()),
              HasSubstr("rank 0 at operation 5 waits for operation 8"));
}

}  // namespace
}  // namespace shardproof
