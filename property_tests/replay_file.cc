#include "property_tests/replay_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "invariants/run_description/json_syntax.h"
#include "invariants/run_description/message_text.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kSchema = "shardproof.replay/1";
constexpr absl::string_view kKeys = "schema, engine, found_by, run";
// Far above what any run needs, and far below what would fill the memory.
constexpr int64_t kMostBytes = int64_t{64} << 20;

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status Refuse(absl::string_view key, absl::string_view value, absl::string_view accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, "=", Shown(value), " is refused; accepted: ", accepted));
}

absl::StatusOr<std::string> TextAt(const Json& document, absl::string_view key) {
  const auto found = document.find(std::string(key));
  if (found == document.end()) {
    return absl::InvalidArgumentError(absl::StrCat(key, " is missing; accepted: ", kKeys));
  }
  if (!found->is_string()) return Refuse(key, Dump(*found), "a string");
  return found->get<std::string>();
}

// The schema before anything else: what another version calls its keys is not our business.
absl::Status CheckSchema(const Json& document) {
  SHARDPROOF_ASSIGN_OR_RETURN(const std::string schema, TextAt(document, "schema"));
  if (schema == kSchema) return absl::OkStatus();
  return Refuse("schema", Dump(schema), absl::StrCat("\"", kSchema, "\""));
}

absl::Status CheckKeys(const Json& document) {
  for (const auto& [key, value] : document.items()) {
    if (key == "schema" || key == "engine" || key == "found_by" || key == "run") continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the key '", Shown(key), "' is unknown; accepted: ", kKeys));
  }
  return absl::OkStatus();
}

absl::Status In(absl::string_view place, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(place, ": ", status.message()));
}

}  // namespace

absl::StatusOr<ReplayFile> ParseReplay(absl::string_view json, const ModelImporter& importer) {
  SHARDPROOF_RETURN_IF_ERROR(CheckJsonSyntax(json));
  const Json document = Json::parse(json.begin(), json.end(), nullptr, false);
  if (!document.is_object()) return Refuse("the document", Dump(document), "an object");
  SHARDPROOF_RETURN_IF_ERROR(CheckSchema(document));
  SHARDPROOF_RETURN_IF_ERROR(CheckKeys(document));
  ReplayFile replay;
  SHARDPROOF_ASSIGN_OR_RETURN(const std::string engine, TextAt(document, "engine"));
  SHARDPROOF_ASSIGN_OR_RETURN(replay.engine, ParseEngineKind(Shown(engine)));
  SHARDPROOF_ASSIGN_OR_RETURN(replay.found_by, TextAt(document, "found_by"));
  const auto run = document.find("run");
  if (run == document.end()) {
    return absl::InvalidArgumentError(absl::StrCat("run is missing; accepted: ", kKeys));
  }
  if (!run->is_object()) return Refuse("run", Dump(*run), "an object");
  absl::StatusOr<RunDescription> parsed = ParseRunJson(Dump(*run), importer);
  if (!parsed.ok()) return In("run", parsed.status());
  replay.run = *std::move(parsed);
  return replay;
}

std::string PrintReplay(const ReplayFile& replay) {
  const std::string run = PrintRunJson(replay.run);
  return absl::StrCat(
      "{\n  \"schema\": \"", kSchema, "\",\n  \"engine\": \"", Name(replay.engine),
      "\",\n  \"found_by\": ", Dump(replay.found_by), ",\n  \"run\": ",
      absl::StrReplaceAll(absl::StripTrailingAsciiWhitespace(run), {{"\n", "\n  "}}), "\n}\n");
}

absl::StatusOr<ReplayFile> ReadReplayFile(const std::string& path, const ModelImporter& importer) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (status.type() != std::filesystem::file_type::regular) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no regular file; accepted: a replay file"));
  }
  const int64_t bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error || bytes > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", bytes, " bytes; accepted: at most ", kMostBytes));
  }
  std::ifstream input(path, std::ios::binary);
  const std::string json((std::istreambuf_iterator<char>(input)), std::istreambuf_iterator<char>());
  if (!input.good() && !input.eof()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  }
  absl::StatusOr<ReplayFile> replay = ParseReplay(json, importer);
  if (!replay.ok()) return In(path, replay.status());
  return replay;
}

}  // namespace shardproof
