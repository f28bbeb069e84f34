#include "property_tests/generators/case_generator.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr int kDraws = 2000;

// As RapidCheck draws: sizes grow from 0 to 100 and begin again.
std::vector<CaseSpec> Draw(const CaseLimits& limits, int count) {
  std::vector<CaseSpec> specs;
  rc::Random random(20261129);
  const rc::Gen<CaseSpec> cases = AnyCase(limits);
  for (int i = 0; i < count; ++i) specs.push_back(cases(random.split(), i % 101).value());
  return specs;
}

RunDescription Made(const CaseSpec& spec) {
  absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
  EXPECT_TRUE(run.ok()) << ModelText(spec) << ": " << run.status();
  return run.ok() ? *std::move(run) : RunDescription();
}

int64_t SmallestTensor(const ModelDescription& model) {
  int64_t least = INT64_MAX;
  for (const TensorSpec& tensor : model.tensors) least = std::min(least, Elements(tensor));
  return least;
}

TEST(AnyCase, EveryDrawIsAValidRunOfThreeSteps) {
  for (const CaseSpec& spec : Draw({}, kDraws)) {
    const RunDescription run = Made(spec);
    EXPECT_TRUE(Validate(run).ok()) << Validate(run);
    EXPECT_EQ(run.data.steps, 3);
  }
}

TEST(AnyCase, EveryDrawSurvivesItsReplayLine) {
  for (const CaseSpec& spec : Draw({}, kDraws)) {
    const RunDescription run = Made(spec);
    const std::string line = PrintRun(run);
    const absl::StatusOr<RunDescription> again = ParseRun(line, ImportModel);
    ASSERT_TRUE(again.ok()) << line << ": " << again.status();
    EXPECT_EQ(PrintRun(*again), line);
    ASSERT_EQ(again->model.units.size(), run.model.units.size()) << line;
    for (size_t unit = 0; unit < run.model.units.size(); ++unit) {
      EXPECT_EQ(again->model.units[unit].stages, run.model.units[unit].stages) << line;
      EXPECT_EQ(again->model.units[unit].reshard_after_forward,
                run.model.units[unit].reshard_after_forward)
          << line;
    }
  }
}

// Every value of every axis, by the runs that were made and not by the specs alone.
std::map<std::string, int> CountAxes(const std::vector<CaseSpec>& specs) {
  std::map<std::string, int> seen;
  for (const CaseSpec& spec : specs) {
    const RunDescription run = Made(spec);
    const ShardingDescription& sharding = run.sharding;
    const auto see = [&](const auto&... parts) { ++seen[absl::StrCat(parts...)]; };
    see("row ", ModeRowName(sharding));
    see("layout ", Name(sharding.layout));
    see("world ", sharding.world_size.value);
    see("grad_sync ", Name(sharding.grad_sync));
    see("optimizer ", Name(run.optimizer.kind));
    see("micro_batches ", run.data.num_micro_batches);
    see("batch ", run.data.micro_batch_size);
    see("decay ", spec.weight_decay_hundredths);
    see("probe ", spec.probe);
    see("bias ", spec.bias && !spec.probe);
    see("keep ", sharding.keep_unsharded_between_micro_batches);
    see("bucket_view ", sharding.broadcast_bucket_view);
    see("scale_before ", sharding.scale_before_reduce);
    const int64_t parameters = ParameterElements(run.model);
    see("empty shards ", parameters < sharding.world_size.value);
    see("one element ", SmallestTensor(run.model) == 1);
    see("cap below a tensor ", sharding.bucket_cap_bytes < 4 * SmallestTensor(run.model));
    see("cap above the model ", sharding.bucket_cap_bytes > 4 * parameters);
    see("uneven ", parameters % sharding.world_size.value != 0);
    see("stays unsharded ", !run.model.units[0].reshard_after_forward);
    see("several stages a unit ", run.model.units.size() < run.model.stages.size());
  }
  return seen;
}

