// A wrong number in any class of state must be found at its first element, on its rank, with
// the earliest cause first; otherwise a scale error that Adam divides away would pass.
#include "invariants/checks/numeric_equivalence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/float_bits.h"
#include "invariants/checks/hand_made.h"
#include "invariants/checks/optimizer_rule.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

class NumericEquivalenceTest : public ::testing::Test {
 protected:
  void Start(Mode mode = Mode::kFullShard, int32_t ranks = 2) {
    run_ = HandMadeRun(mode, ranks);
    training_.emplace(run_);
    check_ = MakeNumericEquivalence();
    check_->Begin(run_);
  }
  void Next() { training_->Advance(); }
  void Show() { check_->Step(training_->observed(), &training_->reference()); }

  RunDescription run_;
  std::optional<HandMadeTraining> training_;
  std::unique_ptr<NumericEquivalence> check_;
};

TEST_F(NumericEquivalenceTest, TrainingWithTheReferencesBitsPasses) {
  for (const Mode mode : {Mode::kReplicated, Mode::kFullShard}) {
    Start(mode, 3);
    for (int step = 0; step < 3; ++step) {
      Next();
      Show();
    }
    const CheckResult result = check_->Finish();
    EXPECT_EQ(result.name, "numeric_equivalence");
    EXPECT_EQ(result.verdict, Verdict::kPass) << result.reason;
    const NumericFigures figures = check_->figures();
    EXPECT_TRUE(figures.observed);
    EXPECT_EQ(figures.max_abs_parameter_error, 0);
    EXPECT_EQ(figures.max_rel_gradient_error, 0);
    EXPECT_EQ(figures.max_rel_update_error, 0);
  }
}

TEST_F(NumericEquivalenceTest, AGradientThatWasSummedIsNamedByItsRatioBeforeWhatItMoved) {
  Start(Mode::kFullShard, 2);
  Next();
  // Element 5 of layers.0.weight is the first of rank 1's shard.
  training_->Value(1, StateClass::kReducedGradient, 0, 5) *= 2;
  training_->Value(1, StateClass::kExpAvg, 0, 5) *= 2;
  training_->Value(1, StateClass::kParameter, 0, 5) -= 0.06f;
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.verdict, Verdict::kFail);
  ASSERT_EQ(result.violation_count, 4);
  const Violation& gradient = result.violations[0];
  EXPECT_THAT(gradient.rule, HasSubstr("reduced gradient"));
  EXPECT_EQ(gradient.rank, 1);
  EXPECT_EQ(gradient.step, 0);
  EXPECT_EQ(gradient.tensor, "layers.0.weight");
  EXPECT_EQ(gradient.element, 5);
  EXPECT_THAT(gradient.expected, HasSubstr("6 (0x40c00000)"));
  EXPECT_THAT(gradient.actual, HasSubstr("12 (0x41400000), difference 6"));
  EXPECT_EQ(gradient.ratio, 2);
  EXPECT_THAT(gradient.likely_cause, HasSubstr("the ratio is N (N = 2 ranks, K = 1 micro-batch)"));
  EXPECT_EQ(gradient.tolerance_share, 0);
  EXPECT_THAT(result.violations[1].rule, HasSubstr("exp_avg"));
  EXPECT_THAT(result.violations[2].rule, HasSubstr("update"));
  EXPECT_NEAR(result.violations[2].ratio, 2, 1e-3);
  EXPECT_THAT(result.violations[3].rule, HasSubstr("parameter"));
  EXPECT_NEAR(result.violations[3].tolerance_share, 600, 1);
  const NumericFigures figures = check_->figures();
  EXPECT_NEAR(figures.max_abs_parameter_error, 0.06, 1e-6);
  EXPECT_EQ(figures.max_rel_gradient_error, 1);  // 6 of at most 6
  EXPECT_NEAR(figures.max_rel_update_error, 1, 1e-3);
}

TEST_F(NumericEquivalenceTest, OneUlpIsEnough) {
  Start(Mode::kReplicated, 2);
  Next();
  float& value = training_->Value(1, StateClass::kExpAvgSq, 3, 1);
  value = std::nextafter(value, 100.0f);
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("exp_avg_sq"));
  EXPECT_THAT(result.violations[0].actual, HasSubstr("1 ulp apart"));
  EXPECT_EQ(result.violations[0].tensor, "layers.1.bias");
  EXPECT_EQ(result.violations[0].element, 1);
}

