// A failure is replayed from its line, so a line that loses or changes a value replays
// another run; and whatever people mistype must end in one clear message.
#include "invariants/run_description/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kStages = 6;

// Six tensors in six stages. "mlp:..." has a unit a stage; others have a root unit of first
// and last stage.
absl::StatusOr<ModelDescription> Import(absl::string_view text) {
  if (text == "bad") return absl::InvalidArgumentError("model 'bad' is unknown");
  ModelDescription model;
  model.name = "shortened";
  model.kind = absl::StartsWith(text, "mlp:") ? ModelKind::kMlp : ModelKind::kOpaque;
  for (int32_t i = 0; i < kStages; ++i) {
    model.tensors.push_back({absl::StrCat("layers.", i, ".weight"), {3, 3}, 3, true, {}});
    model.stages.push_back({absl::StrCat("layers.", i), {i}});
  }
  if (model.kind == ModelKind::kMlp) {
    for (int32_t i = 0; i < kStages; ++i) model.units.push_back({model.stages[i].name, {i}, true});
  } else {
    model.units = {{"root", {0, 5}, false}, {"blocks", {1, 2, 3, 4}, true}};
  }
  return model;
}

RunDescription Parsed(absl::string_view line) {
  const absl::StatusOr<RunDescription> run = ParseRun(line, Import);
  EXPECT_TRUE(run.ok()) << line << ": " << run.status();
  return run.ok() ? *run : RunDescription();
}

std::string LineError(absl::string_view line) {
  const absl::StatusOr<RunDescription> run = ParseRun(line, Import);
  if (run.ok()) return "accepted";
  EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(run.status().message()), Not(HasSubstr("\n")));
  return std::string(run.status().message());
}

std::string JsonError(absl::string_view json) {
  const absl::StatusOr<RunDescription> run = ParseRunJson(json, Import);
  if (run.ok()) return "accepted";
  EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(run.status().message()), Not(HasSubstr("\n")));
  return std::string(run.status().message());
}

// The body of an otherwise valid document.
std::string WithSchema(absl::string_view body) {
  return absl::StrCat(R"({"schema": "shardproof.run/1", )", body, "}");
}

TEST(ParseRun, UsesDefaultsForKeysThatAreLeftOut) {
  const RunDescription run = Parsed("model=mlp:x");
  EXPECT_EQ(run.sharding.mode, Mode::kReplicated);
  EXPECT_EQ(run.sharding.bucket_cap_bytes, 64 << 20);
  EXPECT_EQ(run.optimizer.epsilon, 1e-8);
  EXPECT_EQ(run.data.seed, 1u);
  EXPECT_EQ(run.model.units.size(), 6u);
}

TEST(ParseRun, ReadsKeysInAnyOrderWithSpacesAndEmptyPairs) {
  const RunDescription run = Parsed(" steps = 7 ;; world_size=4; mode=zero2;model=mlp:x;\n");
  EXPECT_EQ(run.data.steps, 7);
  EXPECT_EQ(run.sharding.world_size.value, 4);
  EXPECT_EQ(run.sharding.mode, Mode::kZero2);
}

TEST(ParseRun, TakesPrefetchAndLayoutDefaultsFromTheMode) {
  EXPECT_EQ(Parsed("model=m;mode=full_shard").sharding.prefetch, Prefetch::kBackwardPre);
  EXPECT_EQ(Parsed("model=m;mode=zero1_broadcast").sharding.layout, LayoutKind::kOwner);
  EXPECT_EQ(Parsed("model=m;mode=zero2").sharding.layout, LayoutKind::kFlat);
  EXPECT_EQ(Parsed("prefetch=none;model=m;mode=full_shard").sharding.prefetch, Prefetch::kNone);
}

TEST(ParseRun, KeepsTheWholeTextOfTheModelAsItsName) {
  EXPECT_EQ(Parsed("model=some/folder/config.json").model.name, "some/folder/config.json");
}

TEST(ParseRun, ReadsGroupsOfStages) {
  const ModelDescription model = Parsed("model=mlp:x;units=0+2-3!,1,4-5").model;
  ASSERT_EQ(model.units.size(), 3u);
  EXPECT_THAT(model.units[0].stages, ElementsAre(0, 2, 3));
  EXPECT_FALSE(model.units[0].reshard_after_forward);
  EXPECT_EQ(model.units[0].name, "layers.0+layers.2-layers.3");
  EXPECT_THAT(model.units[2].stages, ElementsAre(4, 5));
  EXPECT_TRUE(model.units[2].reshard_after_forward);
}

