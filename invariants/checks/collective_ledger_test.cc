// A collective too many, too few, of another size, kind, dtype or group, or in another order on
// one rank, must be named with its unit and rank.
#include "invariants/checks/collective_ledger.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "invariants/checks/issued_step.h"
#include "invariants/closed_forms/example_runs.h"

namespace shardproof {
namespace {

CheckResult Judge(const RunDescription& run, const StepObservation& observed) {
  const std::unique_ptr<Check> check = MakeCollectiveLedger();
  check->Begin(run);
  check->Step(observed, nullptr);
  return check->Finish();
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Event Collective(CollectiveKind kind, Purpose purpose, Phase phase, int64_t elements) {
  Event event;
  event.kind = EventKind::kCollective;
  event.collective = kind;
  event.purpose = purpose;
  event.phase = phase;
  event.elements = elements;
  event.group = Group{0, 1, 2};
  return event;
}

// By hand: one unit of 3 elements on 2 ranks, so buffers of 4; gathered for forward and again
// for backward, reduced once.
StepObservation HandWrittenStep() {
  RankEvents events;
  events.events = {
      Collective(CollectiveKind::kAllGather, Purpose::kUnshardParameters, Phase::kForward, 4),
      Collective(CollectiveKind::kAllGather, Purpose::kUnshardParameters, Phase::kBackward, 4),
      Collective(CollectiveKind::kReduceScatter, Purpose::kReduceGradients, Phase::kBackward, 4),
  };
  for (Event& event : events.events) event.unit = 0;
  StepObservation observed;
  for (int32_t rank = 0; rank < 2; ++rank) {
    events.ranks = Group{rank, 1, 1};
    observed.events.push_back(events);
  }
  return observed;
}

RunDescription HandWrittenRun() { return VectorRun({3}, Sharding(Mode::kFullShard, 2)); }

TEST(CollectiveLedger, AHandWrittenStepPasses) {
  EXPECT_EQ(Judge(HandWrittenRun(), HandWrittenStep()).verdict, Verdict::kPass);
}

TEST(CollectiveLedger, KernelsOnTheGpuAreAsManyAsTheClosedFormHasCollectives) {
  StepObservation observed = HandWrittenStep();
  observed.devices = {{.rank = 0, .collective_kernels = {0, 2, 1, 0, 0}},
                      {.rank = 1, .collective_kernels = {0, 2, 1, 0, 0}}};
  EXPECT_EQ(Judge(HandWrittenRun(), observed).verdict, Verdict::kPass);
  observed.devices[1].collective_kernels[1] = 1;
  const CheckResult fewer = Judge(HandWrittenRun(), observed);
  ASSERT_EQ(fewer.violations.size(), 1u);
  EXPECT_EQ(fewer.violations[0].rank, 1);
  EXPECT_EQ(fewer.violations[0].expected, "2");
  EXPECT_EQ(fewer.violations[0].actual, "1");
  EXPECT_TRUE(Has(fewer.violations[0].rule, "all-gather")) << fewer.violations[0].rule;
  observed.devices[1].collective_kernels = {1, 2, 1, 0, 0};
  const CheckResult more = Judge(HandWrittenRun(), observed);
  ASSERT_EQ(more.violations.size(), 1u);
  EXPECT_TRUE(Has(more.violations[0].rule, "all-reduce")) << more.violations[0].rule;
}

TEST(CollectiveLedger, CollectivesOfOneRankOrOfNoElementsHaveNoKernels) {
  const RunDescription alone = VectorRun({3}, Sharding(Mode::kFullShard, 1));
  StepObservation observed = IssuedStep(alone);
  observed.devices = {{.rank = 0, .collective_kernels = {0, 0, 0, 0, 0}}};
  EXPECT_EQ(Judge(alone, observed).verdict, Verdict::kPass);
  observed.devices[0].collective_kernels[1] = 2;
  EXPECT_EQ(Judge(alone, observed).verdict, Verdict::kFail);
}

TEST(CollectiveLedger, TheStepOfEveryModePasses) {
  for (const Mode mode : {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather,
                          Mode::kZero2, Mode::kShardGradOp, Mode::kFullShard}) {
    RunDescription run = MlpRun({3, 5, 1, 7}, true, Sharding(mode, 3));
    run.data.num_micro_batches = 2;
    run.sharding.bucket_cap_bytes = 64;
    EXPECT_EQ(Judge(run, IssuedStep(run)).verdict, Verdict::kPass) << Name(mode);
  }
}

TEST(CollectiveLedger, WithoutEventsNothingIsObserved) {
  EXPECT_EQ(Judge(HandWrittenRun(), StepObservation()).verdict, Verdict::kNotObserved);
}

TEST(CollectiveLedger, ARankThatWasNotShownKeepsItFromPassing) {
  StepObservation observed = HandWrittenStep();
  observed.events.pop_back();
  const CheckResult result = Judge(HandWrittenRun(), observed);
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason, "step 0 showed no events of rank 1");
  observed.events[0].ranks = Group{0, 1, 2};  // the first stands for both
  EXPECT_EQ(Judge(HandWrittenRun(), observed).verdict, Verdict::kPass);
}

TEST(CollectiveLedger, AMissingGatherNamesUnitPhaseAndCount) {
  const RunDescription run = StudyRun(Mode::kFullShard, 2);
  StepObservation observed = IssuedStep(run, 1);
  for (RankEvents& events : observed.events) {
    Erase(&events, Find(events, EventKind::kCollective, Phase::kBackward, 3));
  }
  const CheckResult result = Judge(run, observed);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  ASSERT_EQ(result.violation_count, 6);  // named, in total and counted, on two ranks
  const Violation& missing = result.violations[0];
  EXPECT_EQ(missing.rule,
            "a step sends all that its mode needs: all-gather of layers.3 in backward is missing");
  EXPECT_EQ(missing.rank, 0);
  EXPECT_EQ(missing.step, 1);
  EXPECT_EQ(missing.unit, "layers.3");
  EXPECT_EQ(missing.expected,
            "all-gather of layers.3 in backward of 4194304 float32 among 2 ranks from 0");
  EXPECT_EQ(missing.actual, "nothing");
  EXPECT_TRUE(Has(missing.likely_cause, "stale parameters")) << missing.likely_cause;
  const Violation& total = result.violations[1];
  // 16 + 8 collectives of 16 MiB, half of each on the bus; one is missing.
  EXPECT_EQ(total.expected, "402653184 payload bytes, 201326592 bus bytes");
  EXPECT_EQ(total.actual, "385875968 payload bytes, 192937984 bus bytes");
  const Violation& count = result.violations[2];
  EXPECT_EQ(count.rule,
            "the all-gathers in backward are as many as the table of full_shard/backward_pre says");
  EXPECT_EQ(count.expected, "8");
  EXPECT_EQ(count.actual, "7");
}

TEST(CollectiveLedger, AMissingReductionSaysThatGradientsStayLocal) {
  StepObservation observed = HandWrittenStep();
  for (RankEvents& events : observed.events) events.events.pop_back();
  const CheckResult result = Judge(HandWrittenRun(), observed);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  EXPECT_TRUE(Has(result.violations[0].rule, "reduce-scatter of units.0 in backward is missing"));
  EXPECT_TRUE(Has(result.violations[0].likely_cause, "stay local"));
}

TEST(CollectiveLedger, AnExtraCollectiveIsNamedWithItsEvent) {
  StepObservation observed = HandWrittenStep();
  for (RankEvents& events : observed.events) events.events.push_back(events.events[2]);
  const CheckResult result = Judge(HandWrittenRun(), observed);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.violations[0].rule,
            "a step sends only what its mode needs: reduce-scatter of units.0 in backward is "
            "extra");
  EXPECT_EQ(result.violations[0].event, 3);
  EXPECT_EQ(result.violations[0].expected, "nothing");
}

TEST(CollectiveLedger, AnotherSizeDtypeOrGroupIsOneDifferenceAndNotTwo) {
  const auto judge = [](auto edit) {
    StepObservation observed = HandWrittenStep();
    for (RankEvents& events : observed.events) edit(&events.events[1]);
    return Judge(HandWrittenRun(), observed);
  };
  CheckResult result = judge([](Event* event) { event->elements = 3; });
  ASSERT_FALSE(result.violations.empty());
  EXPECT_EQ(result.violations[0].rule,
            "elements, dtype, group and root of all-gather of units.0 in backward are those of "
            "the mode");
  EXPECT_EQ(result.violations[0].ratio, 0.75);
  EXPECT_EQ(result.violations[0].event, 1);
  EXPECT_TRUE(Has(result.violations[0].likely_cause, "another layout or padding"));

  result = judge([](Event* event) { event->dtype = Dtype::kBFloat16; });
  ASSERT_FALSE(result.violations.empty());
  EXPECT_EQ(result.violations[0].likely_cause, "communicated in another precision");

  result = judge([](Event* event) { event->group = Group{0, 1, 1}; });
  ASSERT_FALSE(result.violations.empty());
  EXPECT_EQ(result.violations[0].likely_cause, "communicated within another group of ranks");
}

TEST(CollectiveLedger, ABroadcastFromAnotherRootIsFound) {
  const RunDescription run = VectorRun({4, 6}, Sharding(Mode::kZero1Broadcast, 2));
  StepObservation observed = IssuedStep(run);
  for (RankEvents& events : observed.events) events.events.back().root = 1;
  const CheckResult result = Judge(run, observed);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.violations[0].tensor, "units.1.weight");
  EXPECT_TRUE(Has(result.violations[0].expected, "from rank 0"));
}

