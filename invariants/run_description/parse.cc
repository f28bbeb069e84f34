#include "invariants/run_description/parse.h"

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "invariants/run_description/json_syntax.h"
#include "invariants/run_description/message_text.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kSchema = "shardproof.run/1";

// ---------------------------------------------------------------- the keys, in one place

// Calls visit(key, field) for every key whose value is a number, a flag or a word. Line and
// JSON, reader and printer all walk this list, so none of them can forget a key.
template <typename Run, typename Visit>
void VisitKeys(Run& run, Visit&& visit) {
  auto& sharding = run.sharding;
  visit("mode", sharding.mode);
  visit("prefetch", sharding.prefetch);
  visit("layout", sharding.layout);
  visit("world_size", sharding.world_size.value);
  visit("shard_group_size", sharding.shard_group_size);
  visit("bucket_cap_bytes", sharding.bucket_cap_bytes);
  visit("grad_sync", sharding.grad_sync);
  visit("broadcast_bucket_view", sharding.broadcast_bucket_view);
  visit("scale_before_reduce", sharding.scale_before_reduce);
  visit("keep_unsharded_between_micro_batches", sharding.keep_unsharded_between_micro_batches);
  visit("parameter_dtype", sharding.precision.parameter);
  visit("reduce_dtype", sharding.precision.reduce);
  visit("master_dtype", sharding.precision.master);
  visit("moment_dtype", sharding.precision.moment);
  visit("parameter_tier", sharding.parameter_tier);
  visit("optimizer_tier", sharding.optimizer_tier);
  auto& optimizer = run.optimizer;
  visit("optimizer", optimizer.kind);
  visit("learning_rate", optimizer.learning_rate);
  visit("beta1", optimizer.beta1);
  visit("beta2", optimizer.beta2);
  visit("epsilon", optimizer.epsilon);
  visit("weight_decay", optimizer.weight_decay);
  visit("momentum", optimizer.momentum);
  auto& data = run.data;
  visit("steps", data.steps);
  visit("micro_batch_size", data.micro_batch_size);
  visit("num_micro_batches", data.num_micro_batches);
  visit("seed", data.seed);
  visit("clip_grad_norm", run.clip_grad_norm);
}

Prefetch DefaultPrefetch(Mode mode) {
  return mode == Mode::kFullShard ? Prefetch::kBackwardPre : Prefetch::kNotApplicable;
}

LayoutKind DefaultLayout(Mode mode) {
  return mode == Mode::kZero1Broadcast ? LayoutKind::kOwner : LayoutKind::kFlat;
}

constexpr std::pair<ModelKind, absl::string_view> kModelKinds[] = {
    {ModelKind::kMlp, "mlp"}, {ModelKind::kProbe, "probe"}, {ModelKind::kOpaque, "opaque"}};

// ---------------------------------------------------------------- values and messages

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status Refuse(absl::string_view key, absl::string_view value, absl::string_view accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, "=", Shown(value), " is refused; accepted: ", accepted));
}

// What stands behind a key: the text of the line, or a JSON value's.
struct Value {
  enum class Source : uint8_t { kLine, kJsonString, kJsonNumber, kJsonFlag, kJsonOther };
  Source source = Source::kLine;
  std::string text;
  std::string shown;  // as it was written
  bool MayBe(Source json) const { return source == Source::kLine || source == json; }
};

Value ValueOf(const Json& json) {
  const std::string shown = Dump(json);
  if (json.is_string()) return {Value::Source::kJsonString, json.get<std::string>(), shown};
  if (json.is_number()) return {Value::Source::kJsonNumber, shown, shown};
  if (json.is_boolean()) return {Value::Source::kJsonFlag, json.get<bool>() ? "1" : "0", shown};
  return {Value::Source::kJsonOther, shown, shown};
}

absl::StatusOr<Mode> ParseWord(absl::string_view text, Mode) { return ParseMode(text); }
absl::StatusOr<Prefetch> ParseWord(absl::string_view text, Prefetch) { return ParsePrefetch(text); }
absl::StatusOr<LayoutKind> ParseWord(absl::string_view text, LayoutKind) {
  return ParseLayoutKind(text);
}
absl::StatusOr<GradSync> ParseWord(absl::string_view text, GradSync) { return ParseGradSync(text); }
absl::StatusOr<Dtype> ParseWord(absl::string_view text, Dtype) { return ParseDtype(text); }
absl::StatusOr<MemoryTier> ParseWord(absl::string_view text, MemoryTier) {
  return ParseMemoryTier(text);
}
absl::StatusOr<OptimizerKind> ParseWord(absl::string_view text, OptimizerKind) {
  return ParseOptimizerKind(text);
}