TEST_F(NumericEquivalenceTest, ATensorIsReportedOnceForEachRankAndClass) {
  Start(Mode::kReplicated, 3);
  Next();
  for (int32_t element = 0; element < 6; ++element) {
    training_->Value(0, StateClass::kReducedGradient, 0, element) += 1;
    training_->Value(2, StateClass::kReducedGradient, 0, element) += 1;
  }
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].rank, 0);
  EXPECT_EQ(result.violations[1].rank, 2);
}

TEST_F(NumericEquivalenceTest, AWrongUpdateIsOneOfItsStepAndNotOfThoseAfterIt) {
  Start();
  Next();
  training_->Value(0, StateClass::kParameter, 0, 0) += 0.25f;
  Show();
  Next();
  training_->Value(0, StateClass::kParameter, 0, 0) += 0.25f;  // the right update from there on
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 3);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("update"));
  EXPECT_EQ(result.violations[0].step, 0);
  EXPECT_EQ(result.violations[2].step, 1);
  EXPECT_THAT(result.violations[2].rule, HasSubstr("every parameter"));
  // The update of step 1 was right: the error is that of step 0.
  EXPECT_NEAR(check_->figures().max_rel_update_error, 0.25 / 0.06, 1e-3);
}

TEST_F(NumericEquivalenceTest, AParameterThatStaysHasAnUpdateOfZero) {
  Start();
  Next();
  training_->Value(0, StateClass::kParameter, 0, 2) = 0.75f;  // as before the step
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].element, 2);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("never reached"));
}

TEST_F(NumericEquivalenceTest, StepCountersAreCompared) {
  Start();
  Next();
  training_->observed().states[1].steps[3].updates = 2;
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].tensor, "layers.1.bias");
  EXPECT_EQ(result.violations[0].expected, "1 updates");
  EXPECT_EQ(result.violations[0].actual, "2 updates");
}

TEST_F(NumericEquivalenceTest, NanEqualsNothingNotEvenTheSameNan) {
  Start(Mode::kReplicated, 2);
  Next();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  training_->Reference(StateClass::kReducedGradient, 1, 2) = nan;
  training_->Value(0, StateClass::kReducedGradient, 1, 2) = nan;
  training_->Value(1, StateClass::kReducedGradient, 1, 2) = nan;
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 1);  // sharding is not to blame on any rank
  EXPECT_EQ(result.violations[0].element, 2);
  EXPECT_THAT(result.violations[0].actual, HasSubstr("NaN equals nothing"));
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("replicated training diverged too"));
  EXPECT_TRUE(std::isinf(check_->figures().max_rel_gradient_error));
}

TEST_F(NumericEquivalenceTest, PoisonIsNamed) {
  Start();
  Next();
  training_->Value(0, StateClass::kReducedGradient, 0, 1) = PoisonValue({PoisonKind::kFresh, 2});
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("memory never written of buffer 2"));
}

TEST_F(NumericEquivalenceTest, WithoutAReferenceNothingIsObserved) {
  Start();
  Next();
  check_->Step(training_->observed(), nullptr);
  const CheckResult result = check_->Finish();
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_THAT(result.reason, HasSubstr("reference"));
  EXPECT_FALSE(check_->figures().observed);
}

TEST_F(NumericEquivalenceTest, WithoutValuesNothingIsObserved) {
  Start();
  Next();
  for (RankState& state : training_->observed().states) {
    for (StateSegment& segment : state.segments) segment.values = nullptr;
  }
  Show();
  EXPECT_EQ(check_->Finish().verdict, Verdict::kNotObserved);
  EXPECT_FALSE(check_->figures().observed);
}

TEST_F(NumericEquivalenceTest, AClassOrARankThatIsNotShownIsNotAPass) {
  Start();
  Next();
  for (RankState& state : training_->observed().states) {
    std::erase_if(state.segments,
                  [](const StateSegment& s) { return s.state == StateClass::kReducedGradient; });
  }
  Show();
  CheckResult result = check_->Finish();
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_THAT(result.reason, HasSubstr("reduced_gradient"));

  Start();
  Next();
  training_->observed().states.pop_back();
  Show();
  EXPECT_EQ(check_->Finish().verdict, Verdict::kNotObserved);
}