TEST(CollectiveLedger, AnotherOrderIsLeftToIssueOrder) {
  const RunDescription run = StudyRun(Mode::kFullShard, 2);
  StepObservation observed = IssuedStep(run);
  for (RankEvents& events : observed.events) MoveBefore(&events, 2, 0);
  EXPECT_EQ(Judge(run, observed).verdict, Verdict::kPass);
}

TEST(CollectiveLedger, AnotherOrderOnOneRankIsADisagreement) {
  const RunDescription uneven = VectorRun({4, 8}, Sharding(Mode::kFullShard, 4));
  StepObservation observed = IssuedStep(uneven);
  MoveBefore(&observed.events[2], 2, 0);
  const CheckResult disagreement = Judge(uneven, observed);
  ASSERT_EQ(disagreement.violation_count, 1);
  const Violation& violation = disagreement.violations[0];
  EXPECT_EQ(violation.rank, 2);
  EXPECT_EQ(violation.event, 0);
  EXPECT_EQ(violation.unit, "units.1");
  EXPECT_TRUE(Has(violation.expected, "rank 0 issues all-gather of units.0")) << violation.expected;
  EXPECT_TRUE(Has(violation.actual, "rank 2 issues all-gather of units.1")) << violation.actual;
}

TEST(CollectiveLedger, ACollectiveThatNeverEndsIsNamed) {
  StepObservation observed = HandWrittenStep();
  observed.events[1].events[2].completed = false;
  const CheckResult result = Judge(HandWrittenRun(), observed);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rule, "every collective ends within its step");
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].event, 2);
}

