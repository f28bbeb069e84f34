// An item that is issued early, late, twice, never or under another micro-batch must be named
// with its neighbours; orders that look alike in counts must not pass for each other.
#include "invariants/checks/issue_order.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "invariants/checks/issued_step.h"
#include "invariants/closed_forms/example_runs.h"

namespace shardproof {
namespace {

CheckResult Judge(const RunDescription& run, const StepObservation& observed) {
  const std::unique_ptr<Check> check = MakeIssueOrder();
  check->Begin(run);
  check->Step(observed, nullptr);
  return check->Finish();
}

Event Item(EventKind kind, Phase phase, int32_t unit) {
  Event event;
  event.kind = kind;
  event.phase = phase;
  event.unit = unit;
  event.micro_batch = phase == Phase::kOptimizer ? -1 : 0;
  if (kind == EventKind::kCompute) {
    event.stage = unit;
    event.stage_count = 1;
  }
  return event;
}

Event Gather(Phase phase, int32_t unit) {
  Event event = Item(EventKind::kCollective, phase, unit);
  event.collective = CollectiveKind::kAllGather;
  event.purpose = Purpose::kUnshardParameters;
  return event;
}

Event Scatter(int32_t unit) {
  Event event = Item(EventKind::kCollective, Phase::kBackward, unit);
  event.collective = CollectiveKind::kReduceScatter;
  event.purpose = Purpose::kReduceGradients;
  return event;
}

// By hand: two units under backward_post, G1 c1 G2 c2 | G2 c2 G1 S2 c1 S1 | u1 u2. Reshards and
// local work stand between the items.
StepObservation HandWrittenStep() {
  const Phase forward = Phase::kForward, backward = Phase::kBackward;
  RankEvents events;
  events.ranks = Group{0, 1, 2};
  events.events = {
      Gather(forward, 0),
      Item(EventKind::kCompute, forward, 0),
      Gather(forward, 1),
      Item(EventKind::kReshard, forward, 0),
      Item(EventKind::kCompute, forward, 1),
      Item(EventKind::kReshard, forward, 1),
      Gather(backward, 1),
      Item(EventKind::kCompute, backward, 1),
      Item(EventKind::kReshard, backward, 1),
      Gather(backward, 0),
      Scatter(1),
      Item(EventKind::kLocal, backward, 1),
      Item(EventKind::kCompute, backward, 0),
      Item(EventKind::kReshard, backward, 0),
      Scatter(0),
      Item(EventKind::kOptimizer, Phase::kOptimizer, 0),
      Item(EventKind::kOptimizer, Phase::kOptimizer, 1),
  };
  StepObservation observed;
  observed.events = {events};
  return observed;
}

RunDescription HandWrittenRun() {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kFullShard, 2));
  run.sharding.prefetch = Prefetch::kBackwardPost;
  return run;
}

TEST(IssueOrder, AHandWrittenStepPasses) {
  EXPECT_EQ(Judge(HandWrittenRun(), HandWrittenStep()).verdict, Verdict::kPass);
}

TEST(IssueOrder, TheStepOfEveryModePasses) {
  for (const Mode mode : {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather,
                          Mode::kZero2, Mode::kShardGradOp, Mode::kFullShard}) {
    RunDescription run = MlpRun({3, 5, 1, 7}, true, Sharding(mode, 3));
    run.data.num_micro_batches = 2;
    run.sharding.bucket_cap_bytes = 64;
    EXPECT_EQ(Judge(run, IssuedStep(run)).verdict, Verdict::kPass) << Name(mode);
  }
}

TEST(IssueOrder, WithoutEventsNothingIsObserved) {
  EXPECT_EQ(Judge(HandWrittenRun(), StepObservation()).verdict, Verdict::kNotObserved);
  StepObservation observed = HandWrittenStep();
  observed.events[0].ranks = Group{0, 1, 1};
  const CheckResult result = Judge(HandWrittenRun(), observed);
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason, "step 0 showed no events of rank 1");
}

