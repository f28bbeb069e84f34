#include "invariants/observation/observation_io.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "invariants/run_description/json_syntax.h"
#include "invariants/run_description/message_text.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kSchema = "shardproof.observation/1";
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
// Sums of two counts stay in int64.
constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max() / 2;
constexpr absl::string_view kAcceptedValue =
    "a number that fits float32, \"inf\", \"-inf\" or \"nan:0x\" and the 8 hex digits of a NaN";

// ---------------------------------------------------------------- writing

// The shortest digits that read back as the same number.
template <typename T>
absl::string_view Digits(T value, std::array<char, 32>* digits) {
  const auto end = std::to_chars(digits->data(), digits->data() + digits->size(), value);
  return absl::string_view(digits->data(), end.ptr - digits->data());
}

template <typename T>
std::string NonFinite(T value) {
  if (!std::isnan(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  return absl::StrFormat("\"nan:0x%08x\"", std::bit_cast<uint32_t>(static_cast<float>(value)));
}

// JSON knows no minus zero that is an integer.
void AppendNumber(std::string* out, absl::string_view digits) {
  absl::StrAppend(out, digits == "-0" ? "-0.0" : digits);
}

void AppendValue(std::string* out, float value) {
  if (!std::isfinite(value)) {
    absl::StrAppend(out, NonFinite(value));
    return;
  }
  std::array<char, 32> buffer;
  const absl::string_view digits = Digits(value, &buffer);
  // Readers round to double first. Where that would end at a neighbour, the double is written.
  double read = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), read);
  std::array<char, 32> exact;
  AppendNumber(
      out, static_cast<float>(read) == value ? digits : Digits(static_cast<double>(value), &exact));
}

void AppendDouble(std::string* out, double value) {
  std::array<char, 32> buffer;
  if (std::isfinite(value)) {
    AppendNumber(out, Digits(value, &buffer));
  } else {
    absl::StrAppend(out, NonFinite(value));
  }
}

template <typename List, typename Append>
void AppendList(std::string* out, absl::string_view key, const List& list, const Append& append) {
  absl::StrAppend(out, ",\"", key, "\":[");
  bool first = true;
  for (const auto& entry : list) {
    if (!first) out->push_back(',');
    first = false;
    append(entry);
  }
  out->push_back(']');
}

void AppendInts(std::string* out, absl::string_view key, absl::Span<const int32_t> list) {
  if (list.empty()) return;
  AppendList(out, key, list, [out](int32_t value) { absl::StrAppend(out, value); });
}

// Fields follow a required one, so that each begins with a comma.
void AppendInt(std::string* out, absl::string_view key, int64_t value, int64_t unless) {
  if (value != unless) absl::StrAppend(out, ",\"", key, "\":", value);
}

template <typename E>
void AppendName(std::string* out, absl::string_view key, E value, E unless) {
  if (value != unless) absl::StrAppend(out, ",\"", key, "\":\"", Name(value), "\"");
}

std::string GroupText(const Group& group) {
  return absl::StrCat("[", group.first, ",", group.stride, ",", group.count, "]");
}

void AppendBuffer(std::string* out, const BufferInfo& buffer) {
  const BufferInfo plain;
  absl::StrAppend(out, "{\"role\":\"", Name(buffer.role), "\",\"elements\":", buffer.elements);
  AppendName(out, "dtype", buffer.dtype, plain.dtype);
  AppendName(out, "tier", buffer.tier, plain.tier);
  AppendInt(out, "unit", buffer.unit, plain.unit);
  AppendInt(out, "bucket", buffer.bucket, plain.bucket);
  out->push_back('}');
}

void AppendAccess(std::string* out, const Access& access) {
  absl::StrAppend(out, "{\"buffer\":", access.buffer, ",\"kind\":\"", Name(access.kind), "\"");
  AppendInt(out, "first", access.range.first, 0);
  AppendInt(out, "count", access.range.count, 0);
  AppendInt(out, "version", access.version, -1);
  out->push_back('}');
}

template <typename T>
absl::Span<const T> PartOf(const std::vector<T>& all, uint32_t first, uint32_t count) {
  if (first >= all.size()) return {};
  return absl::MakeConstSpan(all).subspan(first, count);
}

