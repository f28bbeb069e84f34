#include "property_tests/generators/case_generator.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "property_tests/generators/axes.h"
#include "property_tests/generators/shrink.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::Each;
using testing::IsEmpty;

constexpr int kDraws = 1500;

rc::Shrinkable<CaseSpec> DrawOne(const rc::Gen<CaseSpec>& cases, rc::Random& random, int index) {
  return cases(random.split(), index % 101);
}

// As RapidCheck draws: sizes grow from 0 to 100 and begin again.
std::vector<CaseSpec> Draw(const CaseLimits& limits, int count) {
  std::vector<CaseSpec> specs;
  rc::Random random(20261129);
  const rc::Gen<CaseSpec> cases = AnyCase(limits);
  for (int i = 0; i < count; ++i) specs.push_back(DrawOne(cases, random, i).value());
  return specs;
}

RunDescription Made(const CaseSpec& spec) {
  absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
  EXPECT_TRUE(run.ok()) << ModelText(spec) << ": " << run.status();
  return run.ok() ? *std::move(run) : RunDescription();
}

bool TiesAcrossUnits(const RunDescription& run) {
  for (const auto& [axis, value] : DescribeAxes(run)) {
    if (axis == "ties") return value == "across_units";
  }
  return false;
}

TEST(AnyCase, EveryDrawIsAValidRunOfThreeSteps) {
  for (const CaseSpec& spec : Draw({}, kDraws)) {
    const RunDescription run = Made(spec);
    EXPECT_TRUE(Validate(run).ok()) << Validate(run);
    EXPECT_EQ(run.data.steps, 3);
  }
}

// Names of units do not survive the line, which has none.
std::string WithoutUnitNames(RunDescription run) {
  for (size_t unit = 0; unit < run.model.units.size(); ++unit) {
    run.model.units[unit].name = absl::StrCat("unit", unit);
  }
  return PrintRunJson(run);
}

TEST(AnyCase, EveryDrawSurvivesItsReplayLineAndItsJson) {
  for (const CaseSpec& spec : Draw({}, kDraws)) {
    const RunDescription run = Made(spec);
    const std::string line = PrintRun(run);
    const absl::StatusOr<RunDescription> again = ParseRun(line, ImportModel);
    ASSERT_TRUE(again.ok()) << line << ": " << again.status();
    EXPECT_EQ(PrintRun(*again), line);
    EXPECT_EQ(WithoutUnitNames(*again), WithoutUnitNames(run)) << line;
    const std::string json = PrintRunJson(run);
    const absl::StatusOr<RunDescription> from_json = ParseRunJson(json, nullptr);
    ASSERT_TRUE(from_json.ok()) << json << ": " << from_json.status();
    EXPECT_EQ(PrintRunJson(*from_json), json);
  }
}

Coverage CoverageOf(const std::vector<CaseSpec>& specs) {
  Coverage coverage;
  for (const CaseSpec& spec : specs) coverage.Add(AxisValues(Made(spec)));
  return coverage;
}

TEST(AnyCase, EveryAxisTakesAllItsValuesOften) {
  const Coverage coverage = CoverageOf(Draw({}, kDraws));
  EXPECT_EQ(coverage.ValuesSeen(), coverage.ValuesPossible()) << coverage.Table();
  for (size_t axis = 0; axis < coverage.axes().size(); ++axis) {
    for (size_t value = 0; value < coverage.axes()[axis].values.size(); ++value) {
      const absl::string_view word = coverage.axes()[axis].values[value];
      if (coverage.Seen(axis, value) == 0) continue;  // outside of what is drawn: counted above
      EXPECT_GE(coverage.Seen(axis, value), kDraws / 150)
          << coverage.axes()[axis].name << "=" << word << "\n"
          << coverage.Table();
    }
  }
}

// Two features meet in a case, or their fault together is never seen.
TEST(AnyCase, AlmostAllPairsOfValuesMeet) {
  const Coverage coverage = CoverageOf(Draw({}, 3 * kDraws));
  EXPECT_GE(coverage.PairsSeen(), coverage.PairsPossible() * 95 / 100)
      << absl::StrJoin(coverage.PairsMissing(), "\n");
  EXPECT_THAT(coverage.PairsWronglyExcluded(), IsEmpty());
}

// What axes do not tell apart.
TEST(AnyCase, HostileShapesAreDrawn) {
  int extents[4] = {};  // W - 1, W, W + 1, and 0
  int interleaved_ties = 0;
  int differ_per_rank = 0;
  for (const CaseSpec& spec : Draw({}, kDraws)) {
    const RunDescription run = Made(spec);
    const int32_t ranks = run.sharding.world_size.value;
    for (const TensorSpec& tensor : run.model.tensors) {
      for (const int64_t extent : tensor.shape) {
        for (int off = -1; off <= 1; ++off) extents[off + 1] += extent == ranks + off ? 1 : 0;
        extents[3] += extent == 0 ? 1 : 0;
      }
    }
    interleaved_ties += TiesAcrossUnits(run) ? 1 : 0;
    for (const UsageRule& rule : run.usage) differ_per_rank += rule.rank >= 0 && ranks > 1 ? 1 : 0;
  }
  EXPECT_THAT(extents, Each(testing::Ge(kDraws / 10)));
  EXPECT_GE(interleaved_ties, kDraws / 20);
  EXPECT_GE(differ_per_rank, kDraws / 20);
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
    EXPECT_THAT(run.optimizer.groups, IsEmpty());
    EXPECT_EQ(run.clip_grad_norm, 0);
    EXPECT_FALSE(run.sharding.scale_before_reduce);
  }
}