template <typename T>
requires std::is_enum_v<T> absl::Status Read(absl::string_view key, const Value& value, T& field) {
  if (!value.MayBe(Value::Source::kJsonString)) return Refuse(key, value.shown, "a string");
  // A word that Shown changes is none of the accepted ones, and stays on one line this way.
  const absl::StatusOr<T> parsed = ParseWord(Shown(value.text), T());
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, "=", Shown(value.text), " is refused: ", parsed.status().message()));
  }
  field = *parsed;
  return absl::OkStatus();
}

template <std::integral T>
absl::Status Read(absl::string_view key, const Value& value, T& field) {
  if (value.MayBe(Value::Source::kJsonNumber) && absl::SimpleAtoi(value.text, &field)) {
    return absl::OkStatus();
  }
  return Refuse(key, value.shown,
                absl::StrCat("an integer from ", std::numeric_limits<T>::min(), " to ",
                             std::numeric_limits<T>::max()));
}

absl::Status Read(absl::string_view key, const Value& value, bool& field) {
  const bool typed =
      value.source != Value::Source::kJsonString && value.source != Value::Source::kJsonOther;
  if (!typed || (value.text != "0" && value.text != "1")) {
    return Refuse(key, value.shown, "0, 1 (in JSON also false, true)");
  }
  field = value.text == "1";
  return absl::OkStatus();
}

absl::Status Read(absl::string_view key, const Value& value, double& field) {
  double number = 0;
  // SimpleAtod makes 1e999 an infinity; that is not the number that was written.
  if (value.MayBe(Value::Source::kJsonNumber) && absl::SimpleAtod(value.text, &number) &&
      std::isfinite(number)) {
    field = number;
    return absl::OkStatus();
  }
  return Refuse(key, value.shown, "a finite number");
}

template <typename T>
std::string Write(T value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(Name(value));
  } else if constexpr (std::is_same_v<T, double>) {
    // The shortest digits that read back as the same double.
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
    return std::string(digits.data(), end.ptr);
  } else {
    return absl::StrCat(value);
  }
}

struct KeyText {
  absl::string_view key;
  std::string text;
  std::string json;
};

std::vector<KeyText> KeyTexts(const RunDescription& run) {
  std::vector<KeyText> texts;
  VisitKeys(run, [&texts](absl::string_view key, auto value) {
    const std::string text = Write(value);
    std::string json = text;
    if constexpr (std::is_enum_v<decltype(value)>) json = absl::StrCat("\"", text, "\"");
    if constexpr (std::is_same_v<decltype(value), bool>) json = value ? "true" : "false";
    texts.push_back({key, text, json});
  });
  return texts;
}

// ---------------------------------------------------------------- units=0-1,2,3-4!

absl::Status ReadRange(absl::string_view range, int32_t stages, std::vector<int32_t>& group) {
  const std::vector<std::string> ends = absl::StrSplit(range, '-');
  int32_t first = 0;
  int32_t last = 0;
  const bool valid = ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &first) &&
                     absl::SimpleAtoi(ends.back(), &last) && first >= 0 && first <= last &&
                     last < stages;
  if (!valid) {
    return Refuse("units", range,
                  absl::StrCat("a stage or an ascending range of stages from 0 to ", stages - 1,
                               ", as in 0-1,2+4!,3"));
  }
  for (int32_t stage = first; stage <= last; ++stage) {
    if (!group.empty() && stage <= group.back()) {
      return Refuse("units", range, "ascending stages in a group");
    }
    group.push_back(stage);
  }
  return absl::OkStatus();
}

// Runs of neighbours, as (first, last).
std::vector<std::pair<int32_t, int32_t>> Runs(const std::vector<int32_t>& stages) {
  std::vector<std::pair<int32_t, int32_t>> runs;
  for (const int32_t stage : stages) {
    if (runs.empty() || runs.back().second + 1 != stage) {
      runs.emplace_back(stage, stage);
    } else {
      runs.back().second = stage;
    }
  }
  return runs;
}

