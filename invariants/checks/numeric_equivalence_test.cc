// A wrong number in any class of state must be found at its first element, on its rank, with
// the earliest cause first; otherwise a scale error that Adam divides away would pass.
#include "invariants/checks/numeric_equivalence.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/float_bits.h"
#include "invariants/checks/hand_made.h"

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

}  // namespace
}  // namespace shardproof
