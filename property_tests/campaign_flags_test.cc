#include "property_tests/campaign_flags.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "property_tests/replay_file.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::HasSubstr;

absl::StatusOr<CampaignOptions> Made(std::vector<const char*> arguments, bool gpus = false) {
  arguments.insert(arguments.begin(), "fuzz");
  CampaignFlags raw;
  raw.duration = "1m";
  raw.jobs = 4;
  raw.gpus = gpus;
  Flags flags("a test");
  DeclareCampaignFlags(raw, flags);
  const absl::Status parsed = flags.Parse(static_cast<int>(arguments.size()), arguments.data());
  if (!parsed.ok()) return parsed;
  return MakeCampaign(raw, flags);
}

TEST(MakeCampaign, TakesWhatIsGiven) {
  const absl::StatusOr<CampaignOptions> options =
      Made({"--duration=90s", "--seed=7", "--engine=all", "--jobs=3", "--max_cases=12"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->duration, absl::Seconds(90));
  EXPECT_EQ(options->seed, 7u);
  EXPECT_EQ(options->engines.size(), AllEngines().size());
  EXPECT_EQ(options->jobs, 3);
  EXPECT_EQ(options->max_cases, 12);
}

TEST(MakeCampaign, ANumberOfCasesIsABoundToo) {
  EXPECT_EQ(Made({})->duration, absl::Minutes(1));
  EXPECT_EQ(Made({"--max_cases=12"})->duration, absl::InfiniteDuration());
}

// Of 63 bits: none of 64 draws has bit 63, and each bit below it is set in one and clear in
// another.
TEST(MakeCampaign, DrawsAFreshSeed) {
  uint64_t set = 0;
  uint64_t clear = 0;
  for (int draw = 0; draw < 64; ++draw) {
    const uint64_t seed = Made({})->seed;
    set |= seed;
    clear |= ~seed;
  }
  EXPECT_EQ(set, uint64_t{INT64_MAX});
  EXPECT_EQ(clear, UINT64_MAX);
}

TEST(DeclareCampaignFlags, HelpShowsDefaultsThatPeopleRead) {
  CampaignFlags raw;
  Flags flags("a test");
  DeclareCampaignFlags(raw, flags);
  EXPECT_THAT(flags.Help(), HasSubstr("--seed=fresh "));
  EXPECT_THAT(flags.Help(), HasSubstr("--max_cases=unlimited "));
}

TEST(MakeCampaign, OnGpusHasOneJob) {
  EXPECT_EQ(Made({}, /*gpus=*/true)->jobs, 4);
  const absl::StatusOr<CampaignOptions> options = Made({"--engine=cuda_shared"}, /*gpus=*/true);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->jobs, 1);
  EXPECT_EQ(options->engines, std::vector<EngineKind>{EngineKind::kCudaShared});
  EXPECT_EQ(Made({"--engine=cuda", "--jobs=1"}, /*gpus=*/true)->jobs, 1);
  EXPECT_THAT(
      std::string(Made({"--engine=cuda", "--jobs=2"}, /*gpus=*/true).status().message()),
      HasSubstr("--jobs=2 with --engine=cuda: cases on GPUs run one after the other; accepted is"));
  EXPECT_THAT(std::string(Made({"--engine=cuda"}).status().message()), HasSubstr("for GPUs"));
}

TEST(MakeCampaign, RefusesBadValues) {
  EXPECT_THAT(std::string(Made({"--duration=inf seconds"}).status().message()),
              HasSubstr("--duration=inf seconds is refused; accepted: a time such as"));
  EXPECT_THAT(std::string(Made({"--engine=gpu"}).status().message()),
              HasSubstr("engine 'gpu' is unknown"));
}

// The program's end of a campaign that finds something: exit code 1, and a file to replay.
TEST(RunCampaignProgram, LeavesAReplayFileWhenACaseFails) {
  const std::string folder = std::filesystem::path(testing::TempDir()) / "found";
  CampaignOptions options;
  options.max_cases = 50;
  options.judge = [](const RunDescription& run, EngineKind engine) {
    if (run.sharding.world_size.value < 3) return EngineVerdict{.engine = engine};
    return EngineVerdict{
        .engine = engine, .passes = false, .cause = "size", .headline = "FAILS size"};
  };
  EXPECT_EQ(RunCampaignProgram("fuzz", options, folder), 1);
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    files.push_back(file.path());
  }
  ASSERT_EQ(files.size(), 1u);
  const absl::StatusOr<ReplayFile> replay = ReadReplayFile(files[0], ImportModel);
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_EQ(replay->run.sharding.world_size.value, 3);
  EXPECT_THAT(replay->found_by, HasSubstr("fuzz --seed=1, case "));
  options.judge = [](const RunDescription&, EngineKind engine) {
    return EngineVerdict{.engine = engine};
  };
  EXPECT_EQ(RunCampaignProgram("fuzz", options, folder), 0);
}

}  // namespace
}  // namespace shardproof
