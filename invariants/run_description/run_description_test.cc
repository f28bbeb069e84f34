// What Validate accepts, planners and closed forms compute with unchecked: a rule that is
// missing here shows up there as a wrong expectation or a read past a buffer.
#include "invariants/run_description/run_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Linear(3, 4) with bias, Linear(4, 2); one unit a layer.
RunDescription SmallRun() {
  RunDescription run;
  run.model.name = "small";
  run.model.tensors = {{"layers.0.weight", {4, 3}, 3, true, {}},
                       {"layers.0.bias", {4}, 3, true, {}},
                       {"layers.1.weight", {2, 4}, 4, true, {}}};
  run.model.stages = {{"layers.0", {0, 1}}, {"layers.1", {2}}};
  run.model.units = {{"layers.0", {0}, true}, {"layers.1", {1}, true}};
  run.sharding.world_size = WorldSize{4};
  return run;
}

std::string ErrorAfter(const std::function<void(RunDescription&)>& edit) {
  RunDescription run = SmallRun();
  edit(run);
  const absl::Status status = Validate(run);
  if (status.ok()) return "accepted";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

void UseProbe(RunDescription& run) { run.model.kind = ModelKind::kProbe; }

TEST(Facts, CountElementsOfTrainableAndAllTensors) {
  RunDescription run = SmallRun();
  run.model.tensors[1].trainable = false;
  EXPECT_EQ(Elements(run.model.tensors[0]), 12);
  EXPECT_EQ(ParameterElements(run.model), 24);
  EXPECT_EQ(TrainableElements(run.model), 20);
}

TEST(Facts, AUnitListsEachTensorOnceInOrderOfFirstUse) {
  RunDescription run = SmallRun();
  run.model.stages = {{"embeddings", {2}}, {"block", {0}}, {"head", {1, 2}}};
  run.model.units = {{"root", {0, 2}, false}, {"block", {1}, true}};
  EXPECT_THAT(TensorsOfUnits(run.model), ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
  EXPECT_THAT(UnitOfTensor(run.model), ElementsAre(1, 0, 0));
  EXPECT_THAT(UnitOfStage(run.model), ElementsAre(0, 1, 0));
}

TEST(Facts, AModeRowHasThePrefetchOfFullShardOnly) {
  ShardingDescription sharding;
  sharding.mode = Mode::kZero2;
  EXPECT_EQ(ModeRowName(sharding), "zero2");
  sharding.mode = Mode::kFullShard;
  sharding.prefetch = Prefetch::kBackwardPre;
  EXPECT_EQ(ModeRowName(sharding), "full_shard/backward_pre");
}

TEST(Facts, TheShardCountIsTheGroupOrTheWorld) {
  ShardingDescription sharding;
  sharding.world_size = WorldSize{8};
  EXPECT_EQ(ShardCount(sharding), 8);
  sharding.shard_group_size = 2;
  EXPECT_EQ(ShardCount(sharding), 2);
}

TEST(Validate, AcceptsASmallRun) { EXPECT_EQ(Validate(SmallRun()), absl::OkStatus()); }

TEST(Validate, AcceptsStagesWithoutTensors) {
  EXPECT_EQ(ErrorAfter([](RunDescription& run) {
              UseProbe(run);
              run.model.stages.push_back({"relu", {}});
              run.model.units.push_back({"relu", {2}, true});
            }),
            "accepted");
}

TEST(Validate, AcceptsATiedTensorWithinOneUnit) {
  EXPECT_EQ(ErrorAfter([](RunDescription& run) {
              UseProbe(run);
              run.model.tensors[0].aliases = {"lm_head.weight"};
              run.model.stages.push_back({"head", {0}});
              run.model.units[0].stages = {0, 2};
            }),
            "accepted");
}

TEST(Validate, RefusesAModelWithoutParameters) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model = ModelDescription(); }),
              AllOf(HasSubstr("no parameters"), HasSubstr("at least one tensor")));
}

TEST(Validate, RefusesExtentsBelowZeroAndModelsWithoutElements) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.model.tensors[0].shape = {0, 3};
              }),
              AllOf(HasSubstr("weight's shape is [0, 3]"), HasSubstr("extents from 1")));
  EXPECT_EQ(ErrorAfter([](RunDescription& run) {
              UseProbe(run);
              run.model.tensors[0].shape = {0, 3};
            }),
            "accepted");
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                UseProbe(run);
                for (TensorSpec& tensor : run.model.tensors) tensor.shape = {0};
              }),
              HasSubstr("only empty tensors"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.model.tensors[0].shape = {4, -3};
              }),
              HasSubstr("shape is [4, -3]"));
}

TEST(Validate, RefusesAShapeWithoutExtents) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.tensors[1].shape = {}; }),
              AllOf(HasSubstr("shape is []"), HasSubstr("[1]")));
}

