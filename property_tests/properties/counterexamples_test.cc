// Every case of fixtures/counterexamples on every engine: what was found once stays found.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "property_tests/judge_case.h"
#include "property_tests/replay_file.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

std::vector<std::string> Files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("fixtures/counterexamples")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class Counterexample : public testing::TestWithParam<std::string> {};

TEST_P(Counterexample, PassesOnEveryEngine) {
  const absl::StatusOr<ReplayFile> replay = ReadReplayFile(GetParam(), ImportModel);
  ASSERT_TRUE(replay.ok()) << replay.status();
  for (const EngineKind engine : AllEngines()) {
    const EngineVerdict verdict = JudgeCase(replay->run, {.engine = engine});
    EXPECT_TRUE(verdict.passes) << Name(engine) << ": " << verdict.headline << "\n"
                                << verdict.details << ReplayLine(replay->run, engine);
  }
}

TEST_P(Counterexample, IsWrittenAsItIsRead) {
  const absl::StatusOr<ReplayFile> replay = ReadReplayFile(GetParam(), ImportModel);
  ASSERT_TRUE(replay.ok()) << replay.status();
  const absl::StatusOr<ReplayFile> again = ParseReplay(PrintReplay(*replay), ImportModel);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintRunJson(again->run), PrintRunJson(replay->run));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Counterexample, testing::ValuesIn(Files()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return std::filesystem::path(info.param).stem().string();
                         });

TEST(Counterexamples, AreThere) { EXPECT_GE(Files().size(), 8u); }

}  // namespace
}  // namespace shardproof
