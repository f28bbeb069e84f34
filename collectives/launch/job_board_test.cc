#include "collectives/launch/job_board.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(JobBoardTest, RanksAreNamed) {
  EXPECT_EQ(RanksText({Rank{3}}), "rank 3");
  EXPECT_EQ(RanksText({Rank{1}, Rank{2}, Rank{5}}), "ranks 1, 2, 5");
  const std::vector<Rank> many(1000, Rank{7});
  EXPECT_THAT(RanksText(many), HasSubstr("7, 7 and 936 more"));
}

TEST(JobBoardTest, TheLastValueCounts) {
  JobBoard board(WorldSize{2});
  EXPECT_EQ(board.Find("key"), nullptr);
  board.Set("key", "one");
  board.Set("key", "two");
  EXPECT_EQ(*board.Find("key"), "two");
  EXPECT_EQ(board.Find("ke"), nullptr);
}

TEST(JobBoardTest, AnAwaitGoesOnWhileSomebodyMaySetIt) {
  JobBoard board(WorldSize{4});
  board.MarkGone(Rank{1});
  // "rank 1" as part of other words, or of another number, is not that rank.
  for (const char* who : {"rank 2", "rank 11", "rank 1 or 2", "each rank", ""}) {
    EXPECT_FALSE(board.TryAwait(Rank{0}, "key", who).has_value()) << who;
  }
  const auto result = board.TryAwait(Rank{0}, "key", "rank 1");
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->status().code(), absl::StatusCode::kUnavailable);
  board.Set("key", "set after all");
  EXPECT_EQ(**board.TryAwait(Rank{0}, "key", "rank 1"), "set after all");
}

TEST(JobBoardTest, AnAwaitEndsWhenAllOthersAreGone) {
  JobBoard board(WorldSize{3});
  board.MarkGone(Rank{1});
  EXPECT_FALSE(board.TryAwait(Rank{0}, "key", "somebody").has_value());
  board.MarkGone(Rank{2});
  const auto result = board.TryAwait(Rank{0}, "key", "somebody");
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Text(result->status()),
            "ranks 1, 2 are gone, and nobody has set \"key\", which somebody sets");
}

TEST(JobBoardTest, AnAwaitThatTimedOutNamesTheGone) {
  JobBoard board(WorldSize{3});
  EXPECT_EQ(Text(board.AwaitTimedOut("key", "rank 2", absl::Seconds(5))),
            "\"key\", which rank 2 sets, was not set within 5s");
  board.MarkGone(Rank{1});
  EXPECT_EQ(Text(board.AwaitTimedOut("key", "rank 2", absl::Seconds(5))),
            "\"key\", which rank 2 sets, was not set within 5s; rank 1 is gone");
}

TEST(JobBoardTest, AGatherNeedsAllAndIsInRankOrder) {
  JobBoard board(WorldSize{3});
  EXPECT_TRUE(board.Give(Rank{2}, 0, "c"));
  EXPECT_TRUE(board.Give(Rank{2}, 1, "f"));
  EXPECT_TRUE(board.Give(Rank{0}, 0, "a"));
  EXPECT_FALSE(board.TryGather().has_value());
  EXPECT_TRUE(board.Give(Rank{1}, 0, ""));
  EXPECT_THAT(**board.TryGather(), ElementsAre("a", "", "c"));
  EXPECT_FALSE(board.TryGather().has_value());
  EXPECT_TRUE(board.Give(Rank{0}, 1, "d"));
  EXPECT_TRUE(board.Give(Rank{1}, 1, "e"));
  EXPECT_THAT(**board.TryGather(), ElementsAre("d", "e", "f"));
}

TEST(JobBoardTest, AGatherFailsOnlyForTheGoneThatDidNotGive) {
  JobBoard board(WorldSize{4});
  board.Give(Rank{1}, 0, "b");
  board.MarkGone(Rank{1});
  EXPECT_FALSE(board.TryGather().has_value());
  board.MarkGone(Rank{3});
  const auto result = board.TryGather();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Text(result->status()), "rank 3 is gone and gave nothing to gather 0");
  // It has ended: what comes late is not for the next.
  EXPECT_FALSE(board.Give(Rank{2}, 0, "c"));
  EXPECT_EQ(board.sequence(), 1);
}

TEST(JobBoardTest, AGatherThatTimedOutNamesWhoDidNotGive) {
  JobBoard board(WorldSize{4});
  board.Give(Rank{0}, 0, "a");
  board.Give(Rank{2}, 0, "c");
  const absl::Status status = board.GatherTimedOut(absl::Seconds(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Text(status), "ranks 1, 3 gave nothing to gather 0 within 5s");
  EXPECT_FALSE(board.Give(Rank{1}, 0, "b"));
}

}  // namespace
}  // namespace shardproof