TEST(Validate, RefusesAProductBeyondInt64) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.model.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
              }),
              AllOf(HasSubstr("[1099511627776, 1099511627776]"), HasSubstr("at most")));
}

TEST(Validate, RefusesATotalBeyondInt64) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                UseProbe(run);
                run.model.tensors[0].shape = {std::numeric_limits<int64_t>::max() / 16};
              }),
              AllOf(HasSubstr("the total up to model.tensors[1]"), HasSubstr("64-bit")));
}

TEST(Validate, RefusesAFanInBelowOne) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.tensors[0].fan_in = 0; }),
              HasSubstr("fan_in is 0; accepted: an integer from 1"));
}

TEST(Validate, RefusesEmptyAndRepeatedTensorNames) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.tensors[2].name = ""; }),
              HasSubstr("model.tensors[2]: name is ''"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.tensors[2].name = "layers.0.bias"; }),
              HasSubstr("'layers.0.bias' is a repeated name"));
  EXPECT_THAT(
      ErrorAfter([](RunDescription& run) { run.model.tensors[2].aliases = {"layers.0.bias"}; }),
      HasSubstr("alias 'layers.0.bias' is a repeated name"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.tensors[2].aliases = {""}; }),
              HasSubstr("alias '' is empty"));
}

TEST(Validate, RefusesTensorIndicesOutOfRange) {
  for (const int32_t index : {-1, 3}) {
    EXPECT_THAT(ErrorAfter([index](RunDescription& run) { run.model.stages[1].tensors = {index}; }),
                AllOf(HasSubstr("'layers.1': tensor is " + std::to_string(index)),
                      HasSubstr("from 0 to 2")));
  }
}

TEST(Validate, RefusesATensorTwiceInAStage) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.model.stages[1].tensors = {2, 2};
              }),
              HasSubstr("tensor 2 is listed twice"));
}

TEST(Validate, RefusesATensorInNoStage) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.stages[0].tensors = {0}; }),
              HasSubstr("'layers.0.bias' is in no stage"));
}

TEST(Ties, PutATensorOfTwoUnitsIntoTheFirst) {
  RunDescription run = SmallRun();
  UseProbe(run);
  run.model.tensors.push_back({"head", {4}, 3, true, {}});
  run.model.stages[1].tensors = {3, 2};
  ASSERT_TRUE(TieTensors("head", "layers.0.bias", run.model).ok());
  EXPECT_TRUE(Validate(run).ok());
  EXPECT_EQ(run.model.tensors.size(), 3u);
  EXPECT_THAT(run.model.tensors[1].aliases, ElementsAre("head"));
  EXPECT_THAT(run.model.stages[1].tensors, ElementsAre(1, 2));
  EXPECT_THAT(TensorsOfUnits(run.model), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_TRUE(TieTensors("head", "layers.0.bias", run.model).ok()) << "again: nothing to do";
}

TEST(Ties, KeepIndicesRightWhenTheFirstIsTiedToALater) {
  RunDescription run = SmallRun();
  run.model.tensors.insert(run.model.tensors.begin(), {"early", {2, 4}, 4, true, {}});
  run.model.stages = {{"a", {0}}, {"b", {1, 2}}, {"c", {3}}};
  ASSERT_TRUE(TieTensors("early", "layers.1.weight", run.model).ok());
  EXPECT_THAT(run.model.stages[0].tensors, ElementsAre(2));
  EXPECT_THAT(run.model.stages[1].tensors, ElementsAre(0, 1));
  EXPECT_THAT(run.model.stages[2].tensors, ElementsAre(2));
}

TEST(Ties, AreRefusedWithAReason) {
  RunDescription run = SmallRun();
  const auto error = [&run](absl::string_view tied, absl::string_view kept) {
    return std::string(TieTensors(tied, kept, run.model).message());
  };
  EXPECT_THAT(error("nobody", "layers.0.bias"), HasSubstr("'nobody'"));
  EXPECT_THAT(error("layers.0.bias", "nobody"), HasSubstr("'nobody'"));
  EXPECT_THAT(error("layers.0.bias", "layers.0.weight"), HasSubstr("shape is [4]"));
  run.model.tensors[1] = {"layers.0.copy", {4, 3}, 3, true, {}};
  EXPECT_THAT(error("layers.0.copy", "layers.0.weight"), HasSubstr("both tied tensors"));
}

TEST(Usage, SaysWhoUsesATensorAndWhen) {
  RunDescription run = SmallRun();
  run.data.num_micro_batches = 2;
  run.usage = {{.tensor = 1, .rank = 2, .micro_batch = 1, .steps = StepUse::kOdd},
               {.tensor = 2, .steps = StepUse::kNever}};
  EXPECT_TRUE(Validate(run).ok());
  EXPECT_TRUE(IsUsed(run, 0, 0, Rank{0}, 0));
  EXPECT_TRUE(IsUsed(run, 1, 1, Rank{2}, 1));
  EXPECT_FALSE(IsUsed(run, 1, 2, Rank{2}, 1));
  EXPECT_FALSE(IsUsed(run, 1, 1, Rank{1}, 1));
  EXPECT_FALSE(IsUsed(run, 1, 1, Rank{2}, 0));
  EXPECT_TRUE(IsUsedInStep(run, 1, 1));
  EXPECT_FALSE(IsUsedInStep(run, 1, 0));
  EXPECT_FALSE(IsUsedInStep(run, 2, 1));
}

TEST(Usage, IsRefusedOutsideTheRun) {
  const auto with = [](UsageRule rule) {
    return ErrorAfter([rule](RunDescription& run) { run.usage = {rule}; });
  };
  EXPECT_THAT(with({.tensor = 3}), HasSubstr("usage: tensor is 3"));
  EXPECT_THAT(with({.tensor = 0, .rank = 4}), HasSubstr("rank is 4"));
  EXPECT_THAT(with({.tensor = 0, .micro_batch = 1}), HasSubstr("micro_batch is 1"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.usage = {{.tensor = 1}, {.tensor = 1}};
              }),
              HasSubstr("ascending"));
}