TEST_F(NumericEquivalenceTest, AReferenceThatIsNotFiniteIsBlamedOnce) {
  Start(Mode::kReplicated, 2);
  Next();
  training_->Reference(StateClass::kParameter, 0, 1) = std::numeric_limits<float>::infinity();
  training_->Reference(StateClass::kExpAvg, 3, 0) = std::numeric_limits<float>::quiet_NaN();
  Show();
  Next();
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].step, 0);
  EXPECT_EQ(result.violations[0].tensor, "layers.1.bias");
  EXPECT_EQ(result.violations[0].likely_cause,
            "replicated training diverged too: lower the learning rate");
}

TEST_F(NumericEquivalenceTest, MomentsWithoutAStepCounterAreNotEnough) {
  Start();
  Next();
  std::vector<TensorStep>& steps = training_->observed().states[0].steps;
  std::erase_if(steps, [](const TensorStep& step) { return step.tensor == 2; });
  Show();
  const CheckResult result = check_->Finish();
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason, "rank 0 showed no step counter of layers.1.weight");
}

TEST_F(NumericEquivalenceTest, LossesHaveTheBitsOfTheReference) {
  const auto judge = [this](std::vector<double> actual, std::vector<double> expected) {
    Start();
    Next();
    training_->observed().losses = std::move(actual);
    ReferenceStep reference = training_->reference();
    reference.losses = std::move(expected);
    check_->Step(training_->observed(), &reference);
    return check_->Finish();
  };
  EXPECT_EQ(judge({0.5, 0.25}, {0.5, 0.25}).verdict, Verdict::kPass);
  EXPECT_EQ(judge({}, {0.5, 0.25}).verdict, Verdict::kPass);
  EXPECT_EQ(judge({0.5, 0.25}, {}).verdict, Verdict::kPass);
  EXPECT_EQ(judge({0.5}, {0.5, 0.25}).verdict, Verdict::kNotObserved);

  CheckResult result = judge({0.5, std::nextafter(0.25, 1)}, {0.5, 0.25});
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("the loss of the rank"));
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].step, 0);
  EXPECT_EQ(result.violations[0].expected, "0.25");

  const double nan = std::numeric_limits<double>::quiet_NaN();
  result = judge({0.5, nan}, {0.5, 0.25});
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("other parameters or samples"));
  result = judge({nan, nan}, {nan, nan});
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("replicated training diverged too"));
}

// --- Clipping.

class ClipTest : public NumericEquivalenceTest {
 protected:
  // A step of three ranks whose gradients have the norm 10 and are clipped to 5.
  void StartClipped(int32_t ranks = 3) {
    Start(Mode::kFullShard, ranks);
    run_.clip_grad_norm = 5;
    check_ = MakeNumericEquivalence();
    check_->Begin(run_);
    Next();
    ReferenceStep& reference = training_->mutable_reference();
    reference.gradient_norm = 10;
    reference.clip_coefficient = reference.used_coefficient = 0.5f;
    training_->observed().clips.assign(ranks, {10, 0.5f});
  }
  CheckResult Judge() {
    Show();
    return check_->Finish();
  }
  ClipObservation& Clip(int32_t rank) { return training_->observed().clips[rank]; }
};

TEST_F(ClipTest, TheNormOfReplicatedTrainingPasses) {
  StartClipped();
  CheckResult result = Judge();
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_EQ(result.reason, "");
  StartClipped();  // a norm summed in another order, the same on all ranks
  training_->observed().clips.assign(3, {10 * (1 + 5e-7), 0.5f * (1 - 4e-7f)});
  EXPECT_EQ(Judge().verdict, Verdict::kPass);
}

TEST_F(ClipTest, WithoutNormsAPassSaysSo) {
  StartClipped();
  training_->observed().clips.clear();
  CheckResult result = Judge();
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_EQ(result.reason, "clipping was not observed: no norm or coefficient was shown");
  StartClipped();
  training_->observed().clips.pop_back();
  result = Judge();
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason, "the clip coefficients of some ranks were not shown");
}

