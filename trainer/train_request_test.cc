#include "trainer/train_request.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

absl::StatusOr<TrainRequest> Parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"zero_train"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseTrainRequest(static_cast<int>(argv.size()), argv.data());
}

std::string Error(const std::vector<std::string>& arguments) {
  return std::string(Parse(arguments).status().message());
}

TEST(ParseTrainRequest, TakesOneModeRow) {
  const absl::StatusOr<TrainRequest> request =
      Parse({"--model=mlp:8x16", "--world_size=2", "--mode=full_shard/backward_post",
             "--layout=rows", "--steps=10", "--engine=accounting", "--format=json"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(ModeRowName(request->run.sharding), "full_shard/backward_post");
  EXPECT_EQ(request->run.sharding.layout, LayoutKind::kRows);
  EXPECT_EQ(request->run.sharding.world_size.value, 2);
  EXPECT_EQ(request->run.data.steps, 10);
  EXPECT_EQ(request->engine.engine, EngineKind::kAccounting);
  EXPECT_EQ(request->format, TrainFormat::kJson);
}

TEST(ParseTrainRequest, ObservesOnlyWhenAsked) {
  EXPECT_EQ(Parse({"--model=mlp:8x16", "--mode=zero2"})->observe, "");
  EXPECT_EQ(Parse({"--model=mlp:8x16", "--mode=zero2", "--observe=run.jsonl"})->observe,
            "run.jsonl");
}

TEST(ParseTrainRequest, AcceptsAnAliasThatMeansOneRow) {
  const absl::StatusOr<TrainRequest> request = Parse({"--model=mlp:8x16", "--mode=ddp"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->run.sharding.mode, Mode::kReplicated);
}

TEST(ParseTrainRequest, NamesTheRowsOfAModeThatHasSeveral) {
  EXPECT_THAT(Error({"--model=mlp:8x16", "--mode=full_shard"}),
              AllOf(HasSubstr("--mode=full_shard"), HasSubstr("full_shard/backward_pre, "),
                    HasSubstr("full_shard/none")));
}

TEST(ParseTrainRequest, TakesAWholeRunInsteadOfFlags) {
  const absl::StatusOr<TrainRequest> request =
      Parse({"--run=model=mlp:8x16;mode=zero2;world_size=3;steps=2"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->run.sharding.mode, Mode::kZero2);
  EXPECT_EQ(request->run.data.steps, 2);
  EXPECT_THAT(Error({"--run=model=mlp:8x16;mode=zero2", "--mode=zero2"}),
              HasSubstr("leave out --mode"));
}

TEST(ParseTrainRequest, NamesWhatIsWrong) {
  EXPECT_THAT(Error({"--model=mlp:8x16"}), HasSubstr("--mode is missing"));
  EXPECT_THAT(Error({"--mode=zero2"}), HasSubstr("--model is missing"));
  EXPECT_THAT(Error({"--model=mlp:8x16", "--mode=zero9"}), HasSubstr("'zero9'"));
  EXPECT_THAT(Error({"--model=mlp:8x16", "--mode=zero2", "--format=csv"}),
              HasSubstr("--format=csv"));
  EXPECT_THAT(Error({"--model=mlp:8x16", "--mode=zero2", "--engine=tpu"}), HasSubstr("'tpu'"));
  EXPECT_THAT(Error({"--model=mlp:8x16", "--mode=zero2", "--require=all"}),
              HasSubstr("unknown flag --require"));
}

TEST(ParseTrainRequest, OnlyABenchmarkTakesSeveralModes) {
  EXPECT_FALSE(Parse({"--model=mlp:8x16", "--mode=zero2"})->bench.has_value());
  const absl::StatusOr<TrainRequest> request =
      Parse({"--model=mlp:8x16", "--mode=zero2,replicated", "--engine=cuda", "--bench",
             "--bench_steps=7", "--warmup_steps=3", "--tf32"});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(request->bench.has_value());
  EXPECT_EQ(request->bench->runs.size(), 2u);
  EXPECT_EQ(request->bench->engine.engine, EngineKind::kCuda);
  EXPECT_TRUE(request->bench->engine.tf32);
  EXPECT_EQ(request->bench->bench_steps, 7);
  EXPECT_EQ(request->bench->warmup_steps, 3);
  EXPECT_FALSE(request->bench->table);
  EXPECT_EQ(
      Parse({"--model=mlp:8x16", "--mode=all", "--engine=cuda", "--bench"})->bench->runs.size(),
      8u);
  EXPECT_TRUE(
      Parse({"--model=mlp:8x16", "--mode=zero2", "--engine=cuda", "--bench", "--format=table"})
          ->bench->table);
  EXPECT_THAT(Error({"--model=mlp:8x16", "--mode=zero2", "--bench"}),
              AllOf(HasSubstr("--engine=cpu"), HasSubstr("cuda or cuda_shared")));
  EXPECT_THAT(Error({"--model=mlp:8x16", "--engine=cuda", "--bench"}),
              HasSubstr("--mode is missing"));
}

absl::StatusOr<TrainRequest> ParseLaunched(Launcher launcher, int32_t ranks,
                                           const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"zero_train", "--model=mlp:2x8", "--mode=zero2"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  LaunchEnvironment launch;
  launch.launcher = launcher;
  launch.world_size = WorldSize{ranks};
  return ParseTrainRequest(static_cast<int>(argv.size()), argv.data(), launch);
}

TEST(ParseTrainRequest, HasAsManyRanksAsTheLauncherHasStarted) {
  const absl::StatusOr<TrainRequest> launched = ParseLaunched(Launcher::kMpirun, 3, {});
  ASSERT_TRUE(launched.ok()) << launched.status();
  EXPECT_EQ(launched->run.sharding.world_size.value, 3);
  EXPECT_TRUE(ParseLaunched(Launcher::kMpirun, 3, {"--world_size=3"}).ok());
  EXPECT_TRUE(ParseLaunched(Launcher::kTorchrun, 2, {"--engine=cuda"}).ok());
  EXPECT_THAT(
      std::string(ParseLaunched(Launcher::kMpirun, 3, {"--world_size=4"}).status().message()),
      AllOf(HasSubstr("--world_size=4"), HasSubstr("mpirun has started 3")));
}

TEST(ParseTrainRequest, RefusesEnginesThatCannotRunInTheProcessesStarted) {
  const auto error = [](Launcher launcher, const char* engine) {
    return std::string(ParseLaunched(launcher, 2, {engine}).status().message());
  };
  EXPECT_THAT(error(Launcher::kTorchrun, "--engine=cpu"),
              AllOf(HasSubstr("--engine=cpu under torchrun"), HasSubstr("mpirun")));
  for (const char* engine :
       {"--engine=accounting", "--engine=provenance", "--engine=cuda_shared"}) {
    for (const Launcher launcher : {Launcher::kMpirun, Launcher::kTorchrun}) {
      EXPECT_THAT(error(launcher, engine),
                  AllOf(HasSubstr(engine), HasSubstr("all ranks in one process")));
      EXPECT_EQ(error(Launcher::kNone, engine), "");
    }
  }
}

TEST(ParseTrainRequest, TakesTheFlagsOfGpusAndOfWaiting) {
  const absl::StatusOr<TrainRequest> request =
      Parse({"--model=mlp:8x16", "--mode=zero2", "--engine=cuda", "--tf32", "--timeout_s=7"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->engine.engine, EngineKind::kCuda);
  EXPECT_TRUE(request->engine.tf32);
  EXPECT_EQ(request->engine.timeout, absl::Seconds(7));
  EXPECT_EQ(Parse({"--model=mlp:8x16", "--mode=zero2"})->engine.timeout, absl::Seconds(120));
  EXPECT_THAT(Error({"--model=mlp:8x16", "--mode=zero2", "--tf32"}),
              AllOf(HasSubstr("--tf32 with --engine=cpu"), HasSubstr("--engine=cuda")));
  EXPECT_THAT(Error({"--model=mlp:8x16", "--mode=zero2", "--timeout_s=0"}),
              HasSubstr("--timeout_s=0"));
}

TEST(ParseTrainRequest, HelpNeedsNothingElse) {
  const absl::StatusOr<TrainRequest> request = Parse({"--help"});
  ASSERT_TRUE(request.ok());
  EXPECT_THAT(request->help, AllOf(HasSubstr("--mode"), HasSubstr("--engine=cpu")));
}

}  // namespace
}  // namespace shardproof