TEST(Groups, ReplaceHyperParametersOfTheirTensors) {
  RunDescription run = SmallRun();
  run.optimizer.groups = {{.tensors = {0, 2}, .learning_rate = 0.5, .weight_decay = 0}};
  EXPECT_TRUE(Validate(run).ok());
  EXPECT_EQ(HyperParametersOf(run.optimizer, 2).learning_rate, 0.5);
  EXPECT_EQ(HyperParametersOf(run.optimizer, 1).learning_rate, 1e-3);
  EXPECT_EQ(HyperParametersOf(run.optimizer, 0).epsilon, 1e-8);
}

TEST(Groups, AreRefusedWithAReason) {
  const auto with = [](std::vector<OptimizerGroup> groups) {
    return ErrorAfter([&groups](RunDescription& run) { run.optimizer.groups = groups; });
  };
  EXPECT_THAT(with({{.tensors = {}}}), HasSubstr("groups[0]: tensors is empty"));
  EXPECT_THAT(with({{.tensors = {0}}, {.tensors = {0}}}), HasSubstr("in one group"));
  EXPECT_THAT(with({{.tensors = {3}}}), HasSubstr("groups[0]: tensor is 3"));
  EXPECT_THAT(with({{.tensors = {0}, .beta1 = 1}}), HasSubstr("groups[0]: beta1 is 1"));
}

TEST(Validate, RefusesAStageInNoUnitOrInTwo) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.units.pop_back(); }),
              HasSubstr("'layers.1' is in no unit"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.model.units[0].stages = {0, 1};
              }),
              HasSubstr("'layers.1' is in units 0 and 1"));
}

TEST(Validate, RefusesEmptyUnitsAndStagesOutOfRangeOrOrder) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.units[1].stages = {}; }),
              HasSubstr("model.units[1] 'layers.1' is empty"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.units[1].stages = {2}; }),
              AllOf(HasSubstr("stage is 2"), HasSubstr("from 0 to 1")));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.model.units = {{"all", {1, 0}, true}};
              }),
              HasSubstr("stage 0 is behind 1; accepted: ascending"));
  EXPECT_THAT(
      ErrorAfter([](RunDescription& run) { std::swap(run.model.units[0], run.model.units[1]); }),
      HasSubstr("order of their first stage"));
}

TEST(Validate, RefusesAnMlpThatIsNone) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.model.tensors[2].shape = {2, 5};
              }),
              HasSubstr("'layers.1': the weight's shape is [2, 5]; accepted: [out, 4]"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.model.tensors[0].shape = {4, 3, 1};
              }),
              HasSubstr("accepted: [out, in]"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.model.tensors[1].shape = {3}; }),
              HasSubstr("the bias's shape is [3]; accepted: [4]"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.model.stages.push_back({"relu", {}});
                run.model.units.push_back({"relu", {2}, true});
              }),
              HasSubstr("the number of tensors of an mlp's layer is 0"));
}

TEST(Validate, RefusesAWorldWithoutRanks) {
  for (const int32_t world : {0, -2}) {
    EXPECT_THAT(
        ErrorAfter([world](RunDescription& run) { run.sharding.world_size.value = world; }),
        HasSubstr("world_size is " + std::to_string(world) + "; accepted: an integer from 1"));
  }
}

TEST(Validate, RefusesAGroupThatDoesNotDivideTheWorld) {
  for (const int32_t group : {3, 8, -1}) {
    EXPECT_THAT(ErrorAfter([group](RunDescription& run) { run.sharding.shard_group_size = group; }),
                AllOf(HasSubstr("shard_group_size is " + std::to_string(group)),
                      HasSubstr("a divisor of world_size 4")));
  }
}

