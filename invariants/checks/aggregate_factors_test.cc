// A rank that holds a byte more or less than its mode promises must be named, with the class.
#include "invariants/checks/aggregate_factors.h"

#include <string>

#include "gtest/gtest.h"
#include "invariants/closed_forms/example_runs.h"

namespace shardproof {
namespace {

// Units of 3 and 5 elements on 2 ranks, flat: shards of 2 and 3. Rank 0 has 2 + 3 elements, no
// padding; rank 1 has 1 + 2 and one element of padding in each of the units' parameters,
// gradients and two moments: 2 x 4 x 4 bytes. Both ranks have a piece of both tensors.
RunDescription SmallRun() { return VectorRun({3, 5}, Sharding(Mode::kFullShard, 2)); }

StepObservation CorrectStep() {
  StepObservation observed;
  observed.states = {
      RankState{{0, 1, 1}, {20, 20, 40, 0, 8}, {}, {}},
      RankState{{1, 1, 1}, {12, 12, 24, 32, 8}, {}, {}},
  };
  return observed;
}

CheckResult Judge(const RunDescription& run, const StepObservation& observed) {
  const std::unique_ptr<Check> check = MakeAggregateFactors();
  check->Begin(run);
  check->Step(observed, nullptr);
  return check->Finish();
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(AggregateFactors, TheBytesOfTheModePass) {
  const CheckResult result = Judge(SmallRun(), CorrectStep());
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_EQ(result.violation_count, 0);
}

TEST(AggregateFactors, WithoutStatesNothingIsObserved) {
  const CheckResult result = Judge(SmallRun(), StepObservation());
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason, "step 0 showed no state of its ranks");
}

TEST(AggregateFactors, OneByteTooManyNamesRankAndClassAndTheSum) {
  StepObservation observed = CorrectStep();
  observed.step = 2;
  observed.states[1].bytes.padding += 1;
  const CheckResult result = Judge(SmallRun(), observed);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  ASSERT_EQ(result.violation_count, 2);
  const Violation& rank = result.violations[0];
  EXPECT_EQ(rank.rule,
            "padding bytes on each rank equal the closed form of full_shard/backward_pre");
  EXPECT_EQ(rank.rank, 1);
  EXPECT_EQ(rank.step, 2);
  EXPECT_EQ(rank.expected, "32 bytes");
  EXPECT_EQ(rank.actual, "33 bytes");
  EXPECT_TRUE(Has(rank.likely_cause, "another layout")) << rank.likely_cause;
  EXPECT_TRUE(Has(result.violations[1].rule, "in sum over the ranks"));
  EXPECT_EQ(result.violations[1].rank, -1);
}

TEST(AggregateFactors, GradientsThatStayWholeAreCalledNotSharded) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kZero2, 4));
  StepObservation observed;
  // Parameters 32, gradients 32 instead of 8, moments 2 x 8, one counter; each rank has 2
  // elements of one tensor.
  observed.states = {RankState{{0, 1, 4}, {32, 32, 16, 0, 4}, {}, {}}};
  const CheckResult result = Judge(run, observed);
  ASSERT_EQ(result.violation_count, 5);  // four ranks and the sum
  EXPECT_EQ(result.violations[3].rank, 3);
  EXPECT_EQ(result.violations[3].ratio, 4);
  EXPECT_EQ(result.violations[3].likely_cause,
            "gradient is not sharded: the rank holds all of it; look at who owns its segments");
  EXPECT_TRUE(Has(result.violations[4].likely_cause, "every rank holds all of it"));
}

TEST(AggregateFactors, AMissingMomentIsNamed) {
  StepObservation observed = CorrectStep();
  observed.states[0].bytes.optimizer = 20;
  const CheckResult result = Judge(SmallRun(), observed);
  ASSERT_FALSE(result.violations.empty());
  EXPECT_EQ(result.violations[0].rank, 0);
  EXPECT_EQ(result.violations[0].ratio, 0.5);
  EXPECT_EQ(result.violations[0].likely_cause, "one of the two moments is missing");
}

TEST(AggregateFactors, MembersOfAGroupAreJudgedOneByOne) {
  StepObservation observed;
  observed.states = {RankState{{0, 1, 2}, {20, 20, 40, 0, 8}, {}, {}}};
  const CheckResult result = Judge(SmallRun(), observed);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.violations[0].rank, 1);  // rank 0 does hold these bytes
}

TEST(AggregateFactors, EveryRankIsShownExactlyOnce) {
  StepObservation observed = CorrectStep();
  observed.states.pop_back();
  CheckResult result = Judge(SmallRun(), observed);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].actual, "none");

  observed = CorrectStep();
  observed.states[1].ranks.first = 0;
  result = Judge(SmallRun(), observed);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 0);

  observed = CorrectStep();
  observed.states[1].ranks = Group{2, 0, 5};
  EXPECT_EQ(Judge(SmallRun(), observed).verdict, Verdict::kFail);
}

