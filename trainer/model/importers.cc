#include "trainer/model/importers.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "invariants/run_description/message_text.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/model/import_internal.h"

namespace shardproof {
namespace {

using internal::kMaxTensors;
using internal::ModelBuilder;
using internal::Refuse;

constexpr absl::string_view kMlpForms =
    "mlp:LxW as in mlp:8x2048, or mlp:D0,D1,...[:bias] as in mlp:33,65,17:bias";
constexpr absl::string_view kProbeForms =
    "probe:SHAPES as in probe:10x3,7,2x2x2, or probe:FILE.json, probe:FILE.safetensors";

// Digits only: SimpleAtoi alone takes signs and spaces too.
absl::StatusOr<int64_t> ParseExtent(absl::string_view text, absl::string_view what,
                                    absl::string_view extent, int64_t least) {
  int64_t value = 0;
  const bool digits =
      !extent.empty() && std::all_of(extent.begin(), extent.end(), absl::ascii_isdigit);
  if (digits && absl::SimpleAtoi(extent, &value) && value >= least) return value;
  return Refuse(text, what, absl::StrCat("'", extent, "'"),
                absl::StrCat("an integer from ", least, " to ", INT64_MAX));
}

absl::StatusOr<std::vector<int64_t>> ParseExtents(absl::string_view text, absl::string_view what,
                                                  absl::string_view list, char separator,
                                                  int64_t least = 1) {
  std::vector<int64_t> extents;
  for (const absl::string_view extent : absl::StrSplit(list, separator)) {
    SHARDPROOF_ASSIGN_OR_RETURN(const int64_t value, ParseExtent(text, what, extent, least));
    extents.push_back(value);
  }
  return extents;
}

absl::Status CheckTensorCount(absl::string_view text, absl::string_view what, int64_t count) {
  if (count <= kMaxTensors) return absl::OkStatus();
  return Refuse(text, what, absl::StrCat(count), absl::StrCat("at most ", kMaxTensors));
}

absl::StatusOr<ModelDescription> BuildMlp(absl::string_view text, bool bias, int64_t layers,
                                          const std::vector<int64_t>& widths) {
  ModelBuilder builder(text, ModelKind::kMlp);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string name = absl::StrCat("layers.", layer);
    builder.BeginStage(name);
    // mlp:LxW has one width for all.
    const int64_t in = widths.size() == 1 ? widths[0] : widths[layer];
    const int64_t out = widths.size() == 1 ? widths[0] : widths[layer + 1];
    builder.Linear(name, out, in, bias);
  }
  return internal::Finish(std::move(builder).WithAUnitAStage(), text);
}

absl::StatusOr<ModelDescription> ImportMlp(absl::string_view text) {
  absl::string_view list = absl::StripPrefix(text, "mlp:");
  const size_t cross = list.find('x');
  if (cross != absl::string_view::npos) {
    SHARDPROOF_ASSIGN_OR_RETURN(
        const int64_t layers, ParseExtent(text, "the number of layers", list.substr(0, cross), 1));
    SHARDPROOF_ASSIGN_OR_RETURN(const int64_t width,
                                ParseExtent(text, "the width", list.substr(cross + 1), 1));
    SHARDPROOF_RETURN_IF_ERROR(CheckTensorCount(text, "the number of layers", layers));
    return BuildMlp(text, /*bias=*/false, layers, {width});
  }
  const bool bias = absl::ConsumeSuffix(&list, ":bias");
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<int64_t> widths,
                              ParseExtents(text, "a width", list, ','));
  const int64_t layers = static_cast<int64_t>(widths.size()) - 1;
  if (layers < 1) return Refuse(text, "the number of widths", "1", kMlpForms);
  SHARDPROOF_RETURN_IF_ERROR(
      CheckTensorCount(text, "the number of tensors", bias ? 2 * layers : layers));
  return BuildMlp(text, bias, layers, widths);
}

absl::StatusOr<ModelDescription> ImportProbeShapes(absl::string_view text) {
  const absl::string_view list = absl::StripPrefix(text, "probe:");
  if (list.empty()) return Refuse(text, "the list of shapes", "empty", kProbeForms);
  const int64_t tensors = 1 + std::count(list.begin(), list.end(), ',');
  SHARDPROOF_RETURN_IF_ERROR(CheckTensorCount(text, "the number of tensors", tensors));
  ModelBuilder builder(text, ModelKind::kProbe);
  int64_t index = 0;
  for (const absl::string_view shape : absl::StrSplit(list, ',')) {
    SHARDPROOF_ASSIGN_OR_RETURN(
        std::vector<int64_t> extents,
        ParseExtents(text, absl::StrCat("an extent of shape ", index), shape, 'x',
                     /*least=*/0));
    const std::string name = absl::StrCat("t", index++);
    builder.BeginStage(name);
    const int64_t fan_in = std::max<int64_t>(extents.back(), 1);
    builder.Add(name, std::move(extents), fan_in);
  }
  return internal::Finish(std::move(builder).WithAUnitAStage(), text);
}

