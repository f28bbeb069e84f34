// The corpus is of inputs that parsers accept: only those reach what lies behind the first error.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "property_tests/fuzzers/fuzz_checks.h"
#include "property_tests/replay_file.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

std::vector<std::string> Corpus(const std::string& parser) {
  std::vector<std::string> contents;
  for (const auto& entry :
       std::filesystem::directory_iterator("property_tests/fuzzers/corpus/" + parser)) {
    std::ifstream file(entry.path(), std::ios::binary);
    contents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return contents;
}

TEST(Corpus, OfRunsIsAccepted) {
  EXPECT_GE(Corpus("run_description").size(), 5u);
  for (const std::string& text : Corpus("run_description")) {
    const absl::Status status = text[0] == '{' ? ParseRunJson(text, ImportSmallText).status()
                                               : ParseRun(text, ImportSmallText).status();
    EXPECT_TRUE(status.ok()) << text << ": " << status;
  }
}

TEST(Corpus, OfReplayFilesIsAccepted) {
  EXPECT_GE(Corpus("replay").size(), 2u);
  for (const std::string& text : Corpus("replay")) {
    const absl::StatusOr<ReplayFile> replay = ParseReplay(text, ImportSmallText);
    EXPECT_TRUE(replay.ok()) << text << ": " << replay.status();
  }
}

TEST(Corpus, OfModelsIsAccepted) {
  int accepted = 0;
  for (const std::string& bytes : Corpus("model")) {
    const bool is_text = absl::StartsWith(bytes, "mlp:") || absl::StartsWith(bytes, "probe:");
    const absl::Status status =
        is_text ? ImportSmallText(bytes).status()
                : ImportSafetensorsHeader("a", bytes, static_cast<int64_t>(bytes.size())).status();
    accepted += status.ok() ? 1 : 0;
    // A file without tensors is there for its error.
    EXPECT_TRUE(status.ok() || bytes.size() < 16) << status;
  }
  EXPECT_GE(accepted, 4);
}

}  // namespace
}  // namespace shardproof