TEST(ParseRun, KeepsTheImportersNameOfAUnitWithTheSameStages) {
  const ModelDescription model = Parsed("model=m;units=0+5,1-4!").model;
  EXPECT_EQ(model.units[0].name, "root");
  EXPECT_EQ(model.units[1].name, "blocks");
}

TEST(ParseRun, RejectsAnUnknownKeyByName) {
  EXPECT_THAT(LineError("model=m;wrold_size=4"),
              AllOf(HasSubstr("'wrold_size' is unknown"), HasSubstr("accepted: model, ties, units"),
                    HasSubstr("world_size"), HasSubstr("clip_grad_norm")));
}

TEST(ParseRun, RejectsARepeatedKey) {
  EXPECT_THAT(LineError("model=m;steps=1;steps=2"), HasSubstr("steps=2 is refused; accepted: "
                                                              "each key once"));
  EXPECT_THAT(LineError("model=m;model=m"), HasSubstr("repeated"));
}

TEST(ParseRun, RejectsAPairWithoutAnEqualsSign) {
  EXPECT_THAT(LineError("model=m;zero2"), HasSubstr("'zero2' has no '='"));
}

TEST(ParseRun, RejectsAMissingModelAndPassesOnTheImportersError) {
  EXPECT_THAT(LineError("steps=1"), HasSubstr("model is missing"));
  EXPECT_THAT(LineError(""), HasSubstr("model is missing"));
  EXPECT_THAT(LineError("model=bad"), HasSubstr("model 'bad' is unknown"));
  EXPECT_THAT(std::string(ParseRun("model=m", nullptr).status().message()),
              HasSubstr("model=m is refused"));
}

TEST(ParseRun, RejectsWordsThatAreNoModes) {
  EXPECT_THAT(LineError("model=m;mode=zero9"),
              AllOf(HasSubstr("mode=zero9"), HasSubstr("full_shard")));
  EXPECT_THAT(LineError("model=m;reduce_dtype=int8"),
              AllOf(HasSubstr("reduce_dtype=int8"), HasSubstr("bfloat16")));
  EXPECT_THAT(LineError("model=m;optimizer=lion"), HasSubstr("optimizer=lion"));
}

TEST(ParseRun, RejectsIntegersThatAreNoneOrOverflow) {
  for (const char* value : {"", "x", "4x", "1.5", "1e3", "99999999999999999999"}) {
    EXPECT_THAT(LineError(absl::StrCat("model=m;steps=", value)),
                AllOf(StartsWith(absl::StrCat("steps=", value, " is refused")),
                      HasSubstr("to 9223372036854775807")));
  }
  EXPECT_THAT(LineError("model=m;world_size=2147483648"), HasSubstr("to 2147483647"));
  EXPECT_THAT(LineError("model=m;seed=-1"), HasSubstr("from 0 to 18446744073709551615"));
}

TEST(ParseRun, RejectsNumbersThatAreNotFinite) {
  for (const char* value : {"", "x", "1e999", "nan", "inf", "1,5"}) {
    EXPECT_THAT(LineError(absl::StrCat("model=m;learning_rate=", value)),
                HasSubstr("accepted: a finite number"));
  }
}

TEST(ParseRun, RejectsFlagsOtherThanZeroAndOne) {
  EXPECT_THAT(LineError("model=m;scale_before_reduce=yes"),
              HasSubstr("scale_before_reduce=yes is refused; accepted: 0, 1"));
}

TEST(ParseRun, RejectsGroupsThatAreNoStages) {
  for (const char* units : {"", "x", "0-9", "3-1", "-1", "0-", "0-1-2", "0,6", "0!!", "0,,1"}) {
    EXPECT_THAT(LineError(absl::StrCat("model=m;units=", units)),
                AllOf(StartsWith("units="), HasSubstr("from 0 to 5")));
  }
  EXPECT_THAT(LineError("model=m;units=0+0,1-5"), HasSubstr("ascending stages"));
  EXPECT_THAT(LineError("model=m;units=0,1-2"), HasSubstr("'layers.3' is in no unit"));
  EXPECT_THAT(LineError("model=m;units=1-5,0"), HasSubstr("order of their first stage"));
}