void AppendEvent(std::string* out, const RankEvents& events, const Event& event) {
  const Event plain;
  absl::StrAppend(out, "{\"kind\":\"", Name(event.kind), "\"");
  AppendName(out, "phase", event.phase, plain.phase);
  AppendName(out, "stream", event.stream, plain.stream);
  AppendName(out, "collective", event.collective, plain.collective);
  AppendName(out, "purpose", event.purpose, plain.purpose);
  AppendName(out, "dtype", event.dtype, plain.dtype);
  if (!event.completed) absl::StrAppend(out, ",\"completed\":false");
  if (event.group != plain.group) absl::StrAppend(out, ",\"group\":", GroupText(event.group));
  AppendInt(out, "root", event.root, plain.root);
  AppendInt(out, "elements", event.elements, plain.elements);
  AppendInt(out, "micro_batch", event.micro_batch, plain.micro_batch);
  AppendInt(out, "unit", event.unit, plain.unit);
  AppendInt(out, "bucket", event.bucket, plain.bucket);
  AppendInt(out, "tensor", event.tensor, plain.tensor);
  AppendInt(out, "stage", event.stage, plain.stage);
  AppendInt(out, "stage_count", event.stage_count, plain.stage_count);
  AppendInts(out, "waits", PartOf(events.waits, event.first_wait, event.wait_count));
  const auto accesses = PartOf(events.accesses, event.first_access, event.access_count);
  if (!accesses.empty()) {
    AppendList(out, "accesses", accesses,
               [out](const Access& access) { AppendAccess(out, access); });
  }
  out->push_back('}');
}

void AppendRankEvents(std::string* out, const RankEvents& events) {
  absl::StrAppend(out, "{\"ranks\":", GroupText(events.ranks));
  AppendList(out, "buffers", events.buffers,
             [out](const BufferInfo& buffer) { AppendBuffer(out, buffer); });
  AppendInts(out, "live_before", events.live_before);
  AppendList(out, "events", events.events,
             [&](const Event& event) { AppendEvent(out, events, event); });
  out->push_back('}');
}

void AppendSegment(std::string* out, const StateSegment& segment, Values values) {
  absl::StrAppend(out, "{\"state\":\"", Name(segment.state), "\",\"tensor\":", segment.tensor,
                  ",\"count\":", segment.range.count);
  AppendInt(out, "first", segment.range.first, 0);
  AppendInt(out, "buffer", segment.buffer, -1);
  AppendInt(out, "buffer_offset", segment.buffer_offset, 0);
  if (values == Values::kWrite && segment.values != nullptr) {
    AppendList(out, "values", absl::MakeConstSpan(segment.values, segment.range.count),
               [out](float value) { AppendValue(out, value); });
  }
  out->push_back('}');
}

void AppendState(std::string* out, const RankState& state, Values values) {
  absl::StrAppend(out, "{\"ranks\":", GroupText(state.ranks),
                  ",\"bytes\":{\"parameter\":", state.bytes.parameter,
                  ",\"gradient\":", state.bytes.gradient, ",\"optimizer\":", state.bytes.optimizer,
                  ",\"padding\":", state.bytes.padding, ",\"scalar\":", state.bytes.scalar, "}");
  if (!state.segments.empty()) {
    AppendList(out, "segments", state.segments,
               [&](const StateSegment& segment) { AppendSegment(out, segment, values); });
  }
  if (!state.steps.empty()) {
    AppendList(out, "steps", state.steps, [out](const TensorStep& step) {
      absl::StrAppend(out, "{\"tensor\":", step.tensor, ",\"updates\":", step.updates, "}");
    });
  }
  out->push_back('}');
}

// ---------------------------------------------------------------- reading

// Where in the line a value stands; put into words only for an error.
struct Place {
  const Place* parent = nullptr;
  absl::string_view key;
  int64_t index = -1;
  std::string Text() const {
    const std::string before = parent == nullptr ? "" : parent->Text();
    if (index >= 0) return absl::StrCat(before, "[", index, "]");
    return before.empty() ? std::string(key) : absl::StrCat(before, ".", key);
  }
};