TEST_F(ClipTest, AWrongNormIsNamedByItsRatio) {
  const auto cause = [&](double ratio) {
    StartClipped();
    training_->observed().clips.assign(
        3, {10 * ratio, static_cast<float>(std::min(1.0, 0.5 / ratio))});
    const CheckResult result = Judge();
    // Norm and coefficient on each of three ranks.
    EXPECT_EQ(result.violation_count, 6) << ratio;
    EXPECT_EQ(result.violations[0].rule, "every rank clips by the norm of replicated training");
    EXPECT_EQ(result.violations[0].expected, "10");
    EXPECT_NEAR(result.violations[0].ratio, ratio, 1e-9);
    EXPECT_THAT(result.violations[1].likely_cause, HasSubstr("it follows from the norm"));
    return result.violations[0].likely_cause;
  };
  EXPECT_THAT(cause(std::sqrt(3.0)), HasSubstr("every square was counted N times"));
  EXPECT_THAT(cause(1 / std::sqrt(3.0)), HasSubstr("the rank's own shards alone"));
  EXPECT_THAT(cause(3), HasSubstr("norms were added in place of their squares"));
  EXPECT_THAT(cause(1.0 / 3), HasSubstr("averaged"));
  EXPECT_THAT(cause(1.05), HasSubstr("counted twice or is no gradient: a tied tensor's copy"));
  EXPECT_THAT(cause(0.9), HasSubstr("a part was left out"));
}

TEST_F(ClipTest, OneRanksLocalNormIsFoundOnThatRank) {
  StartClipped();
  Clip(1) = {6, 5.0f / 6};
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].actual, "6");
  EXPECT_NEAR(result.violations[0].tolerance_share, 4 / 1e-5, 1);
}

TEST_F(ClipTest, ACoefficientThatDoesNotFollowFromTheNormIsFound) {
  StartClipped();
  for (ClipObservation& clip : training_->observed().clips) clip.coefficient = 1;
  CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 3);
  EXPECT_EQ(result.violations[0].rule,
            "every rank's clip coefficient is that of replicated training");
  EXPECT_EQ(result.violations[0].ratio, 2);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("gradients are not clipped"));
  StartClipped();
  Clip(2).coefficient = 0.25f;
  result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 2);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("the norm is right"));
  StartClipped();
  training_->mutable_reference().clip_coefficient = 1;
  result = Judge();
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("below clip_grad_norm"));
}

TEST_F(ClipTest, ANormThatIsNoNumberIsFound) {
  StartClipped();
  Clip(0).norm = std::numeric_limits<double>::quiet_NaN();
  Clip(0).coefficient = std::numeric_limits<float>::quiet_NaN();
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("padding"));
}

TEST_F(ClipTest, RanksThatDifferByABitDriftApart) {
  StartClipped();
  Clip(2).norm = std::nextafter(10.0, 11.0);
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rule, "every rank clips with the same bits");
  EXPECT_EQ(result.violations[0].rank, 2);
  EXPECT_THAT(result.violations[0].expected, HasSubstr("as on rank 0"));
}

TEST_F(ClipTest, ARunThatDoesNotClipMultipliesByOne) {
  Start(Mode::kReplicated, 2);
  Next();
  training_->observed().clips.assign(2, {3, 1});
  Show();
  EXPECT_EQ(check_->Finish().verdict, Verdict::kPass);
  Start(Mode::kReplicated, 2);
  Next();
  training_->observed().clips.assign(2, {3, 0.5f});
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("does not have"));
}

TEST_F(ClipTest, GradientsThatWereNotMultipliedAreNamed) {
  StartClipped();
  training_->Value(0, StateClass::kReducedGradient, 0, 1) *= 2;
  CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].likely_cause,
            "the gradients were not multiplied by the clip coefficient");
  StartClipped();
  training_->Value(0, StateClass::kReducedGradient, 0, 1) *= 0.5f;
  result = Judge();
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("twice"));
}

// --- Sums in any order.

