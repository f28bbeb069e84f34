// The header of a .safetensors file: names, types, shapes and places of its tensors.

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "invariants/run_description/json_syntax.h"
#include "invariants/run_description/message_text.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/model/import_internal.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using internal::kMaxTensors;
using internal::Refuse;
using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
// The format's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct ElementType {
  absl::string_view name;
  int64_t bytes;
  bool floating;  // integers are buffers or packed weights: they have no gradient
};

constexpr ElementType kElementTypes[] = {
    {"F64", 8, true},     {"F32", 4, true},     {"F16", 2, true},  {"BF16", 2, true},
    {"F8_E4M3", 1, true}, {"F8_E5M2", 1, true}, {"I64", 8, false}, {"I32", 4, false},
    {"I16", 2, false},    {"I8", 1, false},     {"U64", 8, false}, {"U32", 4, false},
    {"U16", 2, false},    {"U8", 1, false},     {"BOOL", 1, false}};

// One entry of the header, and the file it is in for messages.
struct Entry {
  std::string name;
  std::vector<int64_t> shape;
  bool floating = true;
  int64_t begin = 0;
  int64_t end = 0;
};

bool ReadIntegers(const Json& json, std::vector<int64_t>& numbers) {
  if (!json.is_array()) return false;
  for (const Json& number : json) {
    if (!number.is_number_integer()) return false;
    if (number.is_number_unsigned() && number.get<uint64_t>() > INT64_MAX) return false;
    numbers.push_back(number.get<int64_t>());
  }
  return true;
}

class EntryReader {
 public:
  EntryReader(absl::string_view file, const std::string& name, const Json& json, int64_t data_bytes)
      : file_(file), name_(name), json_(json), data_bytes_(data_bytes) {}

  absl::StatusOr<Entry> Read() {
    if (!json_.is_object()) return Bad("", json_.dump(), "an object");
    Entry entry;
    entry.name = name_;
    int64_t bytes = 0;
    SHARDPROOF_RETURN_IF_ERROR(ReadType(entry, bytes));
    SHARDPROOF_RETURN_IF_ERROR(ReadShape(entry, bytes));
    SHARDPROOF_RETURN_IF_ERROR(ReadOffsets(entry, bytes));
    return entry;
  }

 private:
  absl::Status Bad(absl::string_view field, absl::string_view value,
                   absl::string_view accepted) const {
    return Refuse(
        file_,
        absl::StrCat("tensor '", Shown(name_).substr(0, 60), "'", field.empty() ? "" : ": ", field),
        value, accepted);
  }

  // "missing", or the value as it stands in the header.
  std::string ShownField(const char* field) const {
    const auto found = json_.find(field);
    return found == json_.end() ? "missing" : found->dump();
  }

  absl::Status ReadType(Entry& entry, int64_t& bytes) const {
    const auto dtype = json_.find("dtype");
    std::string accepted;
    for (const ElementType& type : kElementTypes) {
      absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", type.name);
      if (dtype == json_.end() || *dtype != std::string(type.name)) continue;
      entry.floating = type.floating;
      bytes = type.bytes;
      return absl::OkStatus();
    }
    return Bad("dtype", ShownField("dtype"), accepted);
  }

  // Multiplies `bytes` by the number of elements.
  absl::Status ReadShape(Entry& entry, int64_t& bytes) const {
    const std::string accepted =
        absl::StrCat("extents from 1, of at most ", data_bytes_, " bytes of data in the file");
    const auto shape = json_.find("shape");
    if (shape == json_.end() || !ReadIntegers(*shape, entry.shape)) {
      return Bad("shape", ShownField("shape"), "an array of integers");
    }
    for (const int64_t extent : entry.shape) {
      // Nothing to train, and a layout by rows would divide by it.
      if (extent < 1) return Bad("shape", shape->dump(), accepted);
      if (__builtin_mul_overflow(bytes, extent, &bytes)) {
        return Bad("shape", shape->dump(), accepted);
      }
    }
    // FSDP takes no scalars; a model that has one registers it with one element.
    if (entry.shape.empty()) entry.shape = {1};
    return absl::OkStatus();
  }

  absl::Status ReadOffsets(Entry& entry, int64_t bytes) const {
    const auto offsets = json_.find("data_offsets");
    std::vector<int64_t> ends;
    if (offsets == json_.end() || !ReadIntegers(*offsets, ends) || ends.size() != 2 ||
        ends[0] < 0 || ends[1] < ends[0] || ends[1] > data_bytes_) {
      return Bad("data_offsets", ShownField("data_offsets"),
                 absl::StrCat("[begin, end] within the file's ", data_bytes_, " bytes of data"));
    }
    if (ends[1] - ends[0] != bytes) {
      return Bad("data_offsets", offsets->dump(),
                 absl::StrCat("a range of the shape's ", bytes, " bytes"));
    }
    entry.begin = ends[0];
    entry.end = ends[1];
    return absl::OkStatus();
  }

  const absl::string_view file_;
  const std::string& name_;
  const Json& json_;
  const int64_t data_bytes_;
};