// A regular file's size. Devices and pipes are refused: reading one may never end.
absl::StatusOr<int64_t> FileBytes(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(
        absl::StrCat(Shown(path),
                     ": the file does not exist; accepted: a path to a config.json "
                     "or .safetensors file"));
  }
  if (status.type() == std::filesystem::file_type::directory) {
    return Refuse(path, "the path", "a directory", "a file in it, such as its config.json");
  }
  if (error || status.type() != std::filesystem::file_type::regular) {
    return Refuse(path, "the path", error ? error.message() : "no regular file", "a readable file");
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return Refuse(path, "the size", error.message(), "a readable file");
  return static_cast<int64_t>(bytes);
}

// The first `bytes` bytes of the file.
absl::StatusOr<std::string> ReadStart(const std::string& path, int64_t bytes) {
  std::string content(static_cast<size_t>(bytes), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(content.data(), bytes);
  if (!file) return Refuse(path, "the file", "not readable", "a file this user may read");
  return content;
}

absl::StatusOr<ModelDescription> ImportConfigFile(const std::string& path, const std::string& name,
                                                  int64_t bytes) {
  // A config takes a few kilobytes; whatever is larger is another file.
  constexpr int64_t kMaxConfigBytes = 16 << 20;
  if (bytes > kMaxConfigBytes) {
    return Refuse(path, "the size", absl::StrCat(bytes, " bytes"),
                  absl::StrCat("a config of at most ", kMaxConfigBytes));
  }
  SHARDPROOF_ASSIGN_OR_RETURN(const std::string json, ReadStart(path, bytes));
  return ImportConfig(name, json);
}

absl::StatusOr<ModelDescription> ImportSafetensorsFile(const std::string& path,
                                                       const std::string& name,
                                                       int64_t file_bytes) {
  SHARDPROOF_ASSIGN_OR_RETURN(std::string start, ReadStart(path, std::min<int64_t>(file_bytes, 8)));
  uint64_t header_bytes = 0;
  for (size_t i = start.size(); i > 0; --i) {
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(start[i - 1]);
  }
  // A length that the format forbids is left to ImportSafetensorsHeader to refuse.
  constexpr uint64_t kMaxHeaderBytes = 100'000'000;
  if (start.size() == 8 && header_bytes <= kMaxHeaderBytes) {
    const int64_t wanted = 8 + static_cast<int64_t>(header_bytes);
    SHARDPROOF_ASSIGN_OR_RETURN(start, ReadStart(path, std::min(file_bytes, wanted)));
  }
  return ImportSafetensorsHeader(name, start, file_bytes);
}

bool IsFileName(absl::string_view text) {
  return absl::EndsWith(text, ".json") || absl::EndsWith(text, ".safetensors");
}

absl::StatusOr<ModelDescription> ImportFile(absl::string_view text) {
  const std::string path(text);
  const std::string name = path.substr(path.rfind('/') + 1);  // for messages
  SHARDPROOF_ASSIGN_OR_RETURN(const int64_t bytes, FileBytes(path));
  return absl::EndsWith(text, ".json") ? ImportConfigFile(path, name, bytes)
                                       : ImportSafetensorsFile(path, name, bytes);
}

}  // namespace

absl::StatusOr<ModelDescription> ImportModel(absl::string_view text) {
  if (absl::StartsWith(text, "mlp:")) return ImportMlp(text);
  absl::string_view path = text;
  const bool probe = absl::ConsumePrefix(&path, "probe:");
  if (IsFileName(path)) {
    SHARDPROOF_ASSIGN_OR_RETURN(ModelDescription model, ImportFile(path));
    // The whole path, not the file's name alone: a replay line must find the file again.
    model.name = std::string(text);
    if (probe) model.kind = ModelKind::kProbe;
    return model;
  }
  if (probe) return ImportProbeShapes(text);
  // A folder is the likeliest mistake, and has a better answer than the list of forms.
  std::error_code ignored;
  if (std::filesystem::is_directory(std::string(text), ignored)) {
    return Refuse(text, "the path", "a directory", "a file in it, such as its config.json");
  }
  return Refuse("model", absl::StrCat("'", text, "'"), "unknown",
                absl::StrCat(kMlpForms, "; ", kProbeForms, "; FILE.json; FILE.safetensors"));
}

}  // namespace shardproof