class AnyOrderTest : public NumericEquivalenceTest {
 protected:
  void StartAnyOrder(const RunDescription& run) {
    run_ = run;
    training_.emplace(run_, HandMadeTraining::Arithmetic::kOptimizer);
    check_ = MakeNumericEquivalence();
    check_->Begin(run_);
  }
  void StartAnyOrder() { StartAnyOrder(HandMadeRun(Mode::kFullShard, 2)); }
  void Next() {
    training_->Advance();
    training_->observed().any_order = true;
  }
  // What the optimizer makes of another gradient of element 0 of layers.0.weight, on rank 0, in
  // step 0.
  void FollowGradient(float gradient) { FollowGradient(0, 0, 0, gradient); }
  void FollowGradient(int32_t rank, int32_t tensor, int64_t element, float gradient) {
    const float before = training_->reference().tensors[tensor].previous_parameter[element];
    const ElementState after =
        OptimizerRule(run_.optimizer, 1).Apply(gradient, {before, 0, 0}).value;
    training_->Value(rank, StateClass::kReducedGradient, tensor, element) = gradient;
    for (const auto& [state, value] : {std::pair(StateClass::kExpAvg, after.exp_avg),
                                       std::pair(StateClass::kExpAvgSq, after.exp_avg_sq),
                                       std::pair(StateClass::kParameter, after.parameter)}) {
      training_->Value(rank, state, tensor, element) = static_cast<float>(value);
    }
  }
  void Set(StateClass state, double value) {
    training_->Value(0, state, 0, 0) = static_cast<float>(value);
  }
  CheckResult Judge() {
    Show();
    return check_->Finish();
  }
};

// What is left of two contributions of -0.625 and their mean magnitude 1.1875.
constexpr float kGradient = -0.625f;
// 2 (N K + 1) u of the magnitude, with N = 2 and K = 1.
constexpr double kBound = 6 * 0x1p-24 * 1.1875;

TEST_F(AnyOrderTest, TheOptimizersOwnArithmeticPassesInEveryWayOfHavingIt) {
  for (const Mode mode : {Mode::kFullShard, Mode::kReplicated}) {
    for (int variant = 0; variant < 3; ++variant) {
      RunDescription run = HandMadeRun(mode, 3);
      if (variant > 0) run.optimizer.kind = OptimizerKind::kSgd;
      if (variant == 2) run.optimizer.momentum = 0;
      run.usage = {{.tensor = 1, .steps = StepUse::kOdd}, {.tensor = 3, .rank = 0}};
      OptimizerGroup group;
      group.tensors = {0, 3};
      group.learning_rate = 0.1;
      group.beta1 = 0.5;
      group.weight_decay = 0;
      run.optimizer.groups = {group};
      StartAnyOrder(run);
      for (int step = 0; step < 4; ++step) {
        Next();
        Show();
      }
      const CheckResult result = check_->Finish();
      EXPECT_EQ(result.verdict, Verdict::kPass)
          << variant << ": "
          << (result.violations.empty() ? result.reason : Describe(result, result.violations[0]));
    }
  }
}

TEST_F(AnyOrderTest, AGradientWithinTheRoundingOfItsSumPassesAndNotBeyond) {
  StartAnyOrder();
  Next();
  FollowGradient(static_cast<float>(kGradient + 0.9 * kBound));
  EXPECT_EQ(Judge().verdict, Verdict::kPass);
  EXPECT_GT(check_->figures().max_rel_gradient_error, 0);
  EXPECT_NEAR(check_->figures().max_gradient_bound_share.value_or(0), 0.9, 0.1);
  ASSERT_TRUE(check_->figures().max_update_bound_share.has_value());
  EXPECT_LE(*check_->figures().max_update_bound_share, 1);
  EXPECT_GT(*check_->figures().max_update_bound_share, 0);
  StartAnyOrder();
  Next();
  FollowGradient(static_cast<float>(kGradient + 1.2 * kBound));
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("but for the rounding of its sum"));
  EXPECT_EQ(result.violations[0].element, 0);
  EXPECT_NEAR(result.violations[0].tolerance_share, 1.2, 0.1);
}

TEST_F(AnyOrderTest, ASumInPlaceOfAMeanIsStillNamed) {
  StartAnyOrder();
  Next();
  FollowGradient(2 * kGradient);  // Adam divides it away: moments and update follow
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].ratio, 2);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("the ratio is N"));
}