// The hand-written step of a run that clips.
StepObservation ClippedStep() {
  StepObservation observed = HandWrittenStep();
  Event norm = Collective(CollectiveKind::kAllReduce, Purpose::kClipNorm, Phase::kOptimizer, 1);
  norm.dtype = Dtype::kFloat64;
  for (RankEvents& events : observed.events) events.events.push_back(norm);
  return observed;
}

RunDescription ClippedRun() {
  RunDescription run = HandWrittenRun();
  run.clip_grad_norm = 1;
  return run;
}

TEST(CollectiveLedger, OneClipNormIsExpectedAndNotCountedAsTheModes) {
  EXPECT_EQ(Judge(ClippedRun(), ClippedStep()).verdict, Verdict::kPass);
  // The table's counts have no all-reduce; a missing one breaks the ledger alone.
  const CheckResult missing = Judge(ClippedRun(), HandWrittenStep());
  ASSERT_EQ(missing.violation_count, 2);  // one a rank
  EXPECT_EQ(missing.violations[0].rule,
            "a step sends all that its mode needs: all-reduce of the clip norm in optimizer is "
            "missing");
  EXPECT_EQ(missing.violations[0].expected,
            "all-reduce of the clip norm in optimizer of 1 float64 among 2 ranks from 0");
  EXPECT_EQ(missing.violations[0].likely_cause,
            "each rank clips by the norm of its own shards alone");
}

TEST(CollectiveLedger, AClipNormOnOneRankAloneIsMissedOnTheOther) {
  StepObservation observed = ClippedStep();
  observed.events[1].events.pop_back();
  const CheckResult result = Judge(ClippedRun(), observed);
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_TRUE(Has(result.violations[0].rule, "clip norm in optimizer is missing"));
  EXPECT_EQ(result.violations[1].actual, "rank 1 issues nothing more");
}

TEST(CollectiveLedger, ASecondClipNormIsExtra) {
  StepObservation observed = ClippedStep();
  for (RankEvents& events : observed.events) events.events.push_back(events.events.back());
  const CheckResult result = Judge(ClippedRun(), observed);
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_TRUE(Has(result.violations[0].rule, "all-reduce of the clip norm in optimizer is extra"));
  EXPECT_EQ(result.violations[0].event, 4);
  EXPECT_TRUE(Has(result.violations[0].likely_cause, "counted N times"));
}

TEST(CollectiveLedger, AClipNormOfAnotherGroupDtypeOrSizeIsFound) {
  const auto judge = [](auto edit) {
    StepObservation observed = ClippedStep();
    for (RankEvents& events : observed.events) edit(&events.events.back());
    return Judge(ClippedRun(), observed);
  };
  CheckResult result = judge([](Event* event) { event->group = Group{0, 1, 1}; });
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].likely_cause, "communicated within another group of ranks");
  result = judge([](Event* event) { event->dtype = Dtype::kFloat32; });
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].likely_cause, "communicated in another precision");
  result = judge([](Event* event) { event->elements = 3; });
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].ratio, 3);
  result = judge([](Event* event) { event->phase = Phase::kBackward; });
  ASSERT_EQ(result.violation_count, 4);  // missing in optimizer, extra in backward
}