std::string PrintUnits(const ModelDescription& model) {
  return absl::StrJoin(model.units, ",", [](std::string* out, const Unit& unit) {
    const auto print_run = [](std::string* text, const std::pair<int32_t, int32_t>& run) {
      absl::StrAppend(text, run.first);
      if (run.second > run.first) absl::StrAppend(text, "-", run.second);
    };
    absl::StrAppend(out, absl::StrJoin(Runs(unit.stages), "+", print_run),
                    unit.reshard_after_forward ? "" : "!");
  });
}

// "layers.0-layers.2+layers.5": the line has no names for units, so they follow from the
// stages, and equal lines give equal names.
std::string UnitName(const ModelDescription& model, const std::vector<int32_t>& stages) {
  return absl::StrJoin(Runs(stages), "+",
                       [&model](std::string* out, const std::pair<int32_t, int32_t>& run) {
                         absl::StrAppend(out, model.stages[run.first].name);
                         if (run.second > run.first)
                           absl::StrAppend(out, "-", model.stages[run.second].name);
                       });
}

absl::Status RegroupUnits(absl::string_view text, ModelDescription& model) {
  const int32_t stages = static_cast<int32_t>(model.stages.size());
  std::map<std::vector<int32_t>, std::string> importer_names;
  for (const Unit& unit : model.units) importer_names[unit.stages] = unit.name;
  std::vector<Unit> units;
  for (absl::string_view group : absl::StrSplit(text, ',')) {
    Unit unit;
    unit.reshard_after_forward = !absl::ConsumeSuffix(&group, "!");
    for (const absl::string_view range : absl::StrSplit(group, '+')) {
      SHARDPROOF_RETURN_IF_ERROR(ReadRange(range, stages, unit.stages));
    }
    const auto known = importer_names.find(unit.stages);
    unit.name = known != importer_names.end() ? known->second : UnitName(model, unit.stages);
    units.push_back(std::move(unit));
  }
  model.units = std::move(units);
  return absl::OkStatus();
}

// Whether the importer of the model's text groups the stages like this by itself: mlp: and
// probe:SHAPES have one unit a stage. Other models' units are written out.
bool HasImporterUnits(const ModelDescription& model) {
  absl::string_view shapes = model.name;
  const bool one_unit_a_stage =
      model.kind == ModelKind::kMlp ||
      (model.kind == ModelKind::kProbe && absl::ConsumePrefix(&shapes, "probe:") &&
       shapes.find_first_not_of("0123456789x,") == absl::string_view::npos);
  if (!one_unit_a_stage || model.units.size() != model.stages.size()) return false;
  for (const Unit& unit : model.units) {
    if (unit.stages.size() != 1 || !unit.reshard_after_forward) return false;
  }
  return true;
}

// ---------------------------------------------------------------- frozen=0,3

// The list is the whole truth: a tensor that it leaves out is trainable.
absl::Status FreezeTensors(absl::string_view text, ModelDescription& model) {
  for (TensorSpec& tensor : model.tensors) tensor.trainable = true;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    int32_t tensor = 0;
    if (!absl::SimpleAtoi(entry, &tensor) || tensor < 0 ||
        static_cast<size_t>(tensor) >= model.tensors.size()) {
      return Refuse(
          "frozen", entry,
          absl::StrCat("tensors from 0 to ", model.tensors.size() - 1, ", joined by ','"));
    }
    model.tensors[static_cast<size_t>(tensor)].trainable = false;
  }
  return absl::OkStatus();
}

std::string PrintFrozen(const ModelDescription& model) {
  std::vector<size_t> frozen;
  for (size_t tensor = 0; tensor < model.tensors.size(); ++tensor) {
    if (!model.tensors[tensor].trainable) frozen.push_back(tensor);
  }
  return absl::StrJoin(frozen, ",");
}

// ---------------------------------------------------------------- ties=head.weight:embed.weight

absl::Status TieAll(absl::string_view text, ModelDescription& model) {
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> names = absl::StrSplit(entry, ':');
    if (names.size() != 2) {
      return Refuse("ties", entry, "TIED:KEPT, two names of tensors; joined by ','");
    }
    SHARDPROOF_RETURN_IF_ERROR(TieTensors(names[0], names[1], model));
  }
  return absl::OkStatus();
}