TEST(AnyCase, EveryAxisTakesAllItsValues) {
  std::map<std::string, int> seen = CountAxes(Draw({}, kDraws));
  std::vector<std::string> wanted;
  const auto want = [&](const std::string& axis, const std::vector<std::string>& values) {
    for (const std::string& value : values) wanted.push_back(absl::StrCat(axis, " ", value));
  };
  want("row", {"replicated", "zero1_broadcast", "zero1_allgather", "zero2", "shard_grad_op",
               "full_shard/backward_pre", "full_shard/backward_post", "full_shard/none"});
  want("layout", {"flat", "flat_aligned", "rows", "owner"});
  want("world", {"1", "2", "3", "4", "5", "8"});
  want("grad_sync", {"every", "last"});
  want("optimizer", {"adamw", "sgd"});
  want("micro_batches", {"1", "2", "3"});
  want("batch", {"1", "2", "3", "4"});
  want("decay", {"0", "1", "2"});
  for (const char* axis : {"probe", "bias", "keep", "bucket_view", "scale_before", "empty shards",
                           "one element", "cap below a tensor", "cap above the model", "uneven",
                           "stays unsharded", "several stages a unit"}) {
    want(axis, {"0", "1"});
  }
  for (const std::string& value : wanted) EXPECT_GE(seen[value], 5) << value;
}

TEST(AnyCase, KeepsToItsLimits) {
  CaseLimits limits;
  limits.modes = {Mode::kFullShard, Mode::kZero2};
  limits.prefetches = {Prefetch::kNone};
  limits.world_sizes = {3};
  limits.max_layers = 2;
  limits.max_width = 6;
  limits.all_features = false;
  for (const CaseSpec& spec : Draw(limits, 300)) {
    const RunDescription run = Made(spec);
    EXPECT_THAT(limits.modes, testing::Contains(run.sharding.mode));
    if (run.sharding.mode == Mode::kFullShard) {
      EXPECT_EQ(run.sharding.prefetch, Prefetch::kNone);
    }
    EXPECT_EQ(run.sharding.world_size.value, 3);
    EXPECT_EQ(run.model.kind, ModelKind::kMlp);
    EXPECT_LE(run.model.stages.size(), 2u);
    EXPECT_EQ(run.model.units.size(), run.model.stages.size());
    EXPECT_THAT(spec.widths, Each(testing::AllOf(testing::Ge(1), testing::Le(6))));
    EXPECT_EQ(run.data.num_micro_batches, 1);
    EXPECT_EQ(run.optimizer.kind, OptimizerKind::kAdamW);
    EXPECT_FALSE(run.sharding.scale_before_reduce);
  }
}

// What RapidCheck does when `fails` is the property that breaks: the first smaller case that
// still fails, until there is none.
template <typename Fails>
CaseSpec Shrink(rc::Shrinkable<CaseSpec> failing, Fails fails) {
  for (;;) {
    rc::Seq<rc::Shrinkable<CaseSpec>> smaller = failing.shrinks();
    auto next = smaller.next();
    while (next && !fails(next->value())) next = smaller.next();
    if (!next) return failing.value();
    failing = *next;
  }
}

TEST(AnyCase, ShrinksToTheSmallestCaseWhenEverythingFails) {
  rc::Random random(7);
  for (int i = 0; i < 20; ++i) {
    const CaseSpec least =
        Shrink(AnyCase({})(random.split(), 100), [](const CaseSpec&) { return true; });
    EXPECT_THAT(least.widths, ElementsAre(1, 1));
    EXPECT_FALSE(least.probe);
    EXPECT_FALSE(least.bias);
    EXPECT_FALSE(least.root);
    EXPECT_FALSE(least.sgd);
    EXPECT_EQ(least.world_size, 1);
    EXPECT_EQ(least.mode, Mode::kReplicated);
    EXPECT_EQ(least.micro_batch_size, 1);
    EXPECT_EQ(least.num_micro_batches, 1);
    EXPECT_EQ(least.seed, 1);
    EXPECT_THAT(least.joins, Each(false));
  }
}

TEST(AnyCase, ShrinkingKeepsWhatTheFailureNeedsAndNothingElse) {
  const auto fails = [](const CaseSpec& spec) {
    return spec.world_size >= 3 && spec.widths.size() >= 3 && spec.widths[1] >= 4 &&
           spec.mode == Mode::kFullShard;
  };
  rc::Random random(11);
  int found = 0;
  for (int i = 0; i < 2000 && found < 5; ++i) {
    const rc::Shrinkable<CaseSpec> drawn = AnyCase({})(random.split(), 100);
    if (!fails(drawn.value())) continue;
    ++found;
    const CaseSpec least = Shrink(drawn, fails);
    EXPECT_THAT(least.widths, ElementsAre(1, 4, 1)) << least;
    EXPECT_EQ(least.world_size, 3);
    EXPECT_EQ(least.mode, Mode::kFullShard);
    EXPECT_EQ(least.num_micro_batches, 1);
    EXPECT_FALSE(least.sync_last);
  }
  EXPECT_EQ(found, 5);
}

}  // namespace
}  // namespace shardproof