// The header's JSON, after its length has been held against the file's.
absl::StatusOr<absl::string_view> HeaderText(absl::string_view name, absl::string_view bytes,
                                             int64_t file_bytes) {
  if (file_bytes < kLengthBytes || bytes.size() < kLengthBytes) {
    return Refuse(name, "the file's size",
                  absl::StrCat(std::min<int64_t>(file_bytes, bytes.size()), " bytes"),
                  "at least 8, the header's length");
  }
  uint64_t length = 0;
  for (int64_t i = kLengthBytes - 1; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(bytes[i]);
  }
  const uint64_t rest = static_cast<uint64_t>(file_bytes - kLengthBytes);
  if (length > std::min(rest, kMaxHeaderBytes)) {
    return Refuse(name, "the header's length", absl::StrCat(length, " bytes"),
                  absl::StrCat("at most ", std::min(rest, kMaxHeaderBytes),
                               rest < kMaxHeaderBytes ? " (the rest of the file)" : ""));
  }
  if (length > bytes.size() - kLengthBytes) {
    return Refuse(name, "the header",
                  absl::StrCat("cut off after ", bytes.size() - kLengthBytes, " bytes"),
                  absl::StrCat("all of its ", length, " bytes"));
  }
  return bytes.substr(kLengthBytes, length);
}

absl::StatusOr<std::vector<Entry>> ReadEntries(absl::string_view name, const Json& header,
                                               int64_t data_bytes) {
  std::vector<Entry> entries;
  for (const auto& [tensor, json] : header.items()) {
    if (tensor == "__metadata__") continue;
    SHARDPROOF_ASSIGN_OR_RETURN(Entry entry, EntryReader(name, tensor, json, data_bytes).Read());
    entries.push_back(std::move(entry));
  }
  if (entries.empty() || static_cast<int64_t>(entries.size()) > kMaxTensors) {
    return Refuse(name, "the number of tensors", absl::StrCat(entries.size()),
                  absl::StrCat("1 to ", kMaxTensors));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].begin >= entries[i - 1].end) continue;
    return Refuse(name, absl::StrCat("tensor '", entries[i].name, "': begin of data_offsets"),
                  absl::StrCat(entries[i].begin),
                  absl::StrCat("from ", entries[i - 1].end, ", the end of the tensor before"));
  }
  return entries;
}

// "model.layers.3" of "model.layers.3.mlp.up_proj.weight"; empty without a number.
std::string GroupOf(absl::string_view tensor) {
  std::string group;
  for (const absl::string_view part : absl::StrSplit(tensor, '.')) {
    absl::StrAppend(&group, group.empty() ? "" : ".", part);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit);
    if (number) return group;
  }
  return "";
}

// Where a group stands in forward: lists in order of their first tensor, and by number within
// a list. Files often hold their data by name, where layer 10 comes before layer 2.
struct GroupPlace {
  size_t list = 0;
  absl::string_view digits;
  bool operator<(const GroupPlace& other) const {
    if (list != other.list) return list < other.list;
    if (digits.size() != other.digits.size()) return digits.size() < other.digits.size();
    return digits < other.digits;
  }
};

std::vector<std::string> GroupsInOrder(const std::vector<std::string>& group_of) {
  std::map<absl::string_view, size_t> lists;
  std::map<GroupPlace, std::string> groups;
  for (const std::string& group : group_of) {
    if (group.empty()) continue;
    const size_t dot = group.rfind('.');
    const size_t digits = dot == std::string::npos ? 0 : dot + 1;
    const absl::string_view view = group;
    const size_t list = lists.emplace(view.substr(0, digits), lists.size()).first->second;
    groups.emplace(GroupPlace{list, view.substr(digits)}, group);
  }
  std::vector<std::string> ordered;
  for (const auto& [place, group] : groups) ordered.push_back(group);
  return ordered;
}

// One stage and unit a group. What has no number (embeddings, final norm, head) is the root,
// the first stage: a header does not say which of it comes last in forward.
void AddStages(ModelDescription& model) {
  std::vector<std::string> group_of;
  for (const TensorSpec& tensor : model.tensors) group_of.push_back(GroupOf(tensor.name));
  std::map<std::string, int32_t> stage_of;
  const auto add_stage = [&](const std::string& group, const std::string& name, bool reshard) {
    const int32_t stage = static_cast<int32_t>(model.stages.size());
    stage_of[group] = stage;
    model.stages.push_back({name, {}});
    model.units.push_back({name, {stage}, reshard});
  };
  if (std::find(group_of.begin(), group_of.end(), "") != group_of.end()) {
    add_stage("", "root", /*reshard=*/false);
  }
  for (const std::string& group : GroupsInOrder(group_of)) {
    add_stage(group, group, /*reshard=*/true);
  }
  for (size_t t = 0; t < group_of.size(); ++t) {
    model.stages[stage_of[group_of[t]]].tensors.push_back(static_cast<int32_t>(t));
  }
}

}  // namespace

absl::StatusOr<ModelDescription> ImportSafetensorsHeader(absl::string_view name,
                                                         absl::string_view bytes,
                                                         int64_t file_bytes) {
  SHARDPROOF_ASSIGN_OR_RETURN(const absl::string_view text, HeaderText(name, bytes, file_bytes));
  if (const absl::Status status = CheckJsonSyntax(text); !status.ok()) {
    return Refuse(name, "the header", status.message(), "a JSON object");
  }
  const Json header = Json::parse(text.begin(), text.end(), nullptr, false);
  if (!header.is_object()) return Refuse(name, "the header", header.dump(), "a JSON object");
  const int64_t data_bytes = file_bytes - kLengthBytes - static_cast<int64_t>(text.size());
  SHARDPROOF_ASSIGN_OR_RETURN(std::vector<Entry> entries, ReadEntries(name, header, data_bytes));
  ModelDescription model;
  model.name = std::string(name);
  model.kind = ModelKind::kOpaque;
  for (Entry& entry : entries) {
    const int64_t fan_in = entry.shape.back();
    model.tensors.push_back(
        {std::move(entry.name), std::move(entry.shape), fan_in, entry.floating, {}});
  }
  AddStages(model);
  return internal::Finish(std::move(model), name);
}

}  // namespace shardproof