std::string PrintTies(const ModelDescription& model) {
  std::vector<std::string> ties;
  for (const TensorSpec& tensor : model.tensors) {
    for (const std::string& alias : tensor.aliases) {
      ties.push_back(absl::StrCat(alias, ":", tensor.name));
    }
  }
  return absl::StrJoin(ties, ",");
}

// ----------------------------------------------------------------
// usage=3@rank:0@steps:even,4@steps:never

constexpr std::pair<StepUse, absl::string_view> kStepUses[] = {{StepUse::kEvery, "every"},
                                                               {StepUse::kEven, "even"},
                                                               {StepUse::kOdd, "odd"},
                                                               {StepUse::kNever, "never"}};

absl::Status ReadCondition(absl::string_view condition, UsageRule& rule) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(condition, absl::MaxSplits(':', 1));
  if (parts.first == "rank" && absl::SimpleAtoi(parts.second, &rule.rank)) {
    return absl::OkStatus();
  }
  if (parts.first == "micro_batch" && absl::SimpleAtoi(parts.second, &rule.micro_batch)) {
    return absl::OkStatus();
  }
  for (const auto& [use, name] : kStepUses) {
    if (parts.first != "steps" || parts.second != name) continue;
    rule.steps = use;
    return absl::OkStatus();
  }
  return Refuse("usage", condition, "rank:R, micro_batch:M, steps:every|even|odd|never");
}

absl::StatusOr<std::vector<UsageRule>> ReadUsage(absl::string_view text) {
  std::vector<UsageRule> rules;
  if (text.empty()) return rules;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(entry, '@');
    UsageRule& rule = rules.emplace_back();
    if (!absl::SimpleAtoi(parts[0], &rule.tensor)) {
      return Refuse("usage", entry, "TENSOR@CONDITION@..., as in 3@rank:0@steps:even");
    }
    for (size_t i = 1; i < parts.size(); ++i) {
      SHARDPROOF_RETURN_IF_ERROR(ReadCondition(parts[i], rule));
    }
  }
  return rules;
}

std::string PrintUsage(const std::vector<UsageRule>& rules) {
  return absl::StrJoin(rules, ",", [](std::string* out, const UsageRule& rule) {
    absl::StrAppend(out, rule.tensor);
    if (rule.rank >= 0) absl::StrAppend(out, "@rank:", rule.rank);
    if (rule.micro_batch >= 0) absl::StrAppend(out, "@micro_batch:", rule.micro_batch);
    for (const auto& [use, name] : kStepUses) {
      if (use == rule.steps && use != StepUse::kEvery) absl::StrAppend(out, "@steps:", name);
    }
  });
}

// ----------------------------------------------------------------
// groups=0+2@weight_decay:0,1@beta1:0.5

// Calls visit(key, field) for what a group sets.
template <typename Group, typename Visit>
void VisitGroupKeys(Group& group, Visit&& visit) {
  visit("learning_rate", group.learning_rate);
  visit("beta1", group.beta1);
  visit("beta2", group.beta2);
  visit("weight_decay", group.weight_decay);
}

absl::Status ReadGroupKey(absl::string_view entry, OptimizerGroup& group) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(entry, absl::MaxSplits(':', 1));
  absl::Status status =
      Refuse("groups", entry, "learning_rate:X, beta1:X, beta2:X, weight_decay:X");
  VisitGroupKeys(group, [&](absl::string_view key, double& field) {
    if (key != parts.first) return;
    const std::string text(parts.second);
    status = Read(absl::StrCat("groups: ", key), {Value::Source::kLine, text, text}, field);
  });
  return status;
}