absl::Status Refuse(const Place& place, absl::string_view shown, absl::string_view accepted) {
  const std::string text = place.Text();
  return absl::InvalidArgumentError(absl::StrCat(text.empty() ? "the line" : text, " is ",
                                                 Shown(shown), "; accepted: ", accepted));
}

absl::Status RefuseJson(const Place& place, const Json& json, absl::string_view accepted) {
  return Refuse(place, json.dump(-1, ' ', false, Json::error_handler_t::replace), accepted);
}

absl::Status ReadInt(const Json& json, const Place& place, int64_t least, int64_t most,
                     int64_t* value) {
  const bool fits = json.is_number_unsigned()
                        ? json.get<uint64_t>() <= static_cast<uint64_t>(kMaxCount)
                        : json.is_number_integer();
  if (fits) {
    const int64_t number = json.get<int64_t>();
    if (number >= least && number <= most) {
      *value = number;
      return absl::OkStatus();
    }
  }
  return RefuseJson(place, json,
                    most < least ? std::string("nothing, as the run has none")
                                 : absl::StrCat("an integer from ", least, " to ", most));
}

absl::Status ReadInt(const Json& json, const Place& place, int64_t least, int64_t most,
                     int32_t* value) {
  int64_t wide = 0;
  SHARDPROOF_RETURN_IF_ERROR(ReadInt(json, place, least, std::min(most, kMaxInt32), &wide));
  *value = static_cast<int32_t>(wide);
  return absl::OkStatus();
}

enum class Need : uint8_t { kOptional, kRequired };

// Reads the fields of one object in turn. The first error stays; Finish adds the keys that
// nobody asked for.
class Fields {
 public:
  Fields(const Json& json, const Place& place) : json_(json), place_(place) {
    if (!json.is_object()) status_ = RefuseJson(place, json, "an object");
  }

  // The value, or null when it is left out or an error came before.
  const Json* Find(absl::string_view key, Need need = Need::kOptional) {
    if (!status_.ok()) return nullptr;
    asked_.push_back(key);
    const auto found = json_.find(std::string(key));
    if (found != json_.end()) {
      ++found_;
      return &*found;
    }
    if (need == Need::kRequired) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(Place{&place_, key}.Text(), " is missing; it is required"));
    }
    return nullptr;
  }

  template <typename T>
  void Int(absl::string_view key, T* value, int64_t least, int64_t most,
           Need need = Need::kOptional) {
    if (const Json* json = Find(key, need)) {
      status_ = ReadInt(*json, Place{&place_, key}, least, most, value);
    }
  }

  template <typename E>
  void Word(absl::string_view key, E* value, absl::StatusOr<E> (*parse)(absl::string_view),
            Need need = Need::kOptional) {
    const Json* json = Find(key, need);
    if (json == nullptr) return;
    const Place place{&place_, key};
    if (!json->is_string()) {
      status_ = RefuseJson(place, *json, "a string");
      return;
    }
    const absl::StatusOr<E> parsed = parse(Shown(json->get<std::string>()));
    if (parsed.ok()) {
      *value = *parsed;
    } else {
      status_ =
          absl::InvalidArgumentError(absl::StrCat(place.Text(), ": ", parsed.status().message()));
    }
  }

  void Flag(absl::string_view key, bool* value) {
    const Json* json = Find(key);
    if (json == nullptr) return;
    if (!json->is_boolean()) {
      status_ = RefuseJson(Place{&place_, key}, *json, "true, false");
      return;
    }
    *value = json->get<bool>();
  }

  // Calls read(element, place) for each element of the array.
  template <typename Read>
  void List(absl::string_view key, const Read& read, Need need = Need::kOptional) {
    const Json* json = Find(key, need);
    if (json == nullptr) return;
    const Place place{&place_, key};
    if (!json->is_array()) {
      status_ = RefuseJson(place, *json, "an array");
      return;
    }
    for (size_t i = 0; i < json->size() && status_.ok(); ++i) {
      status_ = read((*json)[i], Place{&place, "", static_cast<int64_t>(i)});
    }
  }

  // Calls read(value, place).
  template <typename Read>
  void Value(absl::string_view key, const Read& read, Need need = Need::kOptional) {
    if (const Json* json = Find(key, need)) status_ = read(*json, Place{&place_, key});
  }

  absl::Status Finish() {
    if (!status_.ok() || found_ == json_.size()) return status_;
    for (const auto& [key, value] : json_.items()) {
      const absl::string_view name(key);
      if (std::find(asked_.begin(), asked_.end(), name) != asked_.end()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(Place{&place_, Shown(name)}.Text(),
                       " is unknown; accepted: ", absl::StrJoin(asked_, ", ")));
    }
    return status_;
  }

 private:
  const Json& json_;
  const Place& place_;
  std::vector<absl::string_view> asked_;
  size_t found_ = 0;
  absl::Status status_;
};