TEST(ParseRun, ReturnsOnlyWhatValidateAccepts) {
  EXPECT_THAT(LineError("model=m;mode=zero2;prefetch=none"), HasSubstr("prefetch of mode zero2"));
  EXPECT_THAT(LineError("model=m;world_size=0"), HasSubstr("world_size is 0"));
}

TEST(PrintRun, WritesTheModelAndWhatDiffersFromTheDefaults) {
  RunDescription run = Parsed("model=mlp:6x3");
  EXPECT_EQ(PrintRun(run), "model=mlp:6x3");
  run = Parsed("model=mlp:6x3;mode=full_shard;prefetch=backward_pre;learning_rate=0.1;seed=3");
  EXPECT_EQ(PrintRun(run), "model=mlp:6x3;mode=full_shard;learning_rate=0.1;seed=3");
  run = Parsed("model=config.json;mode=zero1_broadcast");
  EXPECT_EQ(PrintRun(run), "model=config.json;units=0+5!,1-4;mode=zero1_broadcast");
}

TEST(PrintRun, KeepsModelTextsThatHoldTheLinesSeparators) {
  for (const char* text : {"a;b=c.json", "100%3B.json", "50%.json", "a\nb.json", "a=b.json"}) {
    RunDescription run = Parsed("model=m");
    run.model.name = text;
    EXPECT_EQ(Parsed(PrintRun(run)).model.name, text);
  }
}

// Random descriptions. Their units are named as the importer and the line name them.
class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : random_(seed) {}

  RunDescription operator()() {
    RunDescription run;
    run.model = *Import(Chance() ? "mlp:6x3" : "config.json");
    run.model.name = run.model.kind == ModelKind::kMlp ? "mlp:6x3" : "config.json";
    if (Chance()) RegroupUnits(run.model);
    FillSharding(run.sharding);
    run.optimizer = {Chance() ? OptimizerKind::kAdamW : OptimizerKind::kSgd,
                     Double(),
                     Beta(),
                     Beta(),
                     Double(),
                     Double(),
                     Double()};
    run.data = {Below(100) + 1, Below(1000) + 1, Below(8) + 1, random_()};
    if (Chance()) run.clip_grad_norm = Double();
    return run;
  }

 private:
  bool Chance() { return random_() % 2 == 0; }
  int32_t Below(int32_t limit) { return static_cast<int32_t>(random_() % limit); }
  template <typename E>
  E Pick(int32_t values) {
    return static_cast<E>(Below(values));
  }

  // Any finite double that is not negative, denormals included.
  double Double() {
    const uint64_t bits = random_() & ~(uint64_t{1} << 63);
    double value = 0;
    static_assert(sizeof value == sizeof bits);
    std::copy_n(reinterpret_cast<const char*>(&bits), sizeof bits, reinterpret_cast<char*>(&value));
    return std::isfinite(value) ? value : 0.1;
  }
  double Beta() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  void RegroupUnits(ModelDescription& model) {
    std::vector<std::vector<int32_t>> groups;
    for (int32_t stage = 0; stage < kStages; ++stage) {
      const size_t group = static_cast<size_t>(Below(static_cast<int32_t>(groups.size()) + 1));
      if (group == groups.size()) groups.emplace_back();
      groups[group].push_back(stage);
    }
    model.units.clear();
    for (const std::vector<int32_t>& stages : groups) model.units.push_back({"", stages, Chance()});
  }

  void FillSharding(ShardingDescription& sharding) {
    sharding.mode = Pick<Mode>(6);
    const bool full = sharding.mode == Mode::kFullShard;
    sharding.prefetch = full ? static_cast<Prefetch>(1 + Below(3)) : Prefetch::kNotApplicable;
    sharding.layout = Pick<LayoutKind>(4);
    if (sharding.mode == Mode::kReplicated) sharding.layout = LayoutKind::kFlat;
    if (sharding.mode == Mode::kZero1Broadcast) sharding.layout = LayoutKind::kOwner;
    sharding.shard_group_size = Below(4);
    sharding.world_size.value = std::max(1, sharding.shard_group_size) * (1 + Below(4));
    sharding.bucket_cap_bytes = 1 + static_cast<int64_t>(random_() >> 1) / 2;
    sharding.grad_sync = Pick<GradSync>(2);
    sharding.broadcast_bucket_view = sharding.mode == Mode::kZero1Broadcast && Chance();
    sharding.scale_before_reduce = Chance();
    sharding.keep_unsharded_between_micro_batches = (full || sharding.mode == Mode::kShardGradOp) &&
                                                    sharding.grad_sync == GradSync::kLast &&
                                                    Chance();
    sharding.precision = {Pick<Dtype>(4), Pick<Dtype>(4), Pick<Dtype>(4), Pick<Dtype>(4)};
    sharding.parameter_tier = Pick<MemoryTier>(2);
    sharding.optimizer_tier = Pick<MemoryTier>(2);
  }

  std::mt19937_64 random_;
};

