#include "invariants/suite/trainer_search.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"

namespace shardproof {
namespace {

SearchOptions Options() {
  SearchOptions options;
  options.limits.modes = {Mode::kZero2};
  options.limits.world_sizes = {1, 2, 3};
  options.seed = 5;
  options.max_cases = 40;
  options.max_draws = 400;
  return options;
}

TEST(TrainerSearchTest, EqualSeedsDrawEqualRuns) {
  const auto draw = [](uint64_t seed) {
    std::vector<std::string> runs;
    SearchOptions options = Options();
    options.seed = seed;
    SearchCases(options, [&](const RunDescription& run) {
      runs.push_back(PrintRunJson(run));
      return JudgedCase();
    });
    return runs;
  };
  EXPECT_EQ(draw(5).size(), 40u);
  EXPECT_EQ(draw(5), draw(5));
  EXPECT_NE(draw(5), draw(6));
}

TEST(TrainerSearchTest, StaysWithinItsLimits) {
  const SearchResult result = SearchCases(Options(), [](const RunDescription& run) {
    EXPECT_EQ(run.sharding.mode, Mode::kZero2);
    EXPECT_LE(run.sharding.world_size.value, 3);
    return JudgedCase();
  });
  EXPECT_EQ(result.cases, 40);
  EXPECT_FALSE(result.failed);
}

TEST(TrainerSearchTest, RefusedRunsAreReplacedAndCounted) {
  const SearchResult result = SearchCases(Options(), [](const RunDescription& run) -> JudgedCase {
    if (run.sharding.world_size.value != 2) return {CaseOutcome::kRefused, "not two"};
    return {};
  });
  EXPECT_EQ(result.cases, 40);
  EXPECT_GT(result.refused, 0);
  EXPECT_EQ(result.last_refusal, "not two");
}

TEST(TrainerSearchTest, EndsWhenEverythingIsRefused) {
  const SearchResult result = SearchCases(Options(), [](const RunDescription&) -> JudgedCase {
    return {CaseOutcome::kRefused, "never"};
  });
  EXPECT_EQ(result.cases, 0);
  EXPECT_EQ(result.refused, 400);
}

// Smaller runs fail too, for another reason; the search does not end there.
TEST(TrainerSearchTest, ShrinkingKeepsToTheFault) {
  const SearchResult result = SearchCases(Options(), [](const RunDescription& run) -> JudgedCase {
    if (run.sharding.world_size.value == 3) return {CaseOutcome::kFailed, "three ranks", "three"};
    if (run.sharding.world_size.value == 1) return {CaseOutcome::kFailed, "one rank", "one"};
    return {};
  });
  ASSERT_TRUE(result.failed);
  EXPECT_EQ(result.failure, result.run.sharding.world_size.value == 3 ? "three ranks" : "one rank");
  EXPECT_TRUE(result.shrunk_completely);
}

TEST(TrainerSearchTest, AFailureIsShrunkToTheSmallestRun) {
  const SearchResult result = SearchCases(Options(), [](const RunDescription& run) -> JudgedCase {
    const bool fails = run.sharding.world_size.value > 1;
    return fails ? JudgedCase{CaseOutcome::kFailed, "several ranks", "several"} : JudgedCase();
  });
  ASSERT_TRUE(result.failed);
  EXPECT_EQ(result.run.sharding.world_size.value, 2);
  EXPECT_EQ(result.run.data.num_micro_batches, 1);
  EXPECT_LE(result.run.model.tensors.size(), 2u);
}

TEST(TrainerSearchTest, NoCaseBeginsAfterTheDeadline) {
  SearchOptions options = Options();
  options.deadline = absl::InfinitePast();
  const SearchResult result =
      SearchCases(options, [](const RunDescription&) { return JudgedCase(); });
  EXPECT_EQ(result.cases, 0);
}

}  // namespace
}  // namespace shardproof
