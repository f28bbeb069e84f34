// Layouts that lose, double or misplace an element, and padding that takes part in training,
// mostly show only for shapes that no world size divides: they must be found by rule.
#include "invariants/checks/padding.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/float_bits.h"
#include "invariants/checks/hand_made.h"
#include "invariants/observation/padding_value.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

// full_shard on two ranks: layers.0 has 9 elements, so that rank 0 holds elements 0 to 4 of
// its weight and rank 1 element 5, the bias and one element of padding.
class PaddingTest : public ::testing::Test {
 protected:
  void Start(Mode mode = Mode::kFullShard, int32_t ranks = 2) {
    run_ = HandMadeRun(mode, ranks);
    training_.emplace(run_);
    check_ = MakePadding();
    check_->Begin(run_);
    training_->Advance();
  }
  void Show() { check_->Step(training_->observed(), nullptr); }
  CheckResult Judge() {
    Show();
    return check_->Finish();
  }
  std::vector<StateSegment>& Segments(int32_t rank) {
    return training_->observed().states[rank].segments;
  }
  // Leaves only who owns what, as an accounting engine does.
  void KeepOwnershipOnly() {
    for (RankState& state : training_->observed().states) {
      std::erase_if(state.segments,
                    [](const StateSegment& s) { return s.state != StateClass::kExpAvg; });
      for (StateSegment& segment : state.segments) segment.values = nullptr;
    }
  }

  RunDescription run_;
  std::optional<HandMadeTraining> training_;
  std::unique_ptr<Check> check_;
};

TEST_F(PaddingTest, LayoutsOfClosedFormsPass) {
  for (const Mode mode : {Mode::kReplicated, Mode::kFullShard}) {
    for (const int32_t ranks : {1, 2, 3, 4, 5, 16}) {  // at 16 some shards are empty
      Start(mode, ranks);
      Show();
      training_->Advance();
      Show();
      const CheckResult result = check_->Finish();
      EXPECT_EQ(result.name, "padding");
      EXPECT_EQ(result.verdict, Verdict::kPass)
          << ranks << ": " << (result.violations.empty() ? "" : result.violations[0].actual);
    }
  }
}

TEST_F(PaddingTest, OwnershipAloneIsEnoughEvidence) {
  Start();
  KeepOwnershipOnly();
  CheckResult result = Judge();
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_EQ(result.reason, "values of padding were not shown: ownership and offsets only");
  Start();
  EXPECT_EQ(Judge().reason, "");
  Start(Mode::kFullShard, 1);  // nothing is padded
  KeepOwnershipOnly();
  EXPECT_EQ(Judge().reason, "");
}

TEST_F(PaddingTest, AnElementThatNobodyOwnsIsNamed) {
  Start();
  KeepOwnershipOnly();
  StateSegment& segment = training_->Segment(0, StateClass::kExpAvg, 0);
  segment.range.count = 4;
  training_->observed().events.clear();
  const CheckResult result = Judge();
  ASSERT_EQ(result.verdict, Verdict::kFail);
  ASSERT_EQ(result.violation_count, 1);
  const Violation& violation = result.violations[0];
  EXPECT_EQ(violation.tensor, "layers.0.weight");
  EXPECT_EQ(violation.element, 4);
  EXPECT_EQ(violation.rank, 0);
  EXPECT_EQ(violation.expected, "once, on rank 0");
  EXPECT_THAT(violation.actual, HasSubstr("no exp_avg of element 4"));
}

TEST_F(PaddingTest, AnElementThatTwoRanksOwnIsNamedWithBoth) {
  Start();
  KeepOwnershipOnly();
  StateSegment& segment = training_->Segment(1, StateClass::kExpAvg, 0);
  segment.range = {4, 2};
  training_->observed().events.clear();
  const CheckResult result = Judge();
  ASSERT_GE(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].tensor, "layers.0.weight");
  EXPECT_EQ(result.violations[0].element, 4);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_THAT(result.violations[0].actual, HasSubstr("on rank 0 and again on rank 1"));
}

TEST_F(PaddingTest, AHoleAndAnOverlapOfEqualSizeDoNotCancel) {
  Start();
  training_->Segment(0, StateClass::kExpAvg, 0).range = {1, 5};  // loses 0, doubles 5
  KeepOwnershipOnly();
  const CheckResult result = Judge();
  ASSERT_GE(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].element, 0);
}

TEST_F(PaddingTest, AShardCutElsewhereHasTheWrongOwner) {
  Start();
  training_->Segment(0, StateClass::kExpAvg, 0).range = {0, 4};
  training_->Segment(1, StateClass::kExpAvg, 0).range = {4, 2};
  KeepOwnershipOnly();
  training_->observed().events.clear();
  for (StateSegment& segment : Segments(1)) {
    if (segment.tensor == 1) segment.buffer_offset = 2;
    if (segment.tensor == -1) segment.buffer_offset = 5;
  }
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("owns"));
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].tensor, "layers.0.weight");
  EXPECT_EQ(result.violations[0].element, 4);
  EXPECT_EQ(result.violations[0].expected, "rank 0");
}