// The line has no unit names: they follow from the stages.
std::string JsonWithoutUnitNames(RunDescription run) {
  for (Unit& unit : run.model.units) unit.name = "";
  return PrintRunJson(run);
}

TEST(PrintRun, EveryDescriptionComesBackFromItsLine) {
  RandomRun random(20240607);
  for (int i = 0; i < 500; ++i) {
    const RunDescription run = random();
    ASSERT_EQ(Validate(run), absl::OkStatus());
    const std::string line = PrintRun(run);
    const RunDescription again = Parsed(line);
    ASSERT_EQ(JsonWithoutUnitNames(again), JsonWithoutUnitNames(run)) << line;
    ASSERT_EQ(PrintRun(again), line);
    // From here on names are settled too.
    ASSERT_EQ(PrintRunJson(Parsed(PrintRun(again))), PrintRunJson(again)) << line;
  }
}

TEST(PrintRunJson, EveryDescriptionComesBackFromItsDocument) {
  RandomRun random(7);
  for (int i = 0; i < 100; ++i) {
    RunDescription run = random();
    run.model.tensors[2].aliases = {"tied \"1\"", "t\n"};
    run.model.tensors[3].trainable = false;
    run.model.tensors[4].fan_in = 77;
    const std::string json = PrintRunJson(run);
    const absl::StatusOr<RunDescription> again = ParseRunJson(json, nullptr);
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << json;
    ASSERT_EQ(PrintRunJson(*again), json);
    ASSERT_EQ(again->optimizer.learning_rate, run.optimizer.learning_rate);
    ASSERT_EQ(again->data.seed, run.data.seed);
    ASSERT_EQ(again->model.tensors[2].aliases, run.model.tensors[2].aliases);
  }
}

TEST(ParseRun, KeepsTheLargestSeed) {
  const RunDescription run = Parsed("model=m;seed=18446744073709551615");
  EXPECT_EQ(run.data.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(PrintRun(run), EndsWith("seed=18446744073709551615"));
  EXPECT_EQ(ParseRunJson(PrintRunJson(run), nullptr)->data.seed, run.data.seed);
}

TEST(ParseRunJson, ReadsAModelByItsTextWithUnits) {
  const absl::StatusOr<RunDescription> run = ParseRunJson(
      WithSchema(R"("model": "mlp:x", "units": "0-5!", "mode": "full_shard", "steps": 4,
                    "scale_before_reduce": true, "learning_rate": 1)"),
      Import);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->model.name, "mlp:x");
  EXPECT_EQ(run->model.units.size(), 1u);
  EXPECT_EQ(run->sharding.prefetch, Prefetch::kBackwardPre);
  EXPECT_TRUE(run->sharding.scale_before_reduce);
  EXPECT_EQ(run->optimizer.learning_rate, 1.0);
}

TEST(ParseRunJson, RejectsTextThatIsNotJson) {
  EXPECT_THAT(JsonError(""), HasSubstr("not JSON"));
  EXPECT_THAT(JsonError("{\"schema\": \n oops}"), AllOf(HasSubstr("not JSON: parse error at "
                                                                  "line 2")));
  EXPECT_THAT(JsonError(WithSchema(R"("learning_rate": 1e999)")), HasSubstr("1e999"));
  EXPECT_THAT(JsonError("[1]"), HasSubstr("accepted: an object"));
  EXPECT_THAT(JsonError("{\"a\": \"\xff\"}"), HasSubstr("not JSON"));
}

TEST(ParseRunJson, RejectsDeepNestingInsteadOfRunningOutOfStack) {
  EXPECT_THAT(JsonError(WithSchema("\"steps\": " + std::string(1000000, '['))),
              HasSubstr("nested deeper than 64"));
}