TEST_F(AnyOrderTest, WithoutMagnitudesAGradientCannotBeJudged) {
  StartAnyOrder();
  Next();
  for (ReferenceTensor& tensor : training_->mutable_reference().tensors) {
    tensor.gradient_magnitude = nullptr;
  }
  FollowGradient(std::nextafter(kGradient, 0.0f));
  const CheckResult result = Judge();
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_THAT(result.reason, HasSubstr("magnitude of the gradients of layers.0.weight"));
}

TEST_F(AnyOrderTest, AMomentThatDoesNotFollowFromTheGradientIsFound) {
  for (const StateClass state : {StateClass::kExpAvg, StateClass::kExpAvgSq}) {
    StartAnyOrder();
    Next();
    training_->Value(1, state, 2, 4) *= 1.00001f;
    const CheckResult result = Judge();
    ASSERT_GE(result.violation_count, 1);
    const Violation& violation = result.violations[0];
    EXPECT_THAT(violation.rule, HasSubstr("every moment is the optimizer's"));
    EXPECT_EQ(violation.rank, 1);
    EXPECT_EQ(violation.tensor, "layers.1.weight");
    EXPECT_EQ(violation.element, 4);
    EXPECT_NEAR(violation.ratio, 1.00001, 1e-6);
    EXPECT_GT(violation.tolerance_share, 1);
  }
}

TEST_F(AnyOrderTest, AnUpdateFarBelowTheParameterBoundIsFound) {
  RunDescription run = HandMadeRun(Mode::kFullShard, 2);
  run.optimizer.learning_rate = 1e-5;
  run.optimizer.weight_decay = 0;
  StartAnyOrder(run);
  Next();
  // Twice the step: 2e-5 where 1e-5 was due.
  float& value = training_->Value(0, StateClass::kParameter, 0, 0);
  value += value - training_->reference().tensors[0].previous_parameter[0];
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("every update is the optimizer's"));
  EXPECT_NEAR(result.violations[0].ratio, 2, 0.01);
}

TEST_F(AnyOrderTest, HyperParametersOfAGroupAreJudgedByIt) {
  RunDescription run = HandMadeRun(Mode::kFullShard, 2);
  run.optimizer.learning_rate = 1e-6;
  StartAnyOrder(run);
  OptimizerGroup group;
  group.tensors = {2};
  group.learning_rate = 5e-6;
  run_.optimizer.groups = {group};  // the check's run has the group, the trainer's has not
  check_ = MakeNumericEquivalence();
  check_->Begin(run_);
  Next();
  const CheckResult result = Judge();
  ASSERT_GE(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].tensor, "layers.1.weight");
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("another group"));
}

TEST_F(AnyOrderTest, AnUpdateIsJudgedFromTheTrainersOwnPast) {
  StartAnyOrder();
  Next();
  // Within 1e-4 of the reference, but no update leads there.
  const float wrong = training_->Value(0, StateClass::kParameter, 0, 0) + 5e-5f;
  Set(StateClass::kParameter, wrong);
  Show();
  Next();
  // From there the right way: the reference's step from another place.
  const ReferenceTensor& tensor = training_->reference().tensors[0];
  const double decay = 1 - run_.optimizer.learning_rate * run_.optimizer.weight_decay;
  const double step = static_cast<double>(tensor.parameter[0]) -
                      decay * static_cast<double>(tensor.previous_parameter[0]);
  Set(StateClass::kParameter, decay * static_cast<double>(wrong) + step);
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].step, 0);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("every update"));
}

TEST_F(AnyOrderTest, AParameterBeyondTheBoundIsFound) {
  StartAnyOrder();
  Next();
  training_->Value(1, StateClass::kParameter, 3, 0) += 2e-4f;
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[1].rule,
            "every parameter is replicated training's, but for what rounding in sums explains");
  EXPECT_NEAR(result.violations[1].tolerance_share, 2, 0.01);
  EXPECT_THAT(result.violations[1].actual, HasSubstr("accepted 0.0001"));
}