TEST_F(PaddingTest, AReplicatedClassMustBeWholeOnEveryRank) {
  Start(Mode::kReplicated, 3);
  std::erase_if(Segments(2), [](const StateSegment& s) {
    return s.state == StateClass::kReducedGradient && s.tensor == 3;
  });
  training_->observed().events.clear();
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 2);
  EXPECT_EQ(result.violations[0].tensor, "layers.1.bias");
  EXPECT_EQ(result.violations[0].element, 0);
  EXPECT_THAT(result.violations[0].actual, HasSubstr("reduced_gradient of elements 0 to 1"));
}

TEST_F(PaddingTest, ARankThatShowsNothingIsMissed) {
  Start(Mode::kReplicated, 3);
  training_->observed().states.pop_back();
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 2);
}

TEST_F(PaddingTest, ASegmentBeyondItsTensorIsNamed) {
  Start();
  training_->Segment(1, StateClass::kExpAvg, 1).range = {1, 3};
  KeepOwnershipOnly();
  const CheckResult result = Judge();
  ASSERT_GE(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("within its tensor"));
  EXPECT_EQ(result.violations[0].tensor, "layers.0.bias");
}

TEST_F(PaddingTest, SegmentsThatOverlapInTheirBufferAreNamed) {
  Start();
  training_->Segment(1, StateClass::kParameter, 1).buffer_offset = 0;
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].unit, "layers.0");
  EXPECT_THAT(result.violations[0].rule, HasSubstr("tile"));
  EXPECT_THAT(result.violations[0].actual, HasSubstr("overlap"));
}

TEST_F(PaddingTest, AHoleInABufferIsNamed) {
  Start();
  for (StateSegment& segment : Segments(1)) {
    if (segment.tensor == -1 && segment.state == StateClass::kExpAvgSq) segment.buffer_offset = 5;
  }
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].expected, HasSubstr("offset 4"));
  EXPECT_THAT(result.violations[0].actual, HasSubstr("a hole: the next at offset 5"));
}

TEST_F(PaddingTest, ABufferMustBeShownToItsEnd) {
  Start();
  std::erase_if(Segments(1), [](const StateSegment& s) {
    return s.tensor == -1 && s.state == StateClass::kParameter;
  });
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].expected, HasSubstr("up to its 5 elements"));
  EXPECT_EQ(result.violations[0].actual, "segments up to 4");
}

TEST_F(PaddingTest, OneMomentMayFillHalfOfTheBufferOfBoth) {
  Start();
  KeepOwnershipOnly();
  for (RankEvents& events : training_->observed().events) {
    for (BufferInfo& buffer : events.buffers) {
      if (buffer.role == BufferRole::kOptimizerState) buffer.elements *= 2;
    }
  }
  EXPECT_EQ(Judge().verdict, Verdict::kPass);
}

TEST_F(PaddingTest, ANumberInPaddingIsNamedWithItsBuffer) {
  Start();
  for (StateSegment& segment : Segments(1)) {
    if (segment.tensor != -1 || segment.state != StateClass::kReducedGradient) continue;
    static const float kZero = 0;
    segment.values = &kZero;
  }
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("padding stays"));
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].unit, "layers.0");
  EXPECT_THAT(result.violations[0].actual,
              HasSubstr("0 (0x00000000) at offset 4 of gradient of layers.0 (buffer 2)"));
}

TEST_F(PaddingTest, OnlyTheBuffersOwnPoisonProvesThatPaddingIsInert) {
  const auto judge = [&](StateClass state, float value) {
    Start();
    for (StateSegment& segment : Segments(1)) {
      if (segment.tensor == -1 && segment.state == state) segment.values = &value;
    }
    return Judge();
  };
  // Buffers of layers.0: parameter 0, gradient 2, exp_avg 4, exp_avg_sq 6.
  for (const auto& [state, buffer] :
       {std::pair(StateClass::kParameter, 0), std::pair(StateClass::kExpAvg, 4),
        std::pair(StateClass::kExpAvgSq, 6)}) {
    EXPECT_EQ(judge(state, PoisonValue({PoisonKind::kPadding, buffer})).verdict, Verdict::kPass);
    const CheckResult other = judge(state, PoisonValue({PoisonKind::kPadding, buffer + 1}));
    ASSERT_EQ(other.violation_count, 1) << Name(state);
    EXPECT_THAT(other.violations[0].likely_cause, HasSubstr("padding of another buffer"));
    const CheckResult fresh = judge(state, PoisonValue({PoisonKind::kFresh, buffer}));
    ASSERT_EQ(fresh.violation_count, 1) << Name(state);
    EXPECT_THAT(fresh.violations[0].likely_cause, HasSubstr("memory never written"));
    const CheckResult made = judge(state, FloatFromBits(0x7fc00000));
    ASSERT_EQ(made.violation_count, 1) << Name(state);
    EXPECT_EQ(made.violations[0].rank, 1);
    EXPECT_THAT(made.violations[0].expected, HasSubstr("0x7fc1000"));
    EXPECT_THAT(made.violations[0].likely_cause, HasSubstr("arithmetic ran over the padding"));
  }
  // A reduction sums padding too, and may lose the payload.
  EXPECT_EQ(judge(StateClass::kReducedGradient, FloatFromBits(0x7fffffff)).verdict, Verdict::kPass);
  EXPECT_EQ(judge(StateClass::kReducedGradient, 1.0f).verdict, Verdict::kFail);
}