TEST(ParseRunJson, RejectsAMissingOrForeignSchema) {
  EXPECT_THAT(JsonError(R"({"model": "m"})"),
              HasSubstr("schema is missing; accepted: \"shardproof.run/1\""));
  EXPECT_THAT(JsonError(R"({"schema": "shardproof.run/2", "model": "m"})"),
              AllOf(HasSubstr("shardproof.run/2"), HasSubstr("accepted: \"shardproof.run/1\"")));
  EXPECT_THAT(JsonError(R"({"schema": 1, "model": "m"})"), HasSubstr("schema=1"));
}

TEST(ParseRunJson, RejectsUnknownAndRepeatedKeys) {
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "step": 3)")),
              HasSubstr("the key 'step' is unknown"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "steps": 3, "steps": 4)")),
              HasSubstr("the key 'steps' is repeated"));
}

TEST(ParseRunJson, RejectsValuesOfTheWrongType) {
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "steps": "3")")),
              HasSubstr("steps=\"3\" is refused; accepted: an integer"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "steps": 3.0)")), HasSubstr("steps=3.0"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "steps": 1e300)")), HasSubstr("steps=1e+300"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "steps": null)")), HasSubstr("steps=null"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "steps": true)")), HasSubstr("steps=true"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "steps": 9223372036854775808)")),
              HasSubstr("steps=9223372036854775808"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "mode": 2)")),
              HasSubstr("mode=2 is refused; accepted: a string"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "beta1": "0.9")")),
              HasSubstr("beta1=\"0.9\" is refused; accepted: a finite number"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": "m", "scale_before_reduce": "1")")),
              HasSubstr("scale_before_reduce=\"1\""));
  EXPECT_THAT(JsonError(WithSchema(R"("model": 3)")), HasSubstr("model=3 is refused"));
}

std::string ModelError(absl::string_view tensor, absl::string_view stage, absl::string_view unit,
                       absl::string_view more = "") {
  return JsonError(
      WithSchema(absl::StrCat(R"("model": {"name": "m", "kind": "probe", "tensors": [)", tensor,
                              "], \"stages\": [", stage, "], \"units\": [", unit, "]", more, "}")));
}

TEST(ParseRunJson, RejectsModelsWithMissingForeignOrMistypedFields) {
  const char* const tensor = R"({"name": "t", "shape": [2]})";
  const char* const stage = R"({"name": "s", "tensors": [0]})";
  const char* const unit = R"({"name": "u", "stages": [0]})";
  EXPECT_EQ(ModelError(tensor, stage, unit), "accepted");
  EXPECT_THAT(ModelError(tensor, stage, unit, ", \"color\": 1"),
              HasSubstr("the key 'model.color' is unknown"));
  EXPECT_THAT(ModelError(R"({"name": "t"})", stage, unit),
              HasSubstr("model.tensors[0].shape is missing"));
  EXPECT_THAT(ModelError(R"({"name": "t", "shape": [2, "3"]})", stage, unit),
              HasSubstr("model.tensors[0].shape[1]=\"3\" is refused"));
  EXPECT_THAT(ModelError(R"({"name": "t", "shape": 2})", stage, unit),
              HasSubstr("model.tensors[0].shape=2 is refused; accepted: an array"));
  EXPECT_THAT(ModelError(R"({"name": 1, "shape": [2]})", stage, unit),
              HasSubstr("model.tensors[0].name=1"));
  EXPECT_THAT(ModelError(R"({"name": "t", "shape": [2], "aliases": [3]})", stage, unit),
              HasSubstr("model.tensors[0].aliases[0]=3"));
  EXPECT_THAT(ModelError(R"({"name": "t", "shape": [2], "trainable": "no"})", stage, unit),
              HasSubstr("model.tensors[0].trainable"));
  EXPECT_THAT(ModelError("7", stage, unit), HasSubstr("model.tensors[0]=7 is refused"));
  EXPECT_THAT(ModelError(tensor, R"({"name": "s", "tensors": [4294967296]})", unit),
              HasSubstr("model.stages[0].tensors[0]=4294967296"));
  EXPECT_THAT(ModelError(tensor, stage, R"({"stages": [0]})"),
              HasSubstr("model.units[0].name is missing"));
  EXPECT_THAT(ModelError(tensor, stage, R"({"name": "u", "stages": [1]})"),
              HasSubstr("an index from 0 to 0"));
  EXPECT_THAT(JsonError(WithSchema(R"("model": {"name": "m", "kind": "cnn", "tensors": [],
                                      "stages": [], "units": []})")),
              HasSubstr("model.kind=cnn is refused; accepted: mlp, probe, opaque"));
}

