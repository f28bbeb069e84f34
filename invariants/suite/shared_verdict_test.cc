#include "invariants/suite/shared_verdict.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using testing::HasSubstr;

// What the ranks of a job in one process share.
struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
};

class BoardJob : public Job {
 public:
  BoardJob(Board& board, int32_t rank, int32_t ranks) : board_(board), rank_(rank), ranks_(ranks) {}
  Rank rank() const override { return Rank{rank_}; }
  WorldSize world_size() const override { return WorldSize{ranks_}; }
  absl::Status Set(absl::string_view key, absl::string_view value) override {
    const std::lock_guard<std::mutex> lock(board_.mutex);
    board_.values[std::string(key)] = std::string(value);
    board_.changed.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(absl::string_view) override {
    return absl::UnimplementedError("unused");
  }
  absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who,
                                    absl::Duration timeout) override {
    std::unique_lock<std::mutex> lock(board_.mutex);
    const auto is_there = [&] { return board_.values.count(std::string(key)) == 1; };
    if (!board_.changed.wait_for(lock, absl::ToChronoMilliseconds(timeout), is_there)) {
      return absl::DeadlineExceededError(absl::StrCat(who, " has not set ", key));
    }
    return board_.values[std::string(key)];
  }
  absl::StatusOr<std::vector<std::string>> Gather(std::string bytes,
                                                  absl::Duration timeout) override {
    const auto key = [&](int32_t rank) { return absl::StrCat("gather/", gathers_, "/", rank); };
    const absl::Status set = Set(key(rank_), bytes);
    std::vector<std::string> all;
    for (int32_t rank = 0; rank_ == 0 && rank < ranks_; ++rank) {
      absl::StatusOr<std::string> one = Await(key(rank), absl::StrCat("rank ", rank), timeout);
      if (!one.ok()) return one.status();
      all.push_back(*std::move(one));
    }
    ++gathers_;
    return all;
  }
  absl::StatusOr<std::vector<Rank>> GoneRanks() override {
    return absl::UnimplementedError("unused");
  }

 private:
  Board& board_;
  const int32_t rank_;
  const int32_t ranks_;
  int32_t gathers_ = 0;
};

EngineVerdict Failing(const std::string& cause) {
  return {.passes = false,
          .cause = cause,
          .headline = "FAILS " + cause,
          .details = "  rule of " + cause + "\n"};
}

// What each rank goes on with, case by case: [rank][case].
std::vector<std::vector<EngineVerdict>> Shared(
    const std::vector<std::vector<EngineVerdict>>& found) {
  Board board;
  std::vector<std::vector<EngineVerdict>> decided(found.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      BoardJob job(board, static_cast<int32_t>(rank), static_cast<int32_t>(found.size()));
      SharedVerdicts verdicts(job, absl::Seconds(60));
      for (const EngineVerdict& mine : found[rank]) {
        const absl::StatusOr<EngineVerdict> shared = verdicts.Share(mine);
        EXPECT_TRUE(shared.ok()) << shared.status();
        if (shared.ok()) decided[rank].push_back(*shared);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return decided;
}

TEST(SharedVerdicts, EveryRankGoesOnWithRankZerosCaseByCase) {
  const auto decided = Shared({{{}, Failing("padding"), {}}, {{}, {}, {}}, {{}, {}, {}}});
  for (const std::vector<EngineVerdict>& rank : decided) {
    ASSERT_EQ(rank.size(), 3u);
    EXPECT_TRUE(rank[0].passes);
    EXPECT_EQ(rank[0].headline, "pass");
    EXPECT_FALSE(rank[1].passes);
    EXPECT_EQ(rank[1].cause, "padding");
    EXPECT_EQ(rank[1].headline, "FAILS padding");
    EXPECT_EQ(rank[1].details, "  rule of padding\n");
    EXPECT_TRUE(rank[2].passes);
  }
}

TEST(SharedVerdicts, AFailureElsewhereIsOneEverywhereAndNamesItsRank) {
  const auto decided = Shared({{{}}, {{}}, {Failing("liveness")}, {Failing("padding")}});
  for (const std::vector<EngineVerdict>& rank : decided) {
    EXPECT_FALSE(rank[0].passes);
    EXPECT_EQ(rank[0].cause, "liveness");
    EXPECT_EQ(rank[0].headline, "rank 2: FAILS liveness");
  }
}

TEST(SharedVerdicts, BadInputStaysBadInput) {
  EngineVerdict refused = Failing("refused");
  refused.is_bad_input = true;
  const auto decided = Shared({{refused}, {refused}});
  for (const std::vector<EngineVerdict>& rank : decided) EXPECT_TRUE(rank[0].is_bad_input);
}

TEST(SharedVerdicts, ARankThatDoesNotComeIsAnError) {
  Board board;
  BoardJob zero(board, 0, 2);
  SharedVerdicts of_zero(zero, absl::Milliseconds(10));
  const absl::Status passed = of_zero.Share({}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(passed)) << passed;
  EXPECT_THAT(std::string(passed.message()), HasSubstr("rank 1 has not"));
  BoardJob one(board, 1, 2);
  SharedVerdicts of_one(one, absl::Milliseconds(10));
  const absl::Status waited = of_one.Share({}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(waited)) << waited;
  EXPECT_THAT(std::string(waited.message()), HasSubstr("rank 0 has not"));
}

TEST(SharedVerdicts, AFailureBesideARankThatDoesNotComeIsToldAndDoesNotWaitForIt) {
  Board board;
  BoardJob zero(board, 0, 2);
  const absl::Time begin = absl::Now();
  const absl::Status status = SharedVerdicts(zero, absl::Hours(1)).Share(Failing("error")).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("rank 1 has not"), HasSubstr("FAILS error")));
  EXPECT_LT(absl::Now() - begin, absl::Minutes(1));
}

}  // namespace
}  // namespace shardproof