// What a group leaves out is the optimizer's.
absl::StatusOr<std::vector<OptimizerGroup>> ReadGroups(absl::string_view text,
                                                       const OptimizerDescription& base) {
  std::vector<OptimizerGroup> groups;
  if (text.empty()) return groups;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(entry, '@');
    OptimizerGroup& group = groups.emplace_back();
    group.learning_rate = base.learning_rate;
    group.beta1 = base.beta1;
    group.beta2 = base.beta2;
    group.weight_decay = base.weight_decay;
    for (const absl::string_view tensor : absl::StrSplit(parts[0], '+')) {
      if (!absl::SimpleAtoi(tensor, &group.tensors.emplace_back())) {
        return Refuse("groups", entry, "TENSOR+TENSOR...@KEY:VALUE@..., as in 0+2@weight_decay:0");
      }
    }
    for (size_t i = 1; i < parts.size(); ++i) {
      SHARDPROOF_RETURN_IF_ERROR(ReadGroupKey(parts[i], group));
    }
  }
  return groups;
}

std::string PrintGroups(const OptimizerDescription& optimizer) {
  return absl::StrJoin(optimizer.groups, ",",
                       [&optimizer](std::string* out, const OptimizerGroup& group) {
                         absl::StrAppend(out, absl::StrJoin(group.tensors, "+"));
                         std::vector<std::pair<absl::string_view, double>> usual;
                         VisitGroupKeys(optimizer, [&usual](absl::string_view key, double value) {
                           usual.emplace_back(key, value);
                         });
                         size_t at = 0;
                         VisitGroupKeys(group, [&](absl::string_view key, double value) {
                           if (value != usual[at++].second)
                             absl::StrAppend(out, "@", key, ":", Write(value));
                         });
                       });
}

// ---------------------------------------------------------------- reading keys

// Collects keys in any order; defaults that depend on other keys, and the model, come last.
class RunReader {
 public:
  absl::Status Set(absl::string_view key, const Value& value) {
    if (!seen_.insert(std::string(key)).second) {
      return Refuse(key, value.shown, "each key once; this one is repeated");
    }
    if (key == "model") return SetText(key, value, model_text_);
    if (key == "units") return SetText(key, value, units_text_);
    if (key == "frozen") return SetText(key, value, frozen_text_);
    if (key == "ties") return SetText(key, value, ties_text_);
    if (key == "usage") return SetText(key, value, usage_text_);
    if (key == "groups") return SetText(key, value, groups_text_);
    std::optional<absl::Status> result;
    VisitKeys(run_, [&](absl::string_view name, auto& field) {
      if (name == key) result = Read(key, value, field);
    });
    return result.has_value() ? *result : UnknownKey(key);
  }

  void SetModel(ModelDescription model) { model_ = std::move(model); }

  absl::StatusOr<RunDescription> Finish(const ModelImporter& importer) && {
    const Mode mode = run_.sharding.mode;
    if (!seen_.contains("prefetch")) run_.sharding.prefetch = DefaultPrefetch(mode);
    if (!seen_.contains("layout")) run_.sharding.layout = DefaultLayout(mode);
    if (!model_.has_value()) SHARDPROOF_RETURN_IF_ERROR(ImportText(importer));
    run_.model = *std::move(model_);
    // First: it moves the indices that units, frozen, usage and groups speak of.
    if (ties_text_.has_value()) SHARDPROOF_RETURN_IF_ERROR(TieAll(*ties_text_, run_.model));
    if (units_text_.has_value()) {
      SHARDPROOF_RETURN_IF_ERROR(RegroupUnits(*units_text_, run_.model));
    }
    if (frozen_text_.has_value()) {
      SHARDPROOF_RETURN_IF_ERROR(FreezeTensors(*frozen_text_, run_.model));
    }
    if (usage_text_.has_value()) {
      SHARDPROOF_ASSIGN_OR_RETURN(run_.usage, ReadUsage(*usage_text_));
    }
    if (groups_text_.has_value()) {
      SHARDPROOF_ASSIGN_OR_RETURN(run_.optimizer.groups, ReadGroups(*groups_text_, run_.optimizer));
    }
    SHARDPROOF_RETURN_IF_ERROR(Validate(run_));
    return std::move(run_);
  }

 private:
  static absl::Status SetText(absl::string_view key, const Value& value,
                              std::optional<std::string>& text) {
    if (!value.MayBe(Value::Source::kJsonString)) return Refuse(key, value.shown, "a string");
    text = value.text;
    return absl::OkStatus();
  }

  absl::Status UnknownKey(absl::string_view key) const {
    std::string accepted = "model, ties, units, frozen, usage, groups";
    VisitKeys(run_, [&accepted](absl::string_view name, const auto&) {
      absl::StrAppend(&accepted, ", ", name);
    });
    return absl::InvalidArgumentError(
        absl::StrCat("the key '", Shown(key), "' is unknown; accepted: ", accepted));
  }