TEST(CollectiveLedger, AClipNormInARunThatDoesNotClipIsAViolation) {
  const CheckResult result = Judge(HandWrittenRun(), ClippedStep());
  ASSERT_EQ(result.violation_count, 2);  // one a rank
  EXPECT_EQ(result.violations[0].event, 3);
  EXPECT_TRUE(Has(result.violations[0].rule, "clip norm in optimizer is extra"));
  EXPECT_TRUE(Has(result.violations[0].likely_cause, "does not have"));
}

TEST(CollectiveLedger, WholeGradientsNeedNoClipNorm) {
  for (const Mode mode : {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather}) {
    RunDescription run = VectorRun({4, 6}, Sharding(mode, 2));
    run.clip_grad_norm = 1;
    StepObservation observed = IssuedStep(run);
    EXPECT_EQ(Judge(run, observed).verdict, Verdict::kPass) << Name(mode);
    Event norm = Collective(CollectiveKind::kAllReduce, Purpose::kClipNorm, Phase::kOptimizer, 1);
    norm.dtype = Dtype::kFloat64;
    for (RankEvents& events : observed.events) events.events.push_back(norm);
    const CheckResult result = Judge(run, observed);
    ASSERT_EQ(result.violation_count, 2) << Name(mode);
    EXPECT_TRUE(Has(result.violations[0].likely_cause, "counted N times"));
  }
}

TEST(CollectiveLedger, TiesAndEmptyTensorsHaveTheirOwnCounts) {
  // By hand: the second stage uses the first one's tensor; the third has nothing to send. So two
  // units are gathered twice and reduced once each.
  RunDescription run = VectorRun({3, 3, 0}, Sharding(Mode::kFullShard, 2));
  run.model.stages[1].tensors = {1, 0};
  StepObservation observed = HandWrittenStep();
  for (RankEvents& events : observed.events) {
    for (int i = 0; i < 3; ++i) {
      events.events.push_back(events.events[i]);
      events.events.back().unit = 1;
    }
  }
  EXPECT_EQ(Judge(run, observed).verdict, Verdict::kPass);
  for (RankEvents& events : observed.events) {
    events.events.push_back(events.events[1]);  // gathered again for the tie
  }
  const CheckResult again = Judge(run, observed);
  ASSERT_EQ(again.verdict, Verdict::kFail);
  EXPECT_EQ(again.violations[0].unit, "units.0");
  for (RankEvents& events : observed.events) {
    events.events.back().unit = 2;  // the empty one
    events.events.back().elements = 0;
  }
  const CheckResult empty = Judge(run, observed);
  ASSERT_EQ(empty.verdict, Verdict::kFail);
  EXPECT_TRUE(Has(empty.violations[0].rule, "all-gather of units.2 in backward is extra"));
}

TEST(CollectiveLedger, WhatNoClosedFormCountsIsInferred) {
  StepObservation observed = HandWrittenStep();
  for (RankEvents& events : observed.events) {
    for (const Purpose purpose :
         {Purpose::kModelBuffers, Purpose::kUsedMap, Purpose::kModelBuffers}) {
      events.events.push_back(Collective(CollectiveKind::kAllReduce, purpose, Phase::kOther, 1));
    }
  }
  const CheckResult result = Judge(HandWrittenRun(), observed);
  EXPECT_EQ(result.verdict, Verdict::kInferred);
  EXPECT_EQ(result.reason,
            "1 collectives of purpose used_map and 2 collectives of purpose model_buffers are "
            "outside the closed form");
  observed.events[1].events[2].completed = false;
  EXPECT_EQ(Judge(HandWrittenRun(), observed).verdict, Verdict::kFail);
}

TEST(CollectiveLedger, ACollectiveWithoutAPurposeIsAViolation) {
  StepObservation observed = HandWrittenStep();
  observed.events[0].events.push_back(
      Collective(CollectiveKind::kBarrier, Purpose::kNone, Phase::kOther, 0));
  observed.events[1].events.push_back(observed.events[0].events.back());
  const CheckResult result = Judge(HandWrittenRun(), observed);
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].rule, "every collective says what it is for");
  EXPECT_EQ(result.violations[0].event, 3);
}

TEST(CollectiveLedger, TheStepOfHybridShardingIsNotJudged) {
  RunDescription run = HandWrittenRun();
  run.sharding.world_size = WorldSize{4};
  run.sharding.shard_group_size = 2;
  EXPECT_EQ(Judge(run, HandWrittenStep()).verdict, Verdict::kNotObserved);
}

}  // namespace
}  // namespace shardproof