// In step 0 element 3 of layers.1.weight has contributions of mean magnitude 0.25 that cancel to 0:
// what rounding leaves of them is all that AdamW has to tell the way by.
TEST_F(AnyOrderTest, AParameterMayGoAnotherWayWhereRoundingDecidesAndOnlyThere) {
  RunDescription run = HandMadeRun(Mode::kReplicated, 2);
  run.optimizer.learning_rate = 0.1;
  StartAnyOrder(run);
  Next();
  const ReferenceTensor& tensor = training_->reference().tensors[2];
  ASSERT_EQ(tensor.gradient[3], 0);
  for (const int32_t rank : {0, 1}) FollowGradient(rank, 2, 3, 0x1p-25f);
  EXPECT_GT(std::abs(training_->Value(0, StateClass::kParameter, 2, 3) - tensor.parameter[3]),
            0.05f);
  EXPECT_EQ(Judge().verdict, Verdict::kPass);
  StartAnyOrder(run);  // an element whose gradient is clear has no such freedom
  Next();
  training_->Value(1, StateClass::kParameter, 2, 2) += 2e-4f;
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_NEAR(result.violations[1].tolerance_share, 2, 0.1);
}

TEST_F(AnyOrderTest, AfterAStepThatWasNotShownParametersNeedOnlyBeNumbers) {
  const auto judge = [&](float value) {
    StartAnyOrder();
    Next();
    check_->Step(training_->observed(), nullptr);
    Next();
    training_->Value(1, StateClass::kParameter, 3, 0) = value;
    return Judge().verdict;
  };
  EXPECT_EQ(judge(1.0f), Verdict::kNotObserved);
  EXPECT_EQ(judge(std::numeric_limits<float>::infinity()), Verdict::kFail);
  EXPECT_EQ(judge(std::numeric_limits<float>::quiet_NaN()), Verdict::kFail);
}

// zero2 with plain SGD: every rank has all parameters, and each the gradients that it updates by.
TEST_F(AnyOrderTest, WithoutMomentsTheRankThatShowsTheGradientIsJudged) {
  RunDescription run = HandMadeRun(Mode::kReplicated, 2);
  run.optimizer.kind = OptimizerKind::kSgd;
  run.optimizer.momentum = 0;
  const auto next = [&] {
    Next();
    for (int32_t rank = 0; rank < 2; ++rank) {
      std::erase_if(training_->observed().states[rank].segments, [&](const StateSegment& s) {
        return s.state != StateClass::kParameter &&
               (s.state != StateClass::kReducedGradient || s.tensor % 2 != rank);
      });
    }
  };
  StartAnyOrder(run);
  for (int step = 0; step < 2; ++step) {
    next();
    Show();
  }
  CheckResult result = check_->Finish();
  EXPECT_EQ(result.verdict, Verdict::kPass) << result.reason;
  StartAnyOrder(run);
  next();
  training_->Value(1, StateClass::kParameter, 3, 1) += 1e-5f;
  result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("every update is the optimizer's"));
}

// Contributions of mean magnitude 1000 that cancel to gradients of less than 1.
TEST_F(AnyOrderTest, ANormMayBeOffByTheRoundingOfItsGradients) {
  const auto judge = [&](double error, bool magnitudes) {
    RunDescription run = HandMadeRun(Mode::kFullShard, 2);
    run.clip_grad_norm = 5;
    StartAnyOrder(run);
    Next();
    ReferenceStep& reference = training_->mutable_reference();
    reference.gradient_norm = 10;
    reference.clip_coefficient = reference.used_coefficient = 0.5f;
    static const std::vector<float> kLarge(6, 1000);
    for (ReferenceTensor& tensor : reference.tensors) {
      tensor.gradient_magnitude = magnitudes ? kLarge.data() : nullptr;
    }
    training_->observed().clips.assign(2,
                                       {10 * (1 + error), static_cast<float>(0.5 / (1 + error))});
    return Judge();
  };
  // 6 u of 1000 in each of 17 elements, over the coefficient: 2.9e-3 of 10.
  EXPECT_EQ(judge(2e-4, true).verdict, Verdict::kPass);
  EXPECT_EQ(judge(-2e-4, true).verdict, Verdict::kPass);
  const CheckResult wrong = judge(6e-4, true);
  ASSERT_GE(wrong.violation_count, 4);
  EXPECT_EQ(wrong.violations[0].rule, "every rank clips by the norm of replicated training");
  EXPECT_NEAR(wrong.violations[0].tolerance_share, 2, 0.1);
  EXPECT_NEAR(wrong.violations[1].tolerance_share, 2, 0.1);
  const CheckResult unknown = judge(2e-4, false);
  EXPECT_EQ(unknown.verdict, Verdict::kNotObserved);
}