  absl::Status ImportText(const ModelImporter& importer) {
    if (!model_text_.has_value()) {
      return absl::InvalidArgumentError("model is missing; accepted: model=TEXT, as --model");
    }
    if (importer == nullptr) {
      return Refuse("model", *model_text_, "a model written out in full (no importer is given)");
    }
    SHARDPROOF_ASSIGN_OR_RETURN(model_, importer(*model_text_));
    // Whatever an importer calls the model, a replay line needs the text that imports it again.
    model_->name = *model_text_;
    return absl::OkStatus();
  }

  RunDescription run_;
  std::set<std::string> seen_;
  std::optional<std::string> model_text_;
  std::optional<std::string> units_text_;
  std::optional<std::string> frozen_text_;
  std::optional<std::string> ties_text_;
  std::optional<std::string> usage_text_;
  std::optional<std::string> groups_text_;
  std::optional<ModelDescription> model_;
};

// A model's text is the only value that may hold the line's own separators.
std::string EscapeModel(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"%", "%25"}, {";", "%3B"}, {"\n", "%0A"}, {"\r", "%0D"}});
}

std::string UnescapeModel(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"%25", "%"}, {"%3B", ";"}, {"%0A", "\n"}, {"%0D", "\r"}});
}

// ---------------------------------------------------------------- the model in JSON

// The fields of one JSON object, at `place` in the document. The first error stays; reads
// after it give empty values.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string place, std::set<std::string> accepted)
      : object_(object), place_(std::move(place)) {
    if (!object.is_object()) {
      Fail(Refuse(place_, Dump(object), "an object"));
      return;
    }
    for (const auto& [key, value] : object.items()) {
      if (!accepted.contains(key)) {
        Fail(absl::InvalidArgumentError(
            absl::StrCat("the key '", place_, ".", Shown(key),
                         "' is unknown; accepted: ", absl::StrJoin(accepted, ", "))));
      }
    }
  }

  const absl::Status& status() const { return status_; }
  std::string At(absl::string_view key) const { return absl::StrCat(place_, ".", key); }

  std::string Text(absl::string_view key) {
    const Json* value = Required(key);
    if (value == nullptr) return "";
    if (!value->is_string()) return Fail(Refuse(At(key), Dump(*value), "a string")), "";
    return value->get<std::string>();
  }

  bool Flag(absl::string_view key, bool fallback) {
    const Json* value = Optional(key);
    bool flag = fallback;
    if (value != nullptr) Fail(Read(At(key), ValueOf(*value), flag));
    return flag;
  }

  int64_t Integer(absl::string_view key, int64_t fallback) {
    const Json* value = Optional(key);
    int64_t number = fallback;
    if (value != nullptr) Fail(Read(At(key), ValueOf(*value), number));
    return number;
  }

  // Reads each entry of an array with read(entry, place of the entry, result).
  template <typename T, typename ReadEntry>
  std::vector<T> List(const Json* list, absl::string_view key, ReadEntry read) {
    std::vector<T> result;
    if (list == nullptr) return result;
    if (!list->is_array()) {
      Fail(Refuse(At(key), Dump(*list), "an array"));
      return result;
    }
    for (size_t i = 0; i < list->size() && status_.ok(); ++i) {
      Fail(read((*list)[i], absl::StrCat(At(key), "[", i, "]"), result.emplace_back()));
    }
    return result;
  }

  template <std::integral T>
  std::vector<T> Integers(absl::string_view key) {
    return List<T>(Required(key), key, [](const Json& entry, const std::string& at, T& number) {
      return Read(at, ValueOf(entry), number);
    });
  }

  std::vector<std::string> OptionalTexts(absl::string_view key) {
    return List<std::string>(Optional(key), key,
                             [](const Json& entry, const std::string& at, std::string& text) {
                               if (!entry.is_string()) return Refuse(at, Dump(entry), "a string");
                               text = entry.get<std::string>();
                               return absl::OkStatus();
                             });
  }

  const Json* Required(absl::string_view key) {
    const Json* value = Optional(key);
    if (value == nullptr) {
      Fail(absl::InvalidArgumentError(
          absl::StrCat(At(key), " is missing; accepted: an object that has it")));
    }
    return value;
  }

 private:
  const Json* Optional(absl::string_view key) const {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(std::string(key));
    return found == object_.end() ? nullptr : &*found;
  }

  void Fail(const absl::Status& status) { status_.Update(status); }

  const Json& object_;
  const std::string place_;
  absl::Status status_;
};

