// Weights that are never trained stay within any tolerance for a while, and ranks that
// train models of their own each look healthy: both must be found here.
#include "invariants/checks/liveness.h"

#include <cmath>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/hand_made.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

class LivenessTest : public ::testing::Test {
 protected:
  void Start(Mode mode, int32_t ranks, int32_t frozen = -1) {
    run_ = HandMadeRun(mode, ranks);
    if (frozen >= 0) run_.model.tensors[frozen].trainable = false;
    training_.emplace(run_);
    check_ = MakeLiveness();
    check_->Begin(run_);
  }
  void Next() { training_->Advance(); }
  void Show() { check_->Step(training_->observed(), &training_->reference()); }

  RunDescription run_;
  std::optional<HandMadeTraining> training_;
  std::unique_ptr<Check> check_;
};

TEST_F(LivenessTest, TrainingThatMovesAsTheReferenceDoesPasses) {
  for (const Mode mode : {Mode::kReplicated, Mode::kFullShard}) {
    Start(mode, 2, mode == Mode::kReplicated ? 1 : -1);
    for (int step = 0; step < 3; ++step) {
      Next();
      Show();
    }
    const CheckResult result = check_->Finish();
    EXPECT_EQ(result.name, "liveness");
    EXPECT_EQ(result.verdict, Verdict::kPass) << result.reason;
  }
}

TEST_F(LivenessTest, RowsThatAreNeverUpdatedAreNamedInEveryStep) {
  Start(Mode::kFullShard, 2);
  float initial[2];
  for (int step = 0; step < 3; ++step) {
    Next();
    // layers.1.weight is 0..3 on rank 0 and 4, 5 on rank 1.
    for (int i = 0; i < 2; ++i) {
      float& value = training_->Value(1, StateClass::kParameter, 2, 4 + i);
      if (step == 0) initial[i] = 2.5f + 0.125f * (4 + i);
      value = initial[i];
    }
    Show();
  }
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.verdict, Verdict::kFail);
  ASSERT_EQ(result.violation_count, 3);
  for (int step = 0; step < 3; ++step) {
    const Violation& violation = result.violations[step];
    EXPECT_EQ(violation.rank, 1);
    EXPECT_EQ(violation.step, step);
    EXPECT_EQ(violation.tensor, "layers.1.weight");
    EXPECT_EQ(violation.element, 4);
    EXPECT_THAT(violation.actual, HasSubstr("never updated"));
    EXPECT_THAT(violation.actual, HasSubstr("2 of the 2 elements"));
    EXPECT_THAT(violation.expected, HasSubstr("a move from 3 ("));
  }
}

TEST_F(LivenessTest, AWrongMoveIsStillAMove) {
  Start(Mode::kFullShard, 2);
  Next();
  training_->Value(0, StateClass::kParameter, 0, 1) += 1;
  Show();
  Next();
  training_->Value(0, StateClass::kParameter, 0, 1) += 2;
  Show();
  EXPECT_EQ(check_->Finish().verdict, Verdict::kPass);
}

TEST_F(LivenessTest, AMoveIsJudgedByTheObservedPastOnceItDiffers) {
  Start(Mode::kFullShard, 2);
  Next();
  const float wrong = training_->Value(0, StateClass::kParameter, 0, 1) += 1;
  Show();
  Next();
  training_->Value(0, StateClass::kParameter, 0, 1) = wrong;
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].step, 1);
  EXPECT_EQ(result.violations[0].element, 1);
  EXPECT_THAT(result.violations[0].actual, HasSubstr("1 of the 5 elements"));
}

TEST_F(LivenessTest, AFrozenTensorMustNotMove) {
  Start(Mode::kReplicated, 2, /*frozen=*/1);
  Next();
  training_->Value(0, StateClass::kParameter, 1, 2) -= 0.5f;
  training_->Value(1, StateClass::kParameter, 1, 2) -= 0.5f;
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[1].rank, 1);
  EXPECT_EQ(result.violations[1].tensor, "layers.0.bias");
  EXPECT_EQ(result.violations[1].element, 2);
  EXPECT_THAT(result.violations[1].actual, HasSubstr("moved to"));
  EXPECT_THAT(result.violations[1].likely_cause, HasSubstr("frozen"));
}

TEST_F(LivenessTest, CopiesOnDifferentRanksMustBeBitEqual) {
  Start(Mode::kReplicated, 4);
  Next();
  float& value = training_->Value(2, StateClass::kParameter, 3, 1);
  value = std::nextafter(value, 100.0f);
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 1);
  const Violation& violation = result.violations[0];
  EXPECT_THAT(violation.rule, HasSubstr("copies"));
  EXPECT_EQ(violation.rank, 2);
  EXPECT_EQ(violation.tensor, "layers.1.bias");
  EXPECT_EQ(violation.element, 1);
  EXPECT_THAT(violation.expected, HasSubstr("as on rank 0"));
  EXPECT_THAT(violation.actual, HasSubstr("on rank 2"));
}

