#include "property_tests/found_case.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "property_tests/replay_file.h"
#include "property_tests/summing_trainer.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::HasSubstr;
using testing::Not;

FoundCase Example() {
  FoundCase found;
  found.run = *ParseRun("model=mlp:3,2;world_size=4;mode=zero2", ImportModel);
  found.verdict = JudgeCase(found.run, {.make_parts = SummingParts});
  found.found_by = "a test";
  return found;
}

TEST(ReportFoundCase, TellsWhatWhereAndHowToRepeatIt) {
  const std::string text = ReportFoundCase(Example(), testing::TempDir());
  EXPECT_THAT(text, HasSubstr("zero2 on 4 ranks, engine cpu: FAILS numeric_equivalence"));
  EXPECT_THAT(text, HasSubstr("  rule "));
  EXPECT_THAT(text, HasSubstr("found by a test\n"));
  // The fault is not in what other engines run here.
  EXPECT_THAT(text, HasSubstr("engines: cpu FAILS numeric_equivalence"));
  EXPECT_THAT(text, HasSubstr("; provenance pass; accounting pass\n"));
  EXPECT_THAT(text, HasSubstr("\nfile: "));
  EXPECT_THAT(text, HasSubstr("\nreplay: ci/bazel run "));
}

TEST(ReportFoundCase, WhatGpusFoundStandsBeforeWhatOthersSay) {
  FoundCase found = Example();
  found.verdict.engine = EngineKind::kCuda;
  const std::string text = ReportFoundCase(found, "");
  EXPECT_THAT(text, HasSubstr("zero2 on 4 ranks, engine cuda: FAILS numeric_equivalence"));
  EXPECT_THAT(text, HasSubstr("engines: cuda FAILS numeric_equivalence"));
  EXPECT_THAT(text, HasSubstr("; cpu pass; provenance pass; accounting pass\n"));
}

TEST(ReportFoundCase, WithoutAFolderThereIsNoFile) {
  EXPECT_THAT(ReportFoundCase(Example(), ""), Not(HasSubstr("file: ")));
}

TEST(ReportFoundCase, AFolderThatCannotBeWrittenIsTold) {
  EXPECT_THAT(ReportFoundCase(Example(), "/proc/nowhere"), HasSubstr("no file: /proc/nowhere/"));
}

TEST(WriteReplayFile, CanBeReadBack) {
  const absl::StatusOr<std::string> path = WriteReplayFile(Example(), testing::TempDir());
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, HasSubstr("cpu_numeric_equivalence_"));
  const absl::StatusOr<ReplayFile> replay = ReadReplayFile(*path, ImportModel);
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_EQ(replay->engine, EngineKind::kCpu);
  EXPECT_THAT(replay->found_by, testing::StartsWith("a test: FAILS numeric_equivalence"));
  EXPECT_EQ(PrintRun(replay->run), PrintRun(Example().run));
}

}  // namespace
}  // namespace shardproof