TEST(IssueOrder, AnotherPrefetchIsRecognized) {
  RunDescription run = HandWrittenRun();
  run.sharding.prefetch = Prefetch::kBackwardPre;
  const CheckResult result = Judge(run, HandWrittenStep());
  ASSERT_EQ(result.verdict, Verdict::kFail);
  const Violation& first = result.violations[0];
  EXPECT_EQ(first.rule, "a step is issued in the order of full_shard/backward_pre");
  EXPECT_EQ(first.unit, "units.0");
  EXPECT_EQ(first.event, 7);
  EXPECT_EQ(first.expected,
            "all-gather of units.0 in backward after all-gather of units.1 in backward and before "
            "backward of units.1");
  EXPECT_EQ(first.actual,
            "backward of units.1 after all-gather of units.1 in backward and before all-gather of "
            "units.0 in backward");
  EXPECT_EQ(first.likely_cause, "this is the order of prefetch backward_post");
}

TEST(IssueOrder, AMissingItemIsOneDivergence) {
  const RunDescription run = StudyRun(Mode::kFullShard, 2);
  StepObservation observed = IssuedStep(run, 3);
  Erase(&observed.events[1], Find(observed.events[1], EventKind::kCollective, Phase::kBackward, 4));
  const CheckResult result = Judge(run, observed);
  ASSERT_EQ(result.violation_count, 1);
  const Violation& violation = result.violations[0];
  EXPECT_EQ(violation.rank, 1);
  EXPECT_EQ(violation.step, 3);
  EXPECT_EQ(violation.unit, "layers.4");
  EXPECT_EQ(violation.likely_cause,
            "all-gather of layers.4 in backward is never issued in this step");
}

TEST(IssueOrder, AnExtraItemIsOneDivergence) {
  StepObservation observed = HandWrittenStep();
  std::vector<Event>& events = observed.events[0].events;
  events.insert(events.begin() + 12, Gather(Phase::kBackward, 0));
  const CheckResult result = Judge(HandWrittenRun(), observed);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].event, 12);
  EXPECT_EQ(result.violations[0].expected,
            "backward of units.0 after reduce-scatter of units.1 in backward and before "
            "reduce-scatter of units.0 in backward");
  EXPECT_EQ(result.violations[0].likely_cause,
            "all-gather of units.0 in backward is issued here and not, or not only, where it "
            "belongs");
}

TEST(IssueOrder, AnItemThatComesLateIsTwoDivergences) {
  const RunDescription run = StudyRun(Mode::kShardGradOp, 2);
  StepObservation observed = IssuedStep(run);
  RankEvents& events = observed.events[0];
  // The reduction of layers.7 only after the backward of layers.3.
  MoveBefore(&events, Find(events, EventKind::kCollective, Phase::kBackward, 7),
             Find(events, EventKind::kCollective, Phase::kBackward, 3));
  const CheckResult result = Judge(run, observed);
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].unit, "layers.7");
  EXPECT_EQ(result.violations[0].likely_cause,
            "reduce-scatter of layers.7 in backward is issued at another place");
  EXPECT_EQ(result.violations[1].unit, "layers.3");
}

TEST(IssueOrder, AnotherMicroBatchIsFoundWhereCountsAgree) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kFullShard, 2));
  run.data.num_micro_batches = 2;
  run.sharding.grad_sync = GradSync::kLast;
  StepObservation observed = IssuedStep(run);
  for (RankEvents& events : observed.events) {
    // Reduced in the first micro-batch instead of the last.
    const int32_t reduction = Find(events, EventKind::kCollective, Phase::kBackward, 1, 2);
    events.events[reduction].micro_batch = 0;
    MoveBefore(&events, reduction, Find(events, EventKind::kCompute, Phase::kBackward, 0));
  }
  const CheckResult result = Judge(run, observed);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.violations[0].actual,
            "reduce-scatter of units.1 in backward, micro-batch 0 after backward of units.1, "
            "micro-batch 0 and before backward of units.0, micro-batch 0");
  EXPECT_EQ(result.violations[0].likely_cause,
            "the mode has no reduce-scatter of units.1 in backward, micro-batch 0");
}

Event AllReduce(Purpose purpose) {
  Event event = Item(EventKind::kCollective, Phase::kOptimizer, -1);
  event.collective = CollectiveKind::kAllReduce;
  event.purpose = purpose;
  return event;
}

TEST(IssueOrder, CollectivesOfOtherPurposesMayStandAnywhere) {
  StepObservation observed = HandWrittenStep();
  std::vector<Event>& events = observed.events[0].events;
  events.insert(events.begin() + 15, AllReduce(Purpose::kUsedMap));
  EXPECT_EQ(Judge(HandWrittenRun(), observed).verdict, Verdict::kPass);
}