// How far indices of the run go.
struct Limits {
  explicit Limits(const RunDescription& run)
      : ranks(run.sharding.world_size.value),
        micro_batches(run.data.num_micro_batches),
        units(static_cast<int64_t>(run.model.units.size())),
        tensors(static_cast<int64_t>(run.model.tensors.size())),
        stages(static_cast<int64_t>(run.model.stages.size())) {}
  int64_t ranks, micro_batches, units, tensors, stages;
};

absl::Status ReadGroup(const Json& json, const Place& place, const Limits& limits, Group* group) {
  const std::string accepted =
      absl::StrCat("[first, stride, count] from 0, 1 and 1 on, with members below ", limits.ranks);
  if (!json.is_array() || json.size() != 3) return RefuseJson(place, json, accepted);
  int32_t* const parts[] = {&group->first, &group->stride, &group->count};
  for (size_t i = 0; i < 3; ++i) {
    const Place part{&place, "", static_cast<int64_t>(i)};
    SHARDPROOF_RETURN_IF_ERROR(ReadInt(json[i], part, i == 0 ? 0 : 1, kMaxInt32, parts[i]));
  }
  const int64_t last = group->first + int64_t{group->count - 1} * group->stride;
  return last < limits.ranks ? absl::OkStatus() : RefuseJson(place, json, accepted);
}

absl::Status ReadBuffer(const Json& json, const Place& place, const Limits& limits,
                        BufferInfo* buffer) {
  Fields fields(json, place);
  fields.Word("role", &buffer->role, ParseBufferRole, Need::kRequired);
  fields.Int("elements", &buffer->elements, 0, kMaxCount, Need::kRequired);
  fields.Word("dtype", &buffer->dtype, ParseDtype);
  fields.Word("tier", &buffer->tier, ParseMemoryTier);
  fields.Int("unit", &buffer->unit, -1, limits.units - 1);
  fields.Int("bucket", &buffer->bucket, -1, kMaxInt32);
  return fields.Finish();
}

absl::Status ReadAccess(const Json& json, const Place& place, int64_t buffers, Access* access) {
  Fields fields(json, place);
  fields.Int("buffer", &access->buffer, 0, buffers - 1, Need::kRequired);
  fields.Word("kind", &access->kind, ParseAccessKind, Need::kRequired);
  fields.Int("first", &access->range.first, 0, kMaxCount);
  fields.Int("count", &access->range.count, 0, kMaxCount);
  fields.Int("version", &access->version, -1, kMaxInt32);
  return fields.Finish();
}