// Whoever writes a trainer has only this sentence to go by.
TEST_F(PaddingTest, AFailureSaysWhatPaddingMustBeFilledWith) {
  const auto cause = [&](StateClass state, float value) {
    Start();
    for (StateSegment& segment : Segments(1)) {
      if (segment.tensor == -1 && segment.state == state) segment.values = &value;
    }
    const CheckResult result = Judge();
    return result.violations.empty() ? "" : result.violations[0].likely_cause;
  };
  for (const float wrong : {0.0f, FloatFromBits(0x7fc00000)}) {
    EXPECT_THAT(cause(StateClass::kExpAvg, wrong),
                HasSubstr("must fill padding with exactly PaddingValue(4) = 0x7fc10004 when the "
                          "run begins (invariants/suite/sharded_trainer.h)"));
  }
  EXPECT_THAT(cause(StateClass::kReducedGradient, 0), HasSubstr("fill it with a NaN when"));
}

TEST_F(PaddingTest, PaddingValueIsWhatTheCheckAccepts) {
  for (const int32_t buffer : {0, 4, 77, 0x10003}) {
    EXPECT_EQ(FloatBits(PaddingValue(buffer)),
              FloatBits(PoisonValue({PoisonKind::kPadding, buffer})));
  }
  Start();
  const float filled = PaddingValue(4);
  for (StateSegment& segment : Segments(1)) {
    if (segment.tensor == -1 && segment.state == StateClass::kExpAvg) segment.values = &filled;
  }
  EXPECT_EQ(Judge().verdict, Verdict::kPass);
}

TEST_F(PaddingTest, APaddingWhoseBufferIsNotNamedStillHasToBePoison) {
  const auto judge = [&](float value) {
    Start();
    for (StateSegment& segment : Segments(1)) {
      segment.buffer = -1;
      if (segment.tensor == -1 && segment.state == StateClass::kExpAvg) segment.values = &value;
    }
    return Judge().verdict;
  };
  EXPECT_EQ(judge(PoisonValue({PoisonKind::kPadding, 77})), Verdict::kPass);
  EXPECT_EQ(judge(FloatFromBits(0x7fc00000)), Verdict::kFail);
}

TEST_F(PaddingTest, TiesAndEmptyTensorsHaveTheirPlacesAsClosedFormsSay) {
  run_ = HandMadeRun(Mode::kFullShard, 2);
  run_.model.kind = ModelKind::kProbe;
  run_.model.tensors.push_back({"empty", {0, 4}, 1, true, {}});
  run_.model.stages[1].tensors = {1, 2, 4, 3};  // uses the first unit's bias, and the empty one
  training_.emplace(run_);
  check_ = MakePadding();
  check_->Begin(run_);
  training_->Advance();
  EXPECT_EQ(Judge().verdict, Verdict::kPass);
  // The tied bias is held by the second unit as well.
  check_ = MakePadding();
  check_->Begin(run_);
  StateSegment tied = training_->Segment(1, StateClass::kExpAvg, 1);
  tied.buffer = -1;
  Segments(0).push_back(tied);
  const CheckResult twice = Judge();
  ASSERT_GE(twice.violation_count, 1);
  EXPECT_EQ(twice.violations[0].tensor, "layers.0.bias");
}

TEST_F(PaddingTest, PoisonInAnElementNamesItsKindAndBuffer) {
  Start();
  training_->Value(0, StateClass::kParameter, 2, 3) = PoisonValue({PoisonKind::kFreed, 3});
  training_->Value(1, StateClass::kExpAvg, 2, 5) = PoisonValue({PoisonKind::kPadding, 4});
  const CheckResult result = Judge();
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].rank, 0);
  EXPECT_EQ(result.violations[0].tensor, "layers.1.weight");
  EXPECT_EQ(result.violations[0].element, 3);
  EXPECT_EQ(result.violations[0].unit, "layers.1");
  EXPECT_THAT(result.violations[0].actual, HasSubstr("freed memory of gradient of layers.1"));
  EXPECT_THAT(result.violations[1].actual, HasSubstr("padding of optimizer_state of layers.0"));
}

TEST_F(PaddingTest, ANanThatArithmeticMadeIsNotPoison) {
  Start();
  training_->Value(0, StateClass::kParameter, 2, 3) = FloatFromBits(0x7fc00000);
  EXPECT_EQ(Judge().verdict, Verdict::kPass);
}

TEST_F(PaddingTest, WithoutSegmentsNothingIsObserved) {
  Start();
  for (RankState& state : training_->observed().states) state.segments.clear();
  EXPECT_EQ(Judge().verdict, Verdict::kNotObserved);
}

}  // namespace
}  // namespace shardproof