TEST(IssueOrder, TheClipNormComesBeforeTheFirstUpdate) {
  RunDescription run = HandWrittenRun();
  run.clip_grad_norm = 1;
  StepObservation observed = HandWrittenStep();
  std::vector<Event>& events = observed.events[0].events;
  const Event norm = AllReduce(Purpose::kClipNorm);
  const Event local = Item(EventKind::kLocal, Phase::kOptimizer, -1);
  // The squares, their sum over the ranks, the coefficient, the scaling of two shards.
  events.insert(events.begin() + 15, {local, norm, local, local, local});
  EXPECT_EQ(Judge(run, observed).verdict, Verdict::kPass);

  observed = HandWrittenStep();
  CheckResult result = Judge(run, observed);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].likely_cause,
            "all-reduce of the clip norm in optimizer is never issued in this step");

  observed.events[0].events.insert(observed.events[0].events.begin() + 16, norm);
  result = Judge(run, observed);  // between the two updates
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].expected,
            "all-reduce of the clip norm in optimizer after reduce-scatter of units.0 in backward "
            "and before update of units.0");

  observed = HandWrittenStep();
  observed.events[0].events.insert(observed.events[0].events.begin() + 15, norm);
  result = Judge(HandWrittenRun(), observed);  // a run that does not clip
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].likely_cause,
            "the mode has no all-reduce of the clip norm in optimizer");
}

TEST(IssueOrder, ARunGathersItsOwnUnitBeforeThoseOfItsTies) {
  // G1 c1 G2 c2 | G2 G1 c2 S2 c1 S1 | u1 u2: the second stage uses the first one's tensor.
  const Phase forward = Phase::kForward, backward = Phase::kBackward;
  RunDescription run = HandWrittenRun();
  run.model.stages[1].tensors = {1, 0};
  StepObservation observed;
  observed.events.resize(1);
  observed.events[0].ranks = Group{0, 1, 2};
  std::vector<Event>& events = observed.events[0].events;
  events = {
      Gather(forward, 0),
      Item(EventKind::kCompute, forward, 0),
      Gather(forward, 1),
      Item(EventKind::kCompute, forward, 1),
      Item(EventKind::kReshard, forward, 1),
      Item(EventKind::kReshard, forward, 0),
      Gather(backward, 1),
      Gather(backward, 0),
      Item(EventKind::kCompute, backward, 1),
      Item(EventKind::kReshard, backward, 1),
      Scatter(1),
      Item(EventKind::kCompute, backward, 0),
      Item(EventKind::kReshard, backward, 0),
      Scatter(0),
      Item(EventKind::kOptimizer, Phase::kOptimizer, 0),
      Item(EventKind::kOptimizer, Phase::kOptimizer, 1),
  };
  EXPECT_EQ(Judge(run, observed).verdict, Verdict::kPass);
  std::swap(events[6], events[7]);
  EXPECT_EQ(Judge(run, observed).verdict, Verdict::kFail);
  std::swap(events[6], events[7]);
  // Reduced when its own last use is done, before the first unit has added its part.
  run.model.stages[1].tensors = {1};
  EXPECT_EQ(Judge(run, observed).verdict, Verdict::kFail);
}

TEST(IssueOrder, AStepThatStopsEarlySaysSo) {
  StepObservation observed = HandWrittenStep();
  observed.events[0].events.pop_back();
  const CheckResult result = Judge(HandWrittenRun(), observed);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].expected, "update of units.1 after update of units.0");
  EXPECT_EQ(result.violations[0].actual, "the end of the step after update of units.0");
}

TEST(IssueOrder, AWildOrderIsReportedAFewTimesAndNotForEveryItem) {
  const RunDescription run = StudyRun(Mode::kFullShard, 2);
  StepObservation observed = IssuedStep(run);
  std::vector<Event>& events = observed.events[0].events;
  std::reverse(events.begin(), events.end());
  const CheckResult result = Judge(run, observed);
  EXPECT_EQ(result.verdict, Verdict::kFail);
  EXPECT_LE(result.violation_count, kMaxDivergences);
}

}  // namespace
}  // namespace shardproof
