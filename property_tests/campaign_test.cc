#include "property_tests/campaign.h"

#include <atomic>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::HasSubstr;

CampaignOptions Options(int64_t cases) {
  CampaignOptions options;
  options.seed = 11;
  options.max_cases = cases;
  options.judge = [](const RunDescription&, EngineKind engine) {
    return EngineVerdict{.engine = engine};
  };
  return options;
}

// Two ranks with a tied tensor: rare enough that threads race for the first.
EngineVerdict FailsOnTies(const RunDescription& run, EngineKind engine) {
  for (const TensorSpec& tensor : run.model.tensors) {
    if (run.sharding.world_size.value < 2 || tensor.aliases.empty()) continue;
    return {.engine = engine, .passes = false, .cause = "ties", .headline = "FAILS ties"};
  }
  return {.engine = engine};
}

CampaignResult Finished(const CampaignOptions& options) {
  absl::StatusOr<CampaignResult> result = RunCampaign(options);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

TEST(Campaign, IsTheSameOnAnyNumberOfThreads) {
  CampaignOptions options = Options(500);
  const CampaignResult alone = Finished(options);
  EXPECT_EQ(alone.cases, 500);
  EXPECT_FALSE(alone.found.has_value());
  options.jobs = 4;
  const CampaignResult together = Finished(options);
  EXPECT_EQ(together.cases, 500);
  EXPECT_EQ(together.coverage.Table(), alone.coverage.Table());
  EXPECT_EQ(together.coverage.PairsSeen(), alone.coverage.PairsSeen());
}

TEST(Campaign, AnotherSeedDrawsOtherCases) {
  CampaignOptions options = Options(200);
  const std::string first = Finished(options).coverage.Table();
  options.seed = 12;
  EXPECT_NE(Finished(options).coverage.Table(), first);
}

TEST(Campaign, StopsAtTheFirstFailureAndShrinksIt) {
  CampaignOptions options = Options(100000);
  options.judge = FailsOnTies;
  const CampaignResult alone = Finished(options);
  ASSERT_TRUE(alone.found.has_value());
  EXPECT_EQ(alone.cases, alone.found_index + 1);
  EXPECT_TRUE(alone.shrunk_to_the_end);
  EXPECT_THAT(PrintRun(alone.found->run),
              testing::MatchesRegex("model=(probe:1,1|mlp:1,1,1);ties=[^;]*;world_size=2;"
                                    "bucket_cap_bytes=4;weight_decay=0;micro_batch_size=1"));
  EXPECT_THAT(alone.found->found_by, HasSubstr("fuzz --seed=11, case "));
  options.jobs = 4;
  const CampaignResult together = Finished(options);
  ASSERT_TRUE(together.found.has_value());
  EXPECT_EQ(together.found_index, alone.found_index);
  EXPECT_EQ(PrintRun(together.found->run), PrintRun(alone.found->run));
}

// A smaller case that fails in another way does not count.
TEST(Campaign, ShrinkingKeepsToTheFaultThatWasFound) {
  CampaignOptions options = Options(100000);
  options.judge = [](const RunDescription& run, EngineKind engine) {
    EngineVerdict verdict = FailsOnTies(run, engine);
    if (!verdict.passes && run.sharding.world_size.value == 2) verdict.cause = "two ranks";
    return verdict;
  };
  // Until the first that is found has more than two ranks.
  for (CampaignResult result = Finished(options);; result = Finished(options)) {
    ASSERT_TRUE(result.found.has_value());
    if (result.found->verdict.cause == "ties") {
      EXPECT_EQ(result.found->run.sharding.world_size.value, 3);
      break;
    }
    ++options.seed;
  }
}

TEST(Campaign, EveryEngineJudgesEveryCase) {
  CampaignOptions options = Options(50);
  options.engines = AllEngines();
  std::atomic<int> calls{0};
  options.judge = [&calls](const RunDescription&, EngineKind engine) {
    ++calls;
    return EngineVerdict{.engine = engine};
  };
  Finished(options);
  EXPECT_EQ(calls, 150);
}

TEST(Campaign, EndsInTime) {
  CampaignOptions options = Options(INT64_MAX);
  options.duration = absl::Milliseconds(300);
  options.jobs = 2;
  const CampaignResult result = Finished(options);
  EXPECT_GT(result.cases, 0);
  EXPECT_LT(result.seconds, 30);
}

TEST(Campaign, ShowsProgress) {
  CampaignOptions options = Options(INT64_MAX);
  options.duration = absl::Milliseconds(2500);
  std::vector<std::string> lines;
  options.on_progress = [&lines](const CampaignProgress& progress) {
    lines.push_back(ProgressText(progress));
  };
  Finished(options);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], HasSubstr(" cases, "));
  EXPECT_THAT(lines[0], HasSubstr(" pairs"));
}

TEST(Campaign, TheTableHasSpeedAndCoverage) {
  const std::string table = CampaignTable(Finished(Options(30)));
  EXPECT_THAT(table, HasSubstr("cases     30 in "));
  EXPECT_THAT(table, HasSubstr("per job of 1\n"));
  EXPECT_THAT(table, HasSubstr("  mode "));
  EXPECT_THAT(table, HasSubstr("across_units "));
}

// The trainer as it is.
TEST(Campaign, TheTrainerPasses) {
  CampaignOptions options = Options(60);
  options.judge = nullptr;
  const CampaignResult result = Finished(options);
  EXPECT_FALSE(result.found.has_value())
      << ReportFoundCase(*result.found, UndeclaredOutputsFolder());
}

}  // namespace
}  // namespace shardproof