// Gradients that were clipped by a coefficient that is right but not the reference's.
TEST_F(AnyOrderTest, GradientsFollowTheCoefficientThatWasAccepted) {
  const auto judge = [&](float shown) {
    RunDescription run = HandMadeRun(Mode::kFullShard, 2);
    run.clip_grad_norm = 5;
    StartAnyOrder(run);
    Next();
    ReferenceStep& reference = training_->mutable_reference();
    reference.gradient_norm = 10;
    reference.clip_coefficient = reference.used_coefficient = 0.5f;
    // Only the last tensor's contributions cancel far, and make the norm uncertain.
    static const std::vector<float> kLarge(2, 1000);
    reference.tensors[3].gradient_magnitude = kLarge.data();
    training_->observed().clips.assign(2, {5.0 / shown - 1e-6, shown});
    FollowGradient(kGradient * (1 + 1e-5f));
    return Judge();
  };
  EXPECT_EQ(judge(0.5f * (1 + 1e-5f)).verdict, Verdict::kPass);
  const CheckResult result = judge(0.5f);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("reduced gradient"));
}

TEST_F(AnyOrderTest, ATensorThatTheStepDoesNotUseKeepsItsBits) {
  RunDescription run = HandMadeRun(Mode::kFullShard, 2);
  run.usage = {{.tensor = 1, .steps = StepUse::kEven}};
  StartAnyOrder(run);
  Next();
  Show();
  Next();
  float& value = training_->Value(1, StateClass::kParameter, 1, 2);
  value = std::nextafter(value, 0.0f);
  float& moment = training_->Value(1, StateClass::kExpAvg, 1, 1);
  moment = std::nextafter(moment, 0.0f);
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 2);
  for (const Violation& violation : result.violations) {
    EXPECT_EQ(violation.step, 1);
    EXPECT_EQ(violation.tensor, "layers.0.bias");
    EXPECT_THAT(violation.rule, HasSubstr("no rank uses in the step keeps"));
  }
  EXPECT_EQ(result.violations[0].element, 1);
  EXPECT_EQ(result.violations[1].element, 2);
}

TEST_F(AnyOrderTest, AStepWhosePastWasNotShownIsNotJudged) {
  StartAnyOrder();
  Next();
  check_->Step(training_->observed(), nullptr);
  Next();
  const CheckResult result = Judge();
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  StartAnyOrder();  // a class of the past is missing on one rank
  Next();
  std::erase_if(training_->observed().states[1].segments,
                [](const StateSegment& s) { return s.state == StateClass::kExpAvgSq; });
  const CheckResult missing = Judge();
  EXPECT_EQ(missing.verdict, Verdict::kNotObserved);
  EXPECT_THAT(missing.reason, HasSubstr("rank 1 showed no exp_avg_sq"));
}

TEST_F(AnyOrderTest, ANanIsBeyondEveryBound) {
  StartAnyOrder();
  Next();
  training_->Value(0, StateClass::kReducedGradient, 0, 0) = std::numeric_limits<float>::quiet_NaN();
  CheckResult result = Judge();
  ASSERT_GE(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("reduced gradient"));
  StartAnyOrder();
  Next();
  training_->Value(0, StateClass::kExpAvg, 0, 0) = std::numeric_limits<float>::quiet_NaN();
  result = Judge();
  ASSERT_GE(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("every moment"));
}

TEST_F(AnyOrderTest, LossesAreWithinABound) {
  const auto judge = [&](double loss) {
    StartAnyOrder();
    Next();
    training_->observed().losses = {0.5, loss};
    training_->mutable_reference().losses = {0.5, 0.25};
    return Judge();
  };
  EXPECT_EQ(judge(0.25 * (1 + 9e-6)).verdict, Verdict::kPass);
  const CheckResult result = judge(0.25 * (1 + 2e-5));
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rule, "the loss of the rank is that of replicated training");
}

}  // namespace
}  // namespace shardproof