TEST(AggregateFactors, SegmentsMustAddUpToTheStatedBytes) {
  StepObservation observed = CorrectStep();
  const auto show = [](RankState* state, StateClass of, int32_t tensor, int64_t first,
                       int64_t count) {
    StateSegment segment;
    segment.state = of;
    segment.tensor = tensor;
    segment.range = {first, count};
    state->segments.push_back(segment);
  };
  for (const StateClass of : {StateClass::kParameter, StateClass::kReducedGradient,
                              StateClass::kExpAvg, StateClass::kExpAvgSq}) {
    show(&observed.states[0], of, 0, 0, 2);
    show(&observed.states[0], of, 1, 0, 3);
    show(&observed.states[1], of, 0, 2, 1);
    show(&observed.states[1], of, -1, 1, 1);
    show(&observed.states[1], of, 1, 3, 2);
    show(&observed.states[1], of, -1, 2, 1);
  }
  EXPECT_EQ(Judge(SmallRun(), observed).verdict, Verdict::kPass);

  observed.states[1].segments[4].range.count = 0;  // the gradient of tensor 0
  const CheckResult result = Judge(SmallRun(), observed);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rule,
            "the segments of a rank add up to its stated gradient bytes");
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].expected, "12 bytes, as stated");
  EXPECT_EQ(result.violations[0].actual, "8 bytes in segments");
}

TEST(AggregateFactors, OwnershipAloneIsComparedWithTheOptimizerAlone) {
  StepObservation observed = CorrectStep();
  StateSegment owned;
  owned.state = StateClass::kExpAvg;
  owned.tensor = 0;
  owned.range = {0, 5};
  observed.states[0].segments = {owned};
  EXPECT_EQ(Judge(SmallRun(), observed).verdict, Verdict::kPass);
  observed.states[0].segments[0].range.count = 4;
  const CheckResult result = Judge(SmallRun(), observed);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_TRUE(Has(result.violations[0].rule, "stated optimizer bytes"));
}

TEST(AggregateFactors, AnOptimizerWithoutMomentsShowsNone) {
  RunDescription run = SmallRun();
  run.optimizer.kind = OptimizerKind::kSgd;
  run.optimizer.momentum = 0;
  StepObservation observed;
  observed.states = {
      RankState{{0, 1, 1}, {20, 20, 0, 0, 0}, {}, {}},
      RankState{{1, 1, 1}, {12, 12, 0, 16, 0}, {}, {}},
  };
  CheckResult result = Judge(run, observed);
  EXPECT_EQ(result.verdict, Verdict::kPass)
      << (result.violations.empty() ? result.reason : Describe(result, result.violations[0]));
  StateSegment moment;
  moment.state = StateClass::kExpAvg;
  moment.tensor = 0;
  moment.range = {0, 2};
  observed.states[0].segments = {moment};
  result = Judge(run, observed);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rule,
            "the segments of a rank add up to its stated optimizer bytes");
  EXPECT_EQ(result.violations[0].actual, "8 bytes in segments");
}

TEST(AggregateFactors, BytesOfMixedPrecisionAreNotJudged) {
  RunDescription run = SmallRun();
  run.sharding.precision.parameter = Dtype::kBFloat16;
  EXPECT_EQ(Judge(run, CorrectStep()).verdict, Verdict::kNotObserved);
}

TEST(AggregateFactors, ATieFromTheRootUnitAndAnEmptyTensorAreCountedWhereTheyBelong) {
  // The root unit holds stages 0 and 2; stage 2 uses tensor 1 of the unit between, and an empty
  // tensor. Root: tensors 0 and 2, 3 + 2 elements in shards of 3; middle: 2 elements in shards
  // of 1. Rank 0: 3 + 1 elements of tensors 0 and 1. Rank 1: 2 + 1 of tensors 2 and 1, and one of
  // padding in the root's parameters, gradients and two moments.
  RunDescription run = VectorRun({3, 2, 2, 0}, Sharding(Mode::kFullShard, 2));
  run.model.stages[2].tensors = {1, 2, 3};
  run.model.stages.pop_back();
  run.model.units[0].stages = {0, 2};
  run.model.units.resize(2);
  run.clip_grad_norm = 1;  // adds no state
  run.usage = {{.tensor = 2, .rank = 0, .steps = StepUse::kNever}};
  StepObservation observed;
  observed.states = {
      RankState{{0, 1, 1}, {16, 16, 32, 0, 8}, {}, {}},
      RankState{{1, 1, 1}, {12, 12, 24, 16, 8}, {}, {}},
  };
  EXPECT_EQ(Judge(run, observed).verdict, Verdict::kPass);
  // The middle's tensor counted in the root too.
  observed.states[1].bytes.parameter += 8;
  EXPECT_EQ(Judge(run, observed).verdict, Verdict::kFail);
  // A counter for the empty tensor.
  observed.states[1].bytes.parameter -= 8;
  observed.states[0].bytes.scalar += 4;
  EXPECT_EQ(Judge(run, observed).verdict, Verdict::kFail);
}

}  // namespace
}  // namespace shardproof