TEST(ParseRun, FreezesExactlyTheTensorsThatFrozenLists) {
  const auto importer = [](absl::string_view name) -> absl::StatusOr<ModelDescription> {
    ModelDescription model;
    model.name = std::string(name);
    model.kind = ModelKind::kProbe;
    for (int32_t tensor = 0; tensor < 3; ++tensor) {
      const std::string own = absl::StrCat("t", tensor);
      model.tensors.push_back({.name = own, .shape = {2}, .fan_in = 2, .trainable = tensor != 1});
      model.stages.push_back({.name = own, .tensors = {tensor}});
      model.units.push_back({.name = own, .stages = {tensor}});
    }
    return model;
  };
  const absl::StatusOr<RunDescription> run = ParseRun("model=probe:2,2,2;frozen=0,2", importer);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_FALSE(run->model.tensors[0].trainable);
  EXPECT_TRUE(run->model.tensors[1].trainable);
  EXPECT_FALSE(run->model.tensors[2].trainable);
  EXPECT_THAT(PrintRun(*run), HasSubstr(";frozen=0,2"));
  for (const char* bad : {"3", "-1", "x", "0,,1", ""}) {
    const absl::Status status =
        ParseRun(absl::StrCat("model=probe:2,2,2;frozen=", bad), importer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensors from 0 to 2")) << bad;
  }
}

TEST(ParseRun, KeepsTiesUsageAndGroups) {
  const std::string line =
      "model=mlp:x;ties=layers.5.weight:layers.0.weight;usage=1@rank:0,3@micro_batch:1@steps:odd,"
      "4@steps:never;groups=0+2@weight_decay:0,1@learning_rate:0.5@beta1:0.25;"
      "num_micro_batches=2";
  const RunDescription run = Parsed(line);
  ASSERT_EQ(run.model.tensors.size(), 5u);
  EXPECT_THAT(run.model.stages[5].tensors, ElementsAre(0));
  ASSERT_EQ(run.usage.size(), 3u);
  EXPECT_EQ(run.usage[1].micro_batch, 1);
  EXPECT_EQ(run.usage[1].steps, StepUse::kOdd);
  ASSERT_EQ(run.optimizer.groups.size(), 2u);
  EXPECT_EQ(run.optimizer.groups[0].weight_decay, 0);
  EXPECT_EQ(run.optimizer.groups[0].learning_rate, 1e-3);
  EXPECT_EQ(run.optimizer.groups[1].beta1, 0.25);
  EXPECT_EQ(PrintRun(Parsed(PrintRun(run))), PrintRun(run));
  EXPECT_THAT(PrintRun(run), HasSubstr("ties=layers.5.weight:layers.0.weight"));
  const absl::StatusOr<RunDescription> again = ParseRunJson(PrintRunJson(run), nullptr);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintRunJson(*again), PrintRunJson(run));
}

TEST(ParseRun, RefusesBadTiesUsageAndGroups) {
  EXPECT_THAT(LineError("model=mlp:x;ties=layers.5.weight"), HasSubstr("ties=layers.5.weight"));
  EXPECT_THAT(LineError("model=mlp:x;ties=no:layers.0.weight"), HasSubstr("'no'"));
  EXPECT_THAT(LineError("model=mlp:x;usage=a"), HasSubstr("usage=a"));
  EXPECT_THAT(LineError("model=mlp:x;usage=1@steps:some"), HasSubstr("usage=steps:some"));
  EXPECT_THAT(LineError("model=mlp:x;usage=1@rank:9"), HasSubstr("rank is 9"));
  EXPECT_THAT(LineError("model=mlp:x;groups=a@beta1:0"), HasSubstr("groups=a@beta1:0"));
  EXPECT_THAT(LineError("model=mlp:x;groups=0@beta3:0"), HasSubstr("groups=beta3:0"));
  EXPECT_THAT(LineError("model=mlp:x;groups=0@beta1:x"), HasSubstr("beta1=x"));
  EXPECT_THAT(LineError("model=mlp:x;groups=0@beta1:2"), HasSubstr("beta1 is 2"));
}

}  // namespace
}  // namespace shardproof