TEST_F(LivenessTest, EqualCopiesOfAWrongValueAreEqual) {
  Start(Mode::kReplicated, 3);
  Next();
  for (int32_t rank = 0; rank < 3; ++rank) {
    training_->Value(rank, StateClass::kParameter, 3, 1) += 1;
  }
  Show();
  EXPECT_EQ(check_->Finish().verdict, Verdict::kPass);
}

TEST_F(LivenessTest, WithoutValuesOrReferenceNothingIsObserved) {
  Start(Mode::kFullShard, 2);
  Next();
  check_->Step(training_->observed(), nullptr);
  EXPECT_EQ(check_->Finish().verdict, Verdict::kNotObserved);

  Start(Mode::kFullShard, 2);
  Next();
  for (RankState& state : training_->observed().states) {
    for (StateSegment& segment : state.segments) segment.values = nullptr;
  }
  Show();
  EXPECT_EQ(check_->Finish().verdict, Verdict::kNotObserved);
}

TEST_F(LivenessTest, ARankWithoutValuesIsNotAPass) {
  Start(Mode::kReplicated, 2);
  Next();
  training_->Segment(1, StateClass::kParameter, 0).values = nullptr;
  Show();
  const CheckResult result = check_->Finish();
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_THAT(result.reason, HasSubstr("rank 1"));
}

// Where training has no fixed order of sums, and the reference says how far gradients cancel.
class AnyOrderLivenessTest : public LivenessTest {
 protected:
  void StartAnyOrder() {
    run_ = HandMadeRun(Mode::kFullShard, 2);
    training_.emplace(run_, HandMadeTraining::Arithmetic::kOptimizer);
    check_ = MakeLiveness();
    check_->Begin(run_);
    training_->Advance();
    training_->observed().any_order = true;
  }
  // Element 0 of layers.0.weight: gradient -0.625, of contributions of mean magnitude 1.1875.
  float& Weight() { return training_->Value(0, StateClass::kParameter, 0, 0); }
  float Before() const { return training_->reference().tensors[0].previous_parameter[0]; }
};

TEST_F(AnyOrderLivenessTest, AnElementThatStaysIsStillFound) {
  StartAnyOrder();
  Weight() = Before();
  Show();
  const CheckResult result = check_->Finish();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].element, 0);
}

TEST_F(AnyOrderLivenessTest, AGradientLostInTheRoundingOfItsSumDecidesNothing) {
  StartAnyOrder();
  Weight() = Before();
  training_->Reference(StateClass::kReducedGradient, 0, 0) = 1e-9f;
  Show();
  EXPECT_EQ(check_->Finish().verdict, Verdict::kPass);
  StartAnyOrder();  // with a fixed order it does
  Weight() = Before();
  training_->Reference(StateClass::kReducedGradient, 0, 0) = 1e-9f;
  training_->observed().any_order = false;
  Show();
  EXPECT_EQ(check_->Finish().verdict, Verdict::kFail);
}

// A gradient that cancels the momentum of those before it: nothing moves but by their rounding.
TEST_F(AnyOrderLivenessTest, MomentumLostInTheRoundingOfTheSumDecidesNothing) {
  for (const float exp_avg : {0.0f, 1e-9f, 0.01f}) {
    StartAnyOrder();
    training_->Reference(StateClass::kParameter, 0, 0) = Before();  // and the trainer moves
    training_->Reference(StateClass::kExpAvg, 0, 0) = exp_avg;
    Show();
    EXPECT_EQ(check_->Finish().verdict, exp_avg < 1e-6f ? Verdict::kPass : Verdict::kFail)
        << exp_avg;
  }
}

TEST_F(AnyOrderLivenessTest, AMoveOfAnUlpDecidesNothing) {
  StartAnyOrder();
  Weight() = Before();
  training_->Reference(StateClass::kParameter, 0, 0) = std::nextafter(Before(), 1.0f);
  Show();
  EXPECT_EQ(check_->Finish().verdict, Verdict::kPass);
}

TEST_F(LivenessTest, ATensorThatTheStepDoesNotUseMustNotMove) {
  run_ = HandMadeRun(Mode::kFullShard, 2);
  run_.usage = {{.tensor = 1, .steps = StepUse::kEven}};
  training_.emplace(run_, HandMadeTraining::Arithmetic::kOptimizer);
  check_ = MakeLiveness();
  check_->Begin(run_);
  for (int step = 0; step < 3; ++step) {
    Next();
    Show();
  }
  EXPECT_EQ(check_->Finish().verdict, Verdict::kPass);
  for (const bool any_order : {false, true}) {
    training_.emplace(run_, HandMadeTraining::Arithmetic::kOptimizer);
    check_ = MakeLiveness();
    check_->Begin(run_);
    for (int step = 0; step < 2; ++step) {
      Next();
      training_->observed().any_order = any_order;
      // In step 1 decay moves the bias that no rank uses.
      if (step == 1) training_->Value(1, StateClass::kParameter, 1, 0) *= 0.999f;
      Show();
    }
    const CheckResult result = check_->Finish();
    ASSERT_EQ(result.violation_count, 1);
    EXPECT_EQ(result.violations[0].step, 1);
    EXPECT_EQ(result.violations[0].tensor, "layers.0.bias");
    EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("was not used"));
  }
}

}  // namespace
}  // namespace shardproof