// `events` is how many events the rank shows in this step.
absl::Status ReadEvent(const Json& json, const Place& place, const Limits& limits, int64_t events,
                       RankEvents* out) {
  Event event;
  event.first_wait = static_cast<uint32_t>(out->waits.size());
  event.first_access = static_cast<uint32_t>(out->accesses.size());
  Fields fields(json, place);
  fields.Word("kind", &event.kind, ParseEventKind, Need::kRequired);
  fields.Word("phase", &event.phase, ParsePhase);
  fields.Word("stream", &event.stream, ParseStreamId);
  fields.Word("collective", &event.collective, ParseCollectiveKind);
  fields.Word("purpose", &event.purpose, ParsePurpose);
  fields.Word("dtype", &event.dtype, ParseDtype);
  fields.Flag("completed", &event.completed);
  fields.Value("group", [&](const Json& group, const Place& at) {
    return ReadGroup(group, at, limits, &event.group);
  });
  fields.Int("root", &event.root, -1, limits.ranks - 1);
  fields.Int("elements", &event.elements, 0, kMaxCount);
  fields.Int("micro_batch", &event.micro_batch, -1, limits.micro_batches - 1);
  fields.Int("unit", &event.unit, -1, limits.units - 1);
  fields.Int("bucket", &event.bucket, -1, kMaxInt32);
  fields.Int("tensor", &event.tensor, -1, limits.tensors - 1);
  fields.Int("stage", &event.stage, -1, limits.stages - 1);
  fields.Int("stage_count", &event.stage_count, 0, limits.stages - std::max(0, event.stage));
  fields.List("waits", [&](const Json& wait, const Place& at) {
    out->waits.push_back(0);
    return ReadInt(wait, at, 0, events - 1, &out->waits.back());
  });
  fields.List("accesses", [&](const Json& access, const Place& at) {
    out->accesses.emplace_back();
    return ReadAccess(access, at, static_cast<int64_t>(out->buffers.size()), &out->accesses.back());
  });
  event.wait_count = static_cast<uint32_t>(out->waits.size()) - event.first_wait;
  event.access_count = static_cast<uint32_t>(out->accesses.size()) - event.first_access;
  out->events.push_back(event);
  return fields.Finish();
}

absl::Status ReadRankEvents(const Json& json, const Place& place, const Limits& limits,
                            RankEvents* out) {
  Fields fields(json, place);
  fields.Value(
      "ranks",
      [&](const Json& group, const Place& at) { return ReadGroup(group, at, limits, &out->ranks); },
      Need::kRequired);
  fields.List("buffers", [&](const Json& buffer, const Place& at) {
    out->buffers.emplace_back();
    return ReadBuffer(buffer, at, limits, &out->buffers.back());
  });
  fields.List("live_before", [&](const Json& buffer, const Place& at) {
    out->live_before.push_back(0);
    return ReadInt(buffer, at, 0, static_cast<int64_t>(out->buffers.size()) - 1,
                   &out->live_before.back());
  });
  const auto events = json.find("events");
  const int64_t count = events == json.end() ? 0 : static_cast<int64_t>(events->size());
  fields.List("events", [&](const Json& event, const Place& at) {
    return ReadEvent(event, at, limits, count, out);
  });
  return fields.Finish();
}

// "nan:0x7fc01234": the bits; nothing when they are not those of a NaN.
std::optional<float> ReadNan(absl::string_view text) {
  constexpr absl::string_view kPrefix = "nan:0x";
  if (!absl::StartsWith(text, kPrefix) || text.size() != kPrefix.size() + 8) return std::nullopt;
  uint32_t bits = 0;
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data() + kPrefix.size(), end, bits, 16).ptr != end) return std::nullopt;
  const float value = std::bit_cast<float>(bits);
  return std::isnan(value) ? std::optional<float>(value) : std::nullopt;
}

std::optional<float> ReadWord(const Json& json) {
  if (!json.is_string()) return std::nullopt;
  const std::string text = json.get<std::string>();
  if (text == "inf") return std::numeric_limits<float>::infinity();
  if (text == "-inf") return -std::numeric_limits<float>::infinity();
  return ReadNan(text);
}

absl::Status ReadValue(const Json& json, const Place& place, float* value) {
  if (json.is_number()) {
    *value = static_cast<float>(json.get<double>());
    if (std::isfinite(*value)) return absl::OkStatus();
  } else if (const std::optional<float> word = ReadWord(json)) {
    *value = *word;
    return absl::OkStatus();
  }
  return RefuseJson(place, json, kAcceptedValue);
}

absl::Status ReadDouble(const Json& json, const Place& place, double* value) {
  if (json.is_number()) {
    *value = json.get<double>();
    return absl::OkStatus();
  }
  const std::optional<float> word = ReadWord(json);
  if (!word.has_value()) return RefuseJson(place, json, kAcceptedValue);
  *value = *word;
  return absl::OkStatus();
}

