#include "property_tests/random_cases.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "property_tests/found_case.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "property_tests/replay_file.h"
#include "property_tests/summing_trainer.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::HasSubstr;

TEST(CheckRandomCases, SaysNothingWhenAllPass) {
  EXPECT_EQ(CheckRandomCases({.name = "everything passes",
                              .judge = [](const RunDescription&) { return EngineVerdict(); }}),
            "");
}

// From the draw to the file that is left behind.
TEST(CheckRandomCases, AFaultEndsInTheSmallestCase) {
  const std::string text = CheckRandomCases(
      {.name = "no trainer sums", .judge = [](const RunDescription& run) {
         return JudgeCase(run, {.checks = {"numeric_equivalence"}, .make_parts = SummingParts});
       }});
  EXPECT_THAT(text, HasSubstr("FAILS numeric_equivalence"));
  EXPECT_THAT(text, HasSubstr("found by 'no trainer sums' with RC_PARAMS="));
  EXPECT_THAT(text, HasSubstr("engines: cpu FAILS numeric_equivalence; provenance pass; "
                              "accounting pass"));
  EXPECT_THAT(text, HasSubstr("replay: ci/bazel run "));
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(UndeclaredOutputsFolder())) {
    if (file.path().extension() != ".json") continue;
    ++files;
    const absl::StatusOr<ReplayFile> replay = ReadReplayFile(file.path(), ImportModel);
    ASSERT_TRUE(replay.ok()) << replay.status();
    EXPECT_THAT(PrintRun(replay->run),
                testing::AnyOf(testing::StartsWith("model=mlp:1,1;world_size=2;"),
                               testing::StartsWith("model=mlp:1,1;bucket_cap_bytes=4;"),
                               testing::StartsWith("model=probe:1,1;world_size=2;")))
        << PrintRun(replay->run);
  }
  EXPECT_EQ(files, 1);
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  shardproof::SetRapidCheckDefaults(/*max_success=*/40);
  return RUN_ALL_TESTS();
}