TEST(AnyCase, OnlyProbesWhereTheyAreAskedFor) {
  CaseLimits limits;
  limits.only_probes = true;
  for (const CaseSpec& spec : Draw(limits, 300)) {
    EXPECT_EQ(Made(spec).model.kind, ModelKind::kProbe);
  }
}

// ---------------------------------------------------------------- shrinking

// The lines that failing draws end in, each once, for what fails like `fails`.
std::vector<std::string> ShrunkLines(const std::function<bool(const RunDescription&)>& fails,
                                     int64_t most_tries) {
  const rc::Gen<CaseSpec> cases = AnyCase({});
  rc::Random random(7);
  const auto spec_fails = [&fails](const CaseSpec& spec) { return fails(Made(spec)); };
  std::vector<std::string> lines;
  int found = 0;
  for (int i = 0; i < 4000 && found < 8; ++i) {
    const rc::Shrinkable<CaseSpec> drawn = DrawOne(cases, random, 100);
    if (!spec_fails(drawn.value())) continue;
    ++found;
    const ShrunkCase shrunk = ShrinkCase(drawn, spec_fails, {});
    EXPECT_TRUE(shrunk.complete);
    EXPECT_LE(shrunk.tries, most_tries);
    lines.push_back(PrintRun(Made(shrunk.spec)));
  }
  EXPECT_EQ(found, 8);
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  return lines;
}

TEST(Shrinking, EndsInTheSmallestCaseWhenEverythingFails) {
  EXPECT_THAT(ShrunkLines([](const RunDescription&) { return true; }, 200),
              testing::ElementsAre("model=mlp:1,1;bucket_cap_bytes=4;weight_decay=0;"
                                   "micro_batch_size=1"));
}

TEST(Shrinking, KeepsWhatTheFailureNeedsAndNothingElse) {
  const auto fails = [](const RunDescription& run) {
    return run.sharding.world_size.value >= 3 && run.model.kind == ModelKind::kMlp &&
           run.model.stages.size() >= 2 && run.model.tensors[0].shape[0] >= 4 &&
           run.sharding.mode == Mode::kFullShard;
  };
  for (const std::string& line : ShrunkLines(fails, 500)) {
    EXPECT_EQ(line,
              "model=mlp:1,4,1;mode=full_shard;world_size=3;bucket_cap_bytes=4;weight_decay=0;"
              "micro_batch_size=1");
  }
}

TEST(Shrinking, TiesAcrossUnitsEndInTwoTensorsOnTwoRanks) {
  const auto fails = [](const RunDescription& run) {
    return run.sharding.world_size.value >= 2 && TiesAcrossUnits(run);
  };
  for (const std::string& line : ShrunkLines(fails, 500)) {
    EXPECT_THAT(line,
                testing::MatchesRegex("model=(mlp:1,1,1;ties=layers.1.weight:layers.0.weight|"
                                      "mlp:1,1,1;ties=layers.0.weight:layers.1.weight|"
                                      "probe:1,1;ties=t[01]:t[01]);world_size=2;"
                                      "bucket_cap_bytes=4;weight_decay=0;micro_batch_size=1"));
  }
}

TEST(Shrinking, OneRanksUseOfATensorEndsInOneRule) {
  const auto fails = [](const RunDescription& run) {
    return run.sharding.world_size.value >= 2 && !run.usage.empty() && run.usage[0].rank >= 0 &&
           run.usage[0].steps != StepUse::kNever && run.data.num_micro_batches >= 2;
  };
  for (const std::string& line : ShrunkLines(fails, 500)) {
    EXPECT_THAT(line, testing::MatchesRegex("model=probe:1,1;usage=0@rank:0@steps:odd;world_size=2;"
                                            "bucket_cap_bytes=4;weight_decay=0;micro_batch_size=1;"
                                            "num_micro_batches=2"));
  }
}

TEST(Shrinking, StopsAtItsLimits) {
  rc::Random random(3);
  const rc::Shrinkable<CaseSpec> drawn = DrawOne(AnyCase({}), random, 100);
  const ShrunkCase shrunk = ShrinkCase(drawn, [](const CaseSpec&) { return true; }, {.tries = 2});
  EXPECT_FALSE(shrunk.complete);
  EXPECT_EQ(shrunk.tries, 2);
}

}  // namespace
}  // namespace shardproof