absl::Status ReadValues(const Json& json, const Place& place, StateSegment* segment,
                        StoredStep* step) {
  if (!json.is_array() || static_cast<int64_t>(json.size()) != segment->range.count) {
    const std::string size = json.is_array() ? absl::StrCat("an array of ", json.size()) : "";
    const std::string accepted = absl::StrCat("an array of `count` values, ", segment->range.count);
    return size.empty() ? RefuseJson(place, json, accepted) : Refuse(place, size, accepted);
  }
  std::vector<float>& values = step->storage.emplace_back(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    const Place at{&place, "", static_cast<int64_t>(i)};
    SHARDPROOF_RETURN_IF_ERROR(ReadValue(json[i], at, &values[i]));
  }
  // An empty vector may have no address, but its values were observed.
  static constexpr float kNoValues[1] = {0};
  segment->values = values.empty() ? kNoValues : values.data();
  return absl::OkStatus();
}

absl::Status ReadSegment(const Json& json, const Place& place, const Limits& limits,
                         StateSegment* segment, StoredStep* step) {
  Fields fields(json, place);
  fields.Word("state", &segment->state, ParseStateClass, Need::kRequired);
  fields.Int("tensor", &segment->tensor, -1, limits.tensors - 1, Need::kRequired);
  fields.Int("first", &segment->range.first, 0, kMaxCount);
  fields.Int("count", &segment->range.count, 0, kMaxCount, Need::kRequired);
  fields.Int("buffer", &segment->buffer, -1, kMaxInt32);
  fields.Int("buffer_offset", &segment->buffer_offset, 0, kMaxCount);
  fields.Value("values", [&](const Json& values, const Place& at) {
    return ReadValues(values, at, segment, step);
  });
  return fields.Finish();
}

absl::Status ReadBytes(const Json& json, const Place& place, StateBytes* bytes) {
  Fields fields(json, place);
  fields.Int("parameter", &bytes->parameter, 0, kMaxCount);
  fields.Int("gradient", &bytes->gradient, 0, kMaxCount);
  fields.Int("optimizer", &bytes->optimizer, 0, kMaxCount);
  fields.Int("padding", &bytes->padding, 0, kMaxCount);
  fields.Int("scalar", &bytes->scalar, 0, kMaxCount);
  return fields.Finish();
}

absl::Status ReadTensorStep(const Json& json, const Place& place, const Limits& limits,
                            TensorStep* step) {
  Fields fields(json, place);
  fields.Int("tensor", &step->tensor, 0, limits.tensors - 1, Need::kRequired);
  fields.Int("updates", &step->updates, 0, kMaxCount, Need::kRequired);
  return fields.Finish();
}

absl::Status ReadState(const Json& json, const Place& place, const Limits& limits, RankState* state,
                       StoredStep* step) {
  Fields fields(json, place);
  fields.Value(
      "ranks",
      [&](const Json& group, const Place& at) {
        return ReadGroup(group, at, limits, &state->ranks);
      },
      Need::kRequired);
  fields.Value("bytes", [&](const Json& bytes, const Place& at) {
    return ReadBytes(bytes, at, &state->bytes);
  });
  fields.List("segments", [&](const Json& segment, const Place& at) {
    state->segments.emplace_back();
    return ReadSegment(segment, at, limits, &state->segments.back(), step);
  });
  fields.List("steps", [&](const Json& entry, const Place& at) {
    state->steps.emplace_back();
    return ReadTensorStep(entry, at, limits, &state->steps.back());
  });
  return fields.Finish();
}

absl::Status ReadClip(const Json& json, const Place& place, ClipObservation* clip) {
  Fields fields(json, place);
  fields.Value(
      "norm", [&](const Json& norm, const Place& at) { return ReadDouble(norm, at, &clip->norm); },
      Need::kRequired);
  fields.Value(
      "coefficient",
      [&](const Json& value, const Place& at) { return ReadValue(value, at, &clip->coefficient); },
      Need::kRequired);
  return fields.Finish();
}

