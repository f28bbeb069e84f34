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
  EXPECT_EQ(request->engine, EngineKind::kAccounting);
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

TEST(ParseTrainRequest, HelpNeedsNothingElse) {
  const absl::StatusOr<TrainRequest> request = Parse({"--help"});
  ASSERT_TRUE(request.ok());
  EXPECT_THAT(request->help, AllOf(HasSubstr("--mode"), HasSubstr("--engine=cpu")));
}

}  // namespace
}  // namespace shardproof