TEST(Validate, RefusesABucketCapBelowOne) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.sharding.bucket_cap_bytes = 0; }),
              HasSubstr("bucket_cap_bytes is 0; accepted: an integer from 1"));
}

TEST(Validate, RefusesAPrefetchThatDoesNotFitTheMode) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.sharding.mode = Mode::kFullShard; }),
              AllOf(HasSubstr("prefetch of mode full_shard is not_applicable"),
                    HasSubstr("backward_pre, backward_post, none")));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.sharding.prefetch = Prefetch::kNone; }),
              HasSubstr("prefetch of mode replicated is none; accepted: not_applicable"));
}

TEST(Validate, RefusesALayoutThatDoesNotFitTheMode) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.sharding.mode = Mode::kZero1Broadcast; }),
              HasSubstr("layout of mode zero1_broadcast is flat; accepted: owner"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.sharding.layout = LayoutKind::kRows; }),
              HasSubstr("layout of mode replicated is rows; accepted: flat"));
}

TEST(Validate, AcceptsEveryLayoutWhereShardsAreCut) {
  for (const Mode mode : {Mode::kZero1AllGather, Mode::kZero2, Mode::kShardGradOp}) {
    for (const LayoutKind layout :
         {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner}) {
      EXPECT_EQ(ErrorAfter([=](RunDescription& run) {
                  run.sharding.mode = mode;
                  run.sharding.layout = layout;
                }),
                "accepted");
    }
  }
}

TEST(Validate, RefusesOptionsThatTheModeWouldIgnore) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.sharding.broadcast_bucket_view = true; }),
              HasSubstr("broadcast_bucket_view of mode replicated is 1; accepted: 0"));
  for (const Mode mode : {Mode::kZero2, Mode::kShardGradOp}) {
    EXPECT_THAT(ErrorAfter([mode](RunDescription& run) {
                  run.sharding.mode = mode;
                  run.sharding.grad_sync =
                      mode == Mode::kZero2 ? GradSync::kLast : GradSync::kEvery;
                  run.sharding.keep_unsharded_between_micro_batches = true;
                }),
                AllOf(HasSubstr("keep_unsharded_between_micro_batches of mode"),
                      HasSubstr("grad_sync last")));
  }
}

TEST(Validate, RefusesBetasOutsideTheirRange) {
  for (const double beta : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THAT(ErrorAfter([beta](RunDescription& run) { run.optimizer.beta1 = beta; }),
                AllOf(HasSubstr("beta1 is "), HasSubstr("from 0 to below 1")));
    EXPECT_THAT(ErrorAfter([beta](RunDescription& run) { run.optimizer.beta2 = beta; }),
                HasSubstr("beta2 is "));
  }
}

TEST(Validate, RefusesNegativeAndInfiniteOptimizerNumbers) {
  double OptimizerDescription::*const fields[] = {
      &OptimizerDescription::learning_rate, &OptimizerDescription::epsilon,
      &OptimizerDescription::weight_decay, &OptimizerDescription::momentum};
  const char* const names[] = {"learning_rate", "epsilon", "weight_decay", "momentum"};
  for (int i = 0; i < 4; ++i) {
    for (const double value : {-1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
      RunDescription run = SmallRun();
      run.optimizer.*fields[i] = value;
      EXPECT_THAT(std::string(Validate(run).message()),
                  AllOf(HasSubstr(std::string(names[i]) + " is "), HasSubstr("from 0")));
    }
  }
}

TEST(Validate, RefusesDataCountsBelowOne) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.data.steps = 0; }),
              HasSubstr("steps is 0; accepted: an integer from 1"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.data.micro_batch_size = -3; }),
              HasSubstr("micro_batch_size is -3"));
  EXPECT_THAT(ErrorAfter([](RunDescription& run) { run.data.num_micro_batches = 0; }),
              HasSubstr("num_micro_batches is 0"));
}

TEST(Validate, RefusesMoreSamplesThanInt64Counts) {
  EXPECT_THAT(ErrorAfter([](RunDescription& run) {
                run.data.steps = int64_t{1} << 40;
                run.data.micro_batch_size = int64_t{1} << 30;
              }),
              AllOf(HasSubstr("1099511627776 * 1 * 4 * 1073741824"), HasSubstr("64-bit")));
}

TEST(Validate, RefusesANegativeOrInfiniteClipNorm) {
  for (const double norm : {-1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_THAT(ErrorAfter([norm](RunDescription& run) { run.clip_grad_norm = norm; }),
                AllOf(HasSubstr("clip_grad_norm is "), HasSubstr("0 (no clipping)")));
  }
}

}  // namespace
}  // namespace shardproof