absl::Status ReadTensor(const Json& json, const std::string& place, TensorSpec& tensor) {
  ObjectReader reader(json, place, {"name", "shape", "fan_in", "trainable", "aliases"});
  tensor.name = reader.Text("name");
  tensor.shape = reader.Integers<int64_t>("shape");
  tensor.fan_in = reader.Integer("fan_in", tensor.fan_in);
  tensor.trainable = reader.Flag("trainable", tensor.trainable);
  tensor.aliases = reader.OptionalTexts("aliases");
  return reader.status();
}

absl::Status ReadStage(const Json& json, const std::string& place, Stage& stage) {
  ObjectReader reader(json, place, {"name", "tensors"});
  stage.name = reader.Text("name");
  stage.tensors = reader.Integers<int32_t>("tensors");
  return reader.status();
}

absl::Status ReadUnit(const Json& json, const std::string& place, Unit& unit) {
  ObjectReader reader(json, place, {"name", "stages", "reshard_after_forward"});
  unit.name = reader.Text("name");
  unit.stages = reader.Integers<int32_t>("stages");
  unit.reshard_after_forward = reader.Flag("reshard_after_forward", unit.reshard_after_forward);
  return reader.status();
}

absl::StatusOr<ModelKind> ParseModelKind(absl::string_view text) {
  for (const auto& [kind, name] : kModelKinds) {
    if (name == text) return kind;
  }
  return Refuse("model.kind", text, "mlp, probe, opaque");
}

absl::string_view ModelKindName(ModelKind kind) {
  for (const auto& [value, name] : kModelKinds) {
    if (value == kind) return name;
  }
  return "?";
}

absl::StatusOr<ModelDescription> ReadModel(const Json& json) {
  ObjectReader reader(json, "model", {"name", "kind", "tensors", "stages", "units"});
  ModelDescription model;
  model.name = reader.Text("name");
  const std::string kind = reader.Text("kind");
  model.tensors = reader.List<TensorSpec>(reader.Required("tensors"), "tensors", ReadTensor);
  model.stages = reader.List<Stage>(reader.Required("stages"), "stages", ReadStage);
  model.units = reader.List<Unit>(reader.Required("units"), "units", ReadUnit);
  SHARDPROOF_RETURN_IF_ERROR(reader.status());
  SHARDPROOF_ASSIGN_OR_RETURN(model.kind, ParseModelKind(kind));
  return model;
}

std::string PrintTensor(const TensorSpec& tensor) {
  return absl::StrCat("{\"name\": ", Dump(tensor.name), ", \"shape\": ", Dump(tensor.shape),
                      ", \"fan_in\": ", tensor.fan_in,
                      ", \"trainable\": ", tensor.trainable ? "true" : "false",
                      ", \"aliases\": ", Dump(tensor.aliases), "}");
}

std::string PrintStage(const Stage& stage) {
  return absl::StrCat("{\"name\": ", Dump(stage.name), ", \"tensors\": ", Dump(stage.tensors), "}");
}

std::string PrintUnit(const Unit& unit) {
  return absl::StrCat(
      "{\"name\": ", Dump(unit.name), ", \"stages\": ", Dump(unit.stages),
      ", \"reshard_after_forward\": ", unit.reshard_after_forward ? "true" : "false", "}");
}

// One entry a line: a model has thousands of tensors, and people read and diff these files.
template <typename T>
std::string PrintList(const std::vector<T>& entries, std::string (*print)(const T&)) {
  if (entries.empty()) return "[]";
  return absl::StrCat(
      "[\n      ",
      absl::StrJoin(entries, ",\n      ",
                    [print](std::string* out, const T& entry) { out->append(print(entry)); }),
      "\n    ]");
}

