#include "property_tests/found_case.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "property_tests/replay_file.h"

namespace shardproof {
namespace {

// FNV-1a: equal cases have equal names, in every process.
uint64_t Fingerprint(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string OnAllEngines(const FoundCase& found) {
  std::vector<std::string> verdicts;
  if (NeedsGpus(found.verdict.engine)) {
    verdicts.push_back(absl::StrCat(Name(found.verdict.engine), " ", found.verdict.headline));
  }
  for (const EngineKind engine : AllEngines()) {
    const EngineVerdict verdict =
        engine == found.verdict.engine ? found.verdict : JudgeCase(found.run, {.engine = engine});
    verdicts.push_back(absl::StrCat(Name(engine), " ", verdict.headline));
  }
  return absl::StrJoin(verdicts, "; ");
}

std::string FileLine(const FoundCase& found, const std::string& folder) {
  if (folder.empty()) return "";
  const absl::StatusOr<std::string> path = WriteReplayFile(found, folder);
  return path.ok() ? absl::StrCat("file: ", *path, "\n")
                   : absl::StrCat("no file: ", path.status().message(), "\n");
}

}  // namespace

std::string ReportFoundCase(const FoundCase& found, const std::string& folder) {
  return absl::StrCat(ModeRowName(found.run.sharding), " on ", found.run.sharding.world_size.value,
                      " ranks, engine ", Name(found.verdict.engine), ": ", found.verdict.headline,
                      "\n", found.verdict.details, "found by ", found.found_by,
                      "\nengines: ", OnAllEngines(found), "\n", FileLine(found, folder),
                      ReplayLine(found.run, found.verdict.engine), "\n");
}

absl::StatusOr<std::string> WriteReplayFile(const FoundCase& found, const std::string& folder) {
  const std::string name =
      absl::StrFormat("%s_%s_%016x.json", Name(found.verdict.engine), found.verdict.cause,
                      Fingerprint(PrintRunJson(found.run)));
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  std::error_code ignored;  // opening the file tells whether the folder is there
  std::filesystem::create_directories(folder, ignored);
  std::ofstream file(path, std::ios::binary);
  file << PrintReplay({.engine = found.verdict.engine,
                       .found_by = absl::StrCat(found.found_by, ": ", found.verdict.headline),
                       .run = found.run});
  file.close();
  if (!file) return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be written"));
  return path.string();
}

std::string UndeclaredOutputsFolder() {
  const char* const folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  return folder == nullptr ? "" : folder;
}

}  // namespace shardproof