absl::Status ReadDevice(const Json& json, const Place& place, const Limits& limits,
                        DeviceWitness* device) {
  Fields fields(json, place);
  fields.Int("rank", &device->rank, 0, limits.ranks - 1, Need::kRequired);
  fields.List("collective_kernels", [&](const Json& count, const Place& at) {
    device->collective_kernels.push_back(0);
    return ReadInt(count, at, 0, kMaxCount, &device->collective_kernels.back());
  });
  fields.Int("steady_bytes", &device->steady_bytes, -1, kMaxCount);
  fields.Int("peak_bytes", &device->peak_bytes, -1, kMaxCount);
  SHARDPROOF_RETURN_IF_ERROR(fields.Finish());
  const size_t kinds = device->collective_kernels.size();
  if (kinds == 0 || kinds == kCollectiveKindCount) return absl::OkStatus();
  return Refuse(Place{&place, "collective_kernels"}, absl::StrCat("a list of ", kinds),
                absl::StrCat("none, or one for each of ", kCollectiveKindCount,
                             " kinds: all_reduce, all_gather, reduce_scatter, broadcast, barrier"));
}

absl::Status ReadStep(const Json& json, const Limits& limits, StoredStep* step) {
  StepObservation& out = step->observation;
  const Place place;
  Fields fields(json, place);
  fields.Int("step", &out.step, 0, kMaxCount, Need::kRequired);
  fields.List("events", [&](const Json& events, const Place& at) {
    out.events.emplace_back();
    return ReadRankEvents(events, at, limits, &out.events.back());
  });
  fields.List("states", [&](const Json& state, const Place& at) {
    out.states.emplace_back();
    return ReadState(state, at, limits, &out.states.back(), step);
  });
  fields.List("losses", [&](const Json& loss, const Place& at) {
    out.losses.push_back(0);
    return ReadDouble(loss, at, &out.losses.back());
  });
  fields.Flag("any_order", &out.any_order);
  fields.List("clips", [&](const Json& clip, const Place& at) {
    out.clips.emplace_back();
    return ReadClip(clip, at, &out.clips.back());
  });
  fields.List("devices", [&](const Json& device, const Place& at) {
    out.devices.emplace_back();
    return ReadDevice(device, at, limits, &out.devices.back());
  });
  SHARDPROOF_RETURN_IF_ERROR(fields.Finish());
  const std::pair<const char*, size_t> by_rank[] = {{"losses", out.losses.size()},
                                                    {"clips", out.clips.size()}};
  for (const auto& [key, count] : by_rank) {
    if (count == 0 || count == static_cast<size_t>(limits.ranks)) continue;
    return Refuse(Place{&place, key}, absl::StrCat("a list of ", count),
                  absl::StrCat("none, or one for each of ", limits.ranks, " ranks"));
  }
  return absl::OkStatus();
}

absl::Status AtLine(int64_t line, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", status.message()));
}

// One line as an object; `Json` has no errors after the check of its syntax.
absl::StatusOr<Json> ParseLine(const std::string& line) {
  if (const absl::Status syntax = CheckJsonSyntax(line); !syntax.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(syntax.message(), "; accepted: one whole JSON object on each line"));
  }
  return Json::parse(line, nullptr, /*allow_exceptions=*/false);
}

bool ReadLine(std::istream* input, int64_t* number, std::string* line) {
  while (std::getline(*input, *line)) {
    ++*number;
    if (line->find_first_not_of(" \t\r") != std::string::npos) return true;
  }
  return false;
}

absl::StatusOr<RunDescription> ReadHeader(const std::string& line, const ModelImporter& importer) {
  SHARDPROOF_ASSIGN_OR_RETURN(const Json json, ParseLine(line));
  RunDescription run;
  const Place place;
  Fields fields(json, place);
  fields.Value(
      "schema",
      [](const Json& schema, const Place& at) {
        if (schema.is_string() && schema.get<std::string>() == std::string(kSchema)) {
          return absl::OkStatus();
        }
        return RefuseJson(at, schema, absl::StrCat("\"", kSchema, "\""));
      },
      Need::kRequired);
  fields.Value(
      "run",
      [&](const Json& text, const Place&) -> absl::Status {
        absl::StatusOr<RunDescription> parsed = ParseRunJson(text.dump(), importer);
        if (!parsed.ok()) {
          return absl::InvalidArgumentError(absl::StrCat("run: ", parsed.status().message()));
        }
        run = *std::move(parsed);
        return absl::OkStatus();
      },
      Need::kRequired);
  SHARDPROOF_RETURN_IF_ERROR(fields.Finish());
  return run;
}

}  // namespace

