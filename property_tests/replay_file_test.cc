#include "property_tests/replay_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

ReplayFile Example() {
  ReplayFile replay;
  replay.engine = EngineKind::kProvenance;
  replay.found_by = "a test, with \"quotes\"\nand a line";
  replay.run = *ParseRun(
      "model=probe:3,3,0x2;ties=t1:t0;units=0+2!,1;usage=1@rank:1;groups=0@weight_decay:0;"
      "world_size=2;mode=full_shard;clip_grad_norm=0.5",
      ImportModel);
  return replay;
}

std::string Error(const std::string& json) {
  const absl::StatusOr<ReplayFile> replay = ParseReplay(json, ImportModel);
  EXPECT_EQ(replay.status().code(), absl::StatusCode::kInvalidArgument) << json;
  const std::string message(replay.status().message());
  EXPECT_FALSE(absl::StrContains(message, "\n")) << message;
  return message;
}

std::string With(absl::string_view from, absl::string_view to) {
  const std::string json = PrintReplay(Example());
  EXPECT_TRUE(absl::StrContains(json, from)) << from;
  return absl::StrReplaceAll(json, {{from, to}});
}

TEST(Replay, SurvivesItsFile) {
  const std::string json = PrintReplay(Example());
  const absl::StatusOr<ReplayFile> again = ParseReplay(json, ImportModel);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->engine, EngineKind::kProvenance);
  EXPECT_EQ(again->found_by, Example().found_by);
  EXPECT_EQ(PrintRunJson(again->run), PrintRunJson(Example().run));
  EXPECT_EQ(PrintReplay(*again), json);
}

TEST(Replay, AModelMayBeText) {
  const absl::StatusOr<ReplayFile> replay = ParseReplay(
      R"({"schema": "shardproof.replay/1", "engine": "cpu", "found_by": "a person",
          "run": {"schema": "shardproof.run/1", "model": "mlp:2,3", "ties": "", "world_size": 2}})",
      ImportModel);
  // An empty list of ties is no list of ties.
  EXPECT_EQ(replay.status().code(), absl::StatusCode::kInvalidArgument);
  const absl::StatusOr<ReplayFile> right = ParseReplay(
      R"({"schema": "shardproof.replay/1", "engine": "cpu", "found_by": "a person",
          "run": {"schema": "shardproof.run/1", "model": "mlp:2,3", "world_size": 2}})",
      ImportModel);
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_EQ(right->run.sharding.world_size.value, 2);
}

TEST(Replay, RefusesAnotherVersion) {
  EXPECT_THAT(Error(With("shardproof.replay/1", "shardproof.replay/2")),
              HasSubstr("schema=\"shardproof.replay/2\" is refused; accepted: "
                        "\"shardproof.replay/1\""));
  EXPECT_THAT(Error(With("shardproof.run/1", "shardproof.run/7")),
              HasSubstr("run: schema=\"shardproof.run/7\" is refused"));
  EXPECT_THAT(Error(PrintRunJson(Example().run)), HasSubstr("shardproof.run/1"));
}

TEST(Replay, RefusesUnknownMissingAndRepeatedKeys) {
  EXPECT_THAT(Error(With("\"found_by\"", "\"found_bye\"")),
              HasSubstr("the key 'found_bye' is unknown; accepted: schema, engine, found_by, run"));
  EXPECT_THAT(Error(R"({"schema": "shardproof.replay/1", "engine": "cpu", "found_by": ""})"),
              HasSubstr("run is missing"));
  EXPECT_THAT(Error("{}"), HasSubstr("schema is missing"));
  EXPECT_THAT(
      Error(With("\"engine\": \"provenance\"", "\"engine\": \"cpu\", \"engine\": \"provenance\"")),
      HasSubstr("engine"));
  EXPECT_THAT(Error(With("\"world_size\"", "\"size_of_world\"")),
              HasSubstr("run: the key 'size_of_world' is unknown"));
}

TEST(Replay, RefusesBadValues) {
  EXPECT_THAT(Error(With("\"provenance\"", "\"abacus\"")),
              HasSubstr("engine 'abacus' is unknown; accepted: "));
  EXPECT_THAT(Error(With("\"provenance\"", "7")), HasSubstr("engine=7 is refused"));
  EXPECT_THAT(Error(With("\"world_size\": 2", "\"world_size\": -2")),
              HasSubstr("run: world_size is -2"));
  EXPECT_THAT(Error("[1, 2]"), HasSubstr("the document=[1,2] is refused; accepted: an object"));
  EXPECT_THAT(Error(R"({"schema": "shardproof.replay/1", "engine": "cpu", "found_by": "",
                        "run": "model=mlp:2,3"})"),
              HasSubstr("run=\"model=mlp:2,3\" is refused; accepted: an object"));
}

TEST(Replay, RefusesEveryPieceOfAFile) {
  const std::string json = PrintReplay(Example());
  const size_t text = json.find_last_of('}');
  for (size_t bytes = 0; bytes <= text; bytes += 7) {
    EXPECT_FALSE(Error(json.substr(0, bytes)).empty());
  }
  EXPECT_THAT(Error(std::string("\x7f"
                                "ELF\x02\x01\0\0",
                                8)),
              HasSubstr("parse error"));
}

TEST(ReadReplayFile, ErrorsNameThePath) {
  const std::filesystem::path folder = testing::TempDir();
  const std::string path = folder / "case.json";
  std::ofstream(path) << PrintReplay(Example());
  EXPECT_TRUE(ReadReplayFile(path, ImportModel).ok());
  std::ofstream(path) << "{";
  EXPECT_THAT(std::string(ReadReplayFile(path, ImportModel).status().message()),
              StartsWith(absl::StrCat(path, ": ")));
  const std::string missing = folder / "missing.json";
  EXPECT_EQ(ReadReplayFile(missing, ImportModel).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadReplayFile(folder, ImportModel).status().message()),
              HasSubstr("no regular file"));
}

}  // namespace
}  // namespace shardproof