std::string PrintModel(const ModelDescription& model) {
  return absl::StrCat("{\n    \"name\": ", Dump(model.name), ",\n    \"kind\": \"",
                      ModelKindName(model.kind),
                      "\",\n    \"tensors\": ", PrintList(model.tensors, PrintTensor),
                      ",\n    \"stages\": ", PrintList(model.stages, PrintStage),
                      ",\n    \"units\": ", PrintList(model.units, PrintUnit), "\n  }");
}

}  // namespace

absl::StatusOr<RunDescription> ParseRun(absl::string_view line, const ModelImporter& importer) {
  RunReader reader;
  for (absl::string_view pair : absl::StrSplit(line, ';')) {
    pair = absl::StripAsciiWhitespace(pair);
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    if (equals == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", Shown(pair), "' has no '='; accepted: key=value pairs joined by ';'"));
    }
    const absl::string_view key = absl::StripTrailingAsciiWhitespace(pair.substr(0, equals));
    std::string value(absl::StripLeadingAsciiWhitespace(pair.substr(equals + 1)));
    if (key == "model") value = UnescapeModel(value);
    SHARDPROOF_RETURN_IF_ERROR(reader.Set(key, {Value::Source::kLine, value, value}));
  }
  return std::move(reader).Finish(importer);
}

absl::StatusOr<RunDescription> ParseRunJson(absl::string_view json, const ModelImporter& importer) {
  SHARDPROOF_RETURN_IF_ERROR(CheckJsonSyntax(json));
  const Json document = Json::parse(json.begin(), json.end(), nullptr, false);
  if (!document.is_object()) return Refuse("the document", Dump(document), "an object");
  const auto schema = document.find("schema");
  if (schema == document.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("schema is missing; accepted: \"", kSchema, "\""));
  }
  if (!schema->is_string() || schema->get<std::string>() != kSchema) {
    return Refuse("schema", Dump(*schema), absl::StrCat("\"", kSchema, "\""));
  }
  RunReader reader;
  for (const auto& [key, value] : document.items()) {
    if (key == "schema") continue;
    if (key == "model" && value.is_object()) {
      SHARDPROOF_ASSIGN_OR_RETURN(ModelDescription model, ReadModel(value));
      reader.SetModel(std::move(model));
      continue;
    }
    SHARDPROOF_RETURN_IF_ERROR(reader.Set(key, ValueOf(value)));
  }
  return std::move(reader).Finish(importer);
}

std::string PrintRun(const RunDescription& run) {
  RunDescription usual;
  usual.sharding.prefetch = DefaultPrefetch(run.sharding.mode);
  usual.sharding.layout = DefaultLayout(run.sharding.mode);
  const std::vector<KeyText> values = KeyTexts(run);
  const std::vector<KeyText> defaults = KeyTexts(usual);
  std::string line = absl::StrCat("model=", EscapeModel(run.model.name));
  const std::string ties = PrintTies(run.model);
  if (!ties.empty()) absl::StrAppend(&line, ";ties=", ties);
  if (!HasImporterUnits(run.model)) absl::StrAppend(&line, ";units=", PrintUnits(run.model));
  const std::string frozen = PrintFrozen(run.model);
  if (!frozen.empty()) absl::StrAppend(&line, ";frozen=", frozen);
  if (!run.usage.empty()) absl::StrAppend(&line, ";usage=", PrintUsage(run.usage));
  const std::string groups = PrintGroups(run.optimizer);
  if (!groups.empty()) absl::StrAppend(&line, ";groups=", groups);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].text == defaults[i].text) continue;
    absl::StrAppend(&line, ";", values[i].key, "=", values[i].text);
  }
  return line;
}

std::string PrintRunJson(const RunDescription& run) {
  std::string json =
      absl::StrCat("{\n  \"schema\": \"", kSchema, "\",\n  \"model\": ", PrintModel(run.model));
  for (const KeyText& value : KeyTexts(run)) {
    absl::StrAppend(&json, ",\n  \"", value.key, "\": ", value.json);
  }
  if (!run.usage.empty()) {
    absl::StrAppend(&json, ",\n  \"usage\": \"", PrintUsage(run.usage), "\"");
  }
  if (!run.optimizer.groups.empty()) {
    absl::StrAppend(&json, ",\n  \"groups\": \"", PrintGroups(run.optimizer), "\"");
  }
  return json + "\n}\n";
}

}  // namespace shardproof