std::string PrintObservationHeader(const RunDescription& run) {
  // Parsed and printed again, for the line must not contain a newline.
  const Json json = Json::parse(PrintRunJson(run), nullptr, /*allow_exceptions=*/false);
  return absl::StrCat("{\"schema\":\"", kSchema, "\",\"run\":", json.dump(), "}");
}

std::string PrintObservationStep(const StepObservation& step, Values values) {
  std::string out = absl::StrCat("{\"step\":", step.step);
  if (!step.events.empty()) {
    AppendList(&out, "events", step.events,
               [&out](const RankEvents& events) { AppendRankEvents(&out, events); });
  }
  if (!step.states.empty()) {
    AppendList(&out, "states", step.states,
               [&](const RankState& state) { AppendState(&out, state, values); });
  }
  if (!step.losses.empty()) {
    AppendList(&out, "losses", step.losses, [&out](double loss) { AppendDouble(&out, loss); });
  }
  if (step.any_order) absl::StrAppend(&out, ",\"any_order\":true");
  if (!step.clips.empty()) {
    AppendList(&out, "clips", step.clips, [&out](const ClipObservation& clip) {
      absl::StrAppend(&out, "{\"norm\":");
      AppendDouble(&out, clip.norm);
      absl::StrAppend(&out, ",\"coefficient\":");
      AppendValue(&out, clip.coefficient);
      out.push_back('}');
    });
  }
  if (!step.devices.empty()) {
    AppendList(&out, "devices", step.devices, [&out](const DeviceWitness& device) {
      absl::StrAppend(&out, "{\"rank\":", device.rank, ",\"collective_kernels\":[",
                      absl::StrJoin(device.collective_kernels, ","),
                      "],\"steady_bytes\":", device.steady_bytes,
                      ",\"peak_bytes\":", device.peak_bytes, "}");
    });
  }
  out.push_back('}');
  return out;
}

absl::StatusOr<ObservationReader> ObservationReader::Open(std::istream* input,
                                                          const ModelImporter& importer) {
  std::string line;
  int64_t number = 0;
  if (!ReadLine(input, &number, &line)) {
    return absl::InvalidArgumentError(
        absl::StrCat("line 1: nothing to read; accepted: {\"schema\":\"", kSchema, "\", ...}"));
  }
  absl::StatusOr<RunDescription> run = ReadHeader(line, importer);
  if (!run.ok()) return AtLine(number, run.status());
  ObservationReader reader(input, *std::move(run));
  reader.line_ = number;
  return reader;
}

absl::StatusOr<std::optional<StoredStep>> ObservationReader::Next() {
  std::string line;
  if (!ReadLine(input_, &line_, &line)) {
    if (input_->bad())
      return absl::DataLossError(absl::StrCat("after line ", line_, ": read error"));
    if (steps_read_ == run_.data.steps) return std::optional<StoredStep>();
    return absl::InvalidArgumentError(
        absl::StrCat("after line ", line_, ": the file ends with ", steps_read_,
                     " steps; accepted: ", run_.data.steps, ", as its run says"));
  }
  absl::StatusOr<Json> json = ParseLine(line);
  if (!json.ok()) return AtLine(line_, json.status());
  std::optional<StoredStep> step(std::in_place);
  if (const absl::Status read = ReadStep(*json, Limits(run_), &*step); !read.ok()) {
    return AtLine(line_, read);
  }
  if (const absl::Status order = CheckOrder(step->observation.step); !order.ok()) {
    return AtLine(line_, order);
  }
  return step;
}

absl::Status ObservationReader::CheckOrder(int64_t step) {
  if (steps_read_ == run_.data.steps) {
    return absl::InvalidArgumentError(absl::StrCat("one step more; accepted: ", run_.data.steps,
                                                   " steps, as the file's run says"));
  }
  if (steps_read_ > 0 && step != last_step_ + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("step is ", step, "; accepted: ", last_step_ + 1, ", the next one"));
  }
  ++steps_read_;
  last_step_ = step;
  return absl::OkStatus();
}

}  // namespace shardproof
