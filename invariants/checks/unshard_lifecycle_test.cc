// Parameters that are whole for too long cost memory, whole for too short or stale they cost
// the training; each way of getting the cycle wrong must be named with its unit and event.
#include "invariants/checks/unshard_lifecycle.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/hand_made.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

std::vector<Script> FullShard(int64_t step = 0, int32_t ranks = 2) {
  std::vector<Script> scripts;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    scripts.push_back(FullShardScript(rank, ranks, step));
  }
  return scripts;
}

std::vector<Script> Replicated(int64_t step = 0) {
  return {ReplicatedScript(0, 2, step), ReplicatedScript(1, 2, step)};
}

CheckResult Judge(const RunDescription& run, const std::vector<StepObservation>& steps) {
  const std::unique_ptr<Check> check = MakeUnshardLifecycle();
  check->Begin(run);
  for (const StepObservation& step : steps) check->Step(step, nullptr);
  return check->Finish();
}

CheckResult Judge(const std::vector<Script>& scripts, int64_t step = 0) {
  return Judge(HandMadeRun(Mode::kFullShard, 2), {ShowScripts(scripts, step)});
}

TEST(UnshardLifecycle, CorrectStepsPass) {
  const CheckResult result = Judge(HandMadeRun(Mode::kFullShard, 2),
                                   {ShowScripts(FullShard(0), 0), ShowScripts(FullShard(1), 1)});
  EXPECT_EQ(result.name, "unshard_lifecycle");
  EXPECT_EQ(result.verdict, Verdict::kPass)
      << (result.violations.empty() ? result.reason : result.violations[0].rule);
  EXPECT_EQ(Judge(HandMadeRun(Mode::kReplicated, 2),
                  {ShowScripts(Replicated(0), 0), ShowScripts(Replicated(1), 1)})
                .verdict,
            Verdict::kPass);
}

TEST(UnshardLifecycle, AUnitThatIsGatheredTwiceIsNamed) {
  std::vector<Script> scripts = FullShard();
  scripts[1].Drop(5);  // the reshard of layers.1 after forward
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  const Violation& violation = result.violations[0];
  EXPECT_THAT(violation.rule, HasSubstr("gathered only while it is sharded"));
  EXPECT_EQ(violation.rank, 1);
  EXPECT_EQ(violation.step, 0);
  EXPECT_EQ(violation.unit, "layers.1");
  EXPECT_EQ(violation.event, 6);
  EXPECT_THAT(violation.expected, HasSubstr("event 3 (all_gather of layers.1, communication)"));
}

TEST(UnshardLifecycle, AUnitKeptFromForwardToBackwardIsNamed) {
  std::vector<Script> scripts = FullShard();
  scripts[0].Drop(5);
  scripts[0].Drop(6);  // and so the gather in backward is not needed
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("between its last forward"));
  EXPECT_EQ(result.violations[0].rank, 0);
  EXPECT_EQ(result.violations[0].unit, "layers.1");
  EXPECT_EQ(result.violations[0].event, 7);
}

TEST(UnshardLifecycle, KeepingAUnitIsRightWhereItIsNotReshardedAfterForward) {
  std::vector<Script> scripts = FullShard();
  for (Script& script : scripts) {
    script.Drop(5);
    script.Drop(6);
  }
  RunDescription run = HandMadeRun(Mode::kFullShard, 2);
  run.model.units[1].reshard_after_forward = false;
  EXPECT_EQ(Judge(run, {ShowScripts(scripts, 0)}).verdict, Verdict::kPass);
  EXPECT_EQ(Judge(run, {ShowScripts(FullShard(), 0)}).violation_count, 2);  // one a rank
}

TEST(UnshardLifecycle, ShardGradOpNeverReshardsBetweenForwardAndBackward) {
  const CheckResult result =
      Judge(HandMadeRun(Mode::kShardGradOp, 2), {ShowScripts(FullShard(), 0)});
  ASSERT_EQ(result.violation_count, 4);  // two units on two ranks
  EXPECT_THAT(result.violations[0].rule, HasSubstr("kept for backward"));
  EXPECT_EQ(result.violations[0].unit, "layers.1");
  EXPECT_THAT(result.violations[0].actual, HasSubstr("event 5 (reshard of layers.1"));
}

TEST(UnshardLifecycle, ASecondReshardIsNamed) {
  std::vector<Script> scripts = FullShard();
  ScriptedEvent again = scripts[0].events[13];
  again.accesses.clear();
  scripts[0].events.push_back(again);
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("resharded only while it is unsharded"));
  EXPECT_EQ(result.violations[0].unit, "layers.0");
  EXPECT_EQ(result.violations[0].event, 17);
  EXPECT_THAT(result.violations[0].actual, HasSubstr("after event 13"));
}

TEST(UnshardLifecycle, ComputationOfAShardedUnitReadsWhatWasFreed) {
  std::vector<Script> scripts = FullShard();
  scripts[1].Drop(11);  // the gather of layers.0 in backward
  const CheckResult result = Judge(scripts);
  ASSERT_GE(result.violation_count, 3);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("compute only while their unit is unsharded"));
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].unit, "layers.0");
  EXPECT_EQ(result.violations[0].event, 12);
  EXPECT_THAT(result.violations[0].actual, HasSubstr("sharded since event 2"));
  EXPECT_THAT(result.violations[1].rule, HasSubstr("only between allocation and release"));
  EXPECT_THAT(result.violations[1].rule, HasSubstr("unsharded_parameter of layers.0 (buffer 2)"));
  EXPECT_THAT(result.violations[1].actual, HasSubstr("freed by event 2 (reshard of layers.0"));
}

TEST(UnshardLifecycle, AGatherThatNeverCompletesDoesNotUnshard) {
  std::vector<Script> scripts = FullShard();
  scripts[0].events[3].event.completed = false;
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].event, 4);
  EXPECT_THAT(result.violations[0].actual, HasSubstr("never completed"));
}

TEST(UnshardLifecycle, AUnitLeftUnshardedAtTheEndIsNamed) {
  std::vector<Script> scripts = FullShard();
  scripts[0].Drop(13);
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("after the step every unit is sharded"));
  EXPECT_EQ(result.violations[0].unit, "layers.0");
  EXPECT_EQ(result.violations[0].event, 11);
}

TEST(UnshardLifecycle, AReshardThatFreesNothingIsNamed) {
  std::vector<Script> scripts = FullShard();
  scripts[0].events[13].accesses.clear();
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.violation_count, 2);  // and full parameters are alive at the end
  EXPECT_THAT(result.violations[0].rule, HasSubstr("frees the unit's full parameters"));
  EXPECT_EQ(result.violations[0].event, 13);
  EXPECT_THAT(result.violations[1].actual, HasSubstr("buffer 2) is alive"));
}

TEST(UnshardLifecycle, AGatherMustAllocateItsUnit) {
  std::vector<Script> scripts = FullShard();
  std::erase_if(scripts[0].events[0].accesses,
                [](const Access& access) { return access.kind == AccessKind::kAllocate; });
  const CheckResult result = Judge(scripts);
  ASSERT_GE(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("allocates the unit's full parameters"));
}

TEST(UnshardLifecycle, ABufferThatWasNeverWrittenIsNotRead) {
  std::vector<Script> scripts = FullShard();
  std::erase_if(scripts[0].events[12].accesses, [](const Access& access) {
    return access.kind == AccessKind::kWrite;  // backward of layers.0 leaves its gradient out
  });
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("unreduced_gradient of layers.0 (buffer 4)"));
  EXPECT_EQ(result.violations[0].event, 14);
  EXPECT_THAT(result.violations[0].actual, HasSubstr("never written"));
}

TEST(UnshardLifecycle, WhatWasNotWrittenBeforeTheBoundaryIsNotWrittenAfterIt) {
  std::vector<Script> first = Replicated(0);
  std::vector<Script> second = Replicated(1);
  // Rank 0 allocates a buffer at the end of step 0, and reads it in step 1.
  first[0].buffers.push_back(
      {BufferRole::kWorkspace, Dtype::kFloat32, MemoryTier::kDevice, 8, -1, -1});
  second[0].buffers = first[0].buffers;
  first[0].events[3].accesses.push_back({2, AccessKind::kAllocate, {0, 8}, -1});
  second[0].live_before = {0, 2};
  second[0].events[0].accesses.push_back({2, AccessKind::kRead, {0, 8}, -1});
  const CheckResult result =
      Judge(HandMadeRun(Mode::kReplicated, 2), {ShowScripts(first, 0), ShowScripts(second, 1)});
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].step, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("workspace (buffer 2)"));
}

TEST(UnshardLifecycle, StaleParametersAreNamedWithTheirVersion) {
  std::vector<Script> scripts = FullShard(3);
  scripts[1].events[4].accesses[0].version = 2;
  CheckResult result = Judge(scripts, 3);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].unit, "layers.1");
  EXPECT_EQ(result.violations[0].event, 4);
  EXPECT_EQ(result.violations[0].expected, "version 3");
  EXPECT_THAT(result.violations[0].actual, HasSubstr("version 2 read by event 4"));

  scripts = Replicated(1);
  scripts[0].events[0].accesses[0].version = 0;
  result = Judge(HandMadeRun(Mode::kReplicated, 2), {ShowScripts(scripts, 1)});
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].unit, "bucket 0");
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("never reached"));
}

TEST(UnshardLifecycle, FrozenUnitsAreNotJudged) {
  RunDescription run = HandMadeRun(Mode::kFullShard, 2);
  run.model.tensors[2].trainable = run.model.tensors[3].trainable = false;
  std::vector<Script> scripts = FullShard(3);
  for (Script& script : scripts) {
    script.events[3].accesses[1].version = 0;  // layers.1, frozen
    script.events[4].accesses[0].version = -1;
    script.events[7].accesses[1].version = 0;
  }
  EXPECT_EQ(Judge(run, {ShowScripts(scripts, 3)}).verdict, Verdict::kPass);
}

TEST(UnshardLifecycle, ComputationWithoutVersionsLeavesStalenessUnobserved) {
  std::vector<Script> scripts = FullShard(3);
  scripts[1].events[4].accesses[0].version = -1;
  CheckResult result = Judge(scripts, 3);
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason,
            "which update event 4 (forward of layers.1, compute) of rank 1 read parameters of was "
            "not shown");
  scripts[0].events[1].accesses[0].version = 2;  // stale all the same
  EXPECT_EQ(Judge(scripts, 3).verdict, Verdict::kFail);
}

TEST(UnshardLifecycle, ComputationThatShowsNoAccessIsNotObserved) {
  std::vector<Script> scripts = Replicated();
  scripts[0].events[0].accesses.clear();
  const RunDescription run = HandMadeRun(Mode::kReplicated, 2);
  const CheckResult result = Judge(run, {ShowScripts(scripts, 0)});
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_THAT(result.reason, HasSubstr("which buffers event 0 (forward"));
  // Computation without parameters may use nothing.
  scripts = Replicated();
  scripts[0].events.insert(scripts[0].events.begin() + 1, ScriptedEvent());
  scripts[0].events[1].event.kind = EventKind::kCompute;
  EXPECT_EQ(Judge(run, {ShowScripts(scripts, 0)}).verdict, Verdict::kPass);
}

TEST(UnshardLifecycle, AGatherOfAStaleShardIsNamed) {
  std::vector<Script> scripts = FullShard(3);
  scripts[1].events[6].accesses[1].version = 2;
  const CheckResult result = Judge(scripts, 3);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("collectives send parameters"));
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].unit, "layers.1");
  EXPECT_EQ(result.violations[0].event, 6);
  EXPECT_EQ(result.violations[0].expected, "version 3");
  EXPECT_THAT(result.violations[0].actual, HasSubstr("version 2 read by event 6"));
}

TEST(UnshardLifecycle, WhatIsSentAfterTheUpdateCarriesIt) {
  const RunDescription run = HandMadeRun(Mode::kZero1AllGather, 2);
  for (const Purpose purpose : {Purpose::kGatherParameters, Purpose::kBroadcastParameters}) {
    std::vector<Script> scripts = Replicated(1);
    for (Script& script : scripts) {
      ScriptedEvent send = script.events[2];
      send.event.purpose = purpose;
      send.event.root = 0;
      send.accesses = {{0, AccessKind::kRead, {0, 4}, 2}, {0, AccessKind::kWrite, {0, 8}, 2}};
      script.events.push_back(send);
    }
    EXPECT_EQ(Judge(run, {ShowScripts(scripts, 1)}).verdict, Verdict::kPass);
    scripts[0].events[4].accesses[0].version = 1;
    const CheckResult result = Judge(run, {ShowScripts(scripts, 1)});
    ASSERT_EQ(result.violation_count, 1);
    EXPECT_EQ(result.violations[0].event, 4);
    EXPECT_EQ(result.violations[0].expected, "version 2");
    EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("before the update"));
    scripts = Replicated(1);  // a rank that only receives a broadcast may hold older values
    ScriptedEvent receive = scripts[1].events[2];
    receive.event.purpose = Purpose::kBroadcastParameters;
    receive.event.root = 0;
    receive.accesses = {{0, AccessKind::kRead, {0, 8}, 1}, {0, AccessKind::kWrite, {0, 8}, 2}};
    scripts[1].events.push_back(receive);
    EXPECT_EQ(Judge(run, {ShowScripts(scripts, 1)}).verdict, Verdict::kPass);
  }
}

TEST(UnshardLifecycle, ReplicatedModesNeverUnshard) {
  const CheckResult result = Judge(HandMadeRun(Mode::kZero2, 2), {ShowScripts(FullShard(), 0)});
  ASSERT_EQ(result.verdict, Verdict::kFail);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("only shard_grad_op and full_shard"));
  EXPECT_EQ(result.violations[0].unit, "layers.0");
  EXPECT_EQ(result.violations[0].expected, "no such event in zero2");
}

TEST(UnshardLifecycle, WithoutEventsOfEveryRankNothingIsObserved) {
  EXPECT_EQ(Judge({}).verdict, Verdict::kNotObserved);
  EXPECT_EQ(Judge({FullShardScript(0, 2, 0)}).verdict, Verdict::kNotObserved);
}

TEST(UnshardLifecycle, IndicesThatPointNowhereAreViolationsAndNoCrash) {
  std::vector<Script> scripts = FullShard();
  scripts[0].events[1].accesses[0].buffer = 99;
  scripts[0].events[1].event.stage = 7;
  scripts[0].events[2].event.unit = 5;
  StepObservation observed = ShowScripts(scripts, 0);
  observed.events[1].events[16].access_count = 1000;
  observed.events[1].live_before.push_back(-3);
  EXPECT_EQ(Judge(HandMadeRun(Mode::kFullShard, 2), {observed}).verdict, Verdict::kFail);
}

// HandMadeRun whose second layer uses the first one's weight too.
RunDescription TiedRun() {
  RunDescription run = HandMadeRun(Mode::kFullShard, 2);
  run.model.stages[1].tensors.push_back(0);
  return run;
}

// FullShardScript with layers.0 unsharded until layers.1 has computed: its reshard moves behind
// forward, and its gather of backward in front.
Script TiedScript(int32_t rank) {
  Script script = FullShardScript(rank, 2, 0);
  std::vector<ScriptedEvent>& events = script.events;
  std::rotate(events.begin() + 2, events.begin() + 3, events.begin() + 6);    // 2 R0 -> 5
  std::rotate(events.begin() + 7, events.begin() + 11, events.begin() + 12);  // 11 G0 -> 7
  return script;
}

TEST(UnshardLifecycle, ATieNeedsTheUnitOfItsTensorUnshardedToo) {
  const std::vector<Script> tied = {TiedScript(0), TiedScript(1)};
  const CheckResult right = Judge(TiedRun(), {ShowScripts(tied, 0)});
  EXPECT_EQ(right.verdict, Verdict::kPass)
      << (right.violations.empty() ? right.reason : right.violations[0].rule);
  // layers.0 is resharded when its own stage is done, as if nobody had borrowed its weight.
  const CheckResult early = Judge(TiedRun(), {ShowScripts(FullShard(), 0)});
  ASSERT_EQ(early.violation_count, 4);  // forward and backward of layers.1, on two ranks
  const Violation& violation = early.violations[0];
  EXPECT_THAT(violation.rule, HasSubstr("the units of their tied tensors are unsharded"));
  EXPECT_EQ(violation.unit, "layers.0");
  EXPECT_EQ(violation.event, 4);
  EXPECT_THAT(violation.actual, HasSubstr("sharded since event 2"));
  EXPECT_EQ(early.violations[1].event, 7);
  // Without the tie the longer life is not this rule's business: memory is.
  EXPECT_EQ(Judge(HandMadeRun(Mode::kFullShard, 2), {ShowScripts(tied, 0)}).verdict,
            Verdict::kPass);
}

TEST(UnshardLifecycle, ATensorWithoutElementsNeedsNoGather) {
  RunDescription run = HandMadeRun(Mode::kFullShard, 2);
  run.model.kind = ModelKind::kProbe;
  // A third unit of an empty tensor, computed in forward and backward and never gathered; and the
  // second layer uses that tensor too.
  run.model.tensors.push_back({"empty", {0, 3}, 1, true, {}});
  run.model.stages.push_back({"layers.2", {4}});
  run.model.stages[1].tensors.push_back(4);
  run.model.units.push_back({"layers.2", {2}, true});
  std::vector<Script> scripts = FullShard();
  for (Script& script : scripts) {
    ScriptedEvent compute;
    compute.event.kind = EventKind::kCompute;
    compute.event.stage = compute.event.unit = 2;
    compute.event.stage_count = 1;
    compute.event.micro_batch = 0;
    for (const Phase phase : {Phase::kBackward, Phase::kForward}) {
      compute.event.phase = phase;
      script.events.insert(script.events.begin() + 6, compute);
    }
    for (ScriptedEvent& event : script.events) event.waits.clear();  // numbers moved
  }
  const CheckResult result = Judge(run, {ShowScripts(scripts, 0)});
  EXPECT_EQ(result.verdict, Verdict::kPass)
      << (result.violations.empty() ? result.reason : result.violations[0].rule);
  // With one element the same steps would break the rule.
  run.model.tensors[4].shape = {1, 1};
  EXPECT_EQ(Judge(run, {ShowScripts(scripts, 0)}).verdict, Verdict::kFail);
}

TEST(UnshardLifecycle, ClippingIsLocalWorkBesideTheCycle) {
  std::vector<Script> scripts = FullShard();
  for (Script& script : scripts) {
    const int32_t norm = static_cast<int32_t>(script.buffers.size());
    script.buffers.push_back(
        {BufferRole::kWorkspace, Dtype::kFloat64, MemoryTier::kDevice, 1, -1, -1});
    ScriptedEvent squares, sum, scale;
    squares.event.phase = sum.event.phase = scale.event.phase = Phase::kOptimizer;
    squares.accesses = {{norm, AccessKind::kAllocate, {0, 1}, -1},
                        {6, AccessKind::kRead, {0, 8}, -1},
                        {norm, AccessKind::kWrite, {0, 1}, -1}};
    sum.event.kind = EventKind::kCollective;
    sum.event.purpose = Purpose::kClipNorm;
    sum.event.collective = CollectiveKind::kAllReduce;
    sum.accesses = {{norm, AccessKind::kRead, {0, 1}, -1}, {norm, AccessKind::kWrite, {0, 1}, -1}};
    scale.accesses = {{norm, AccessKind::kRead, {0, 1}, -1},
                      {6, AccessKind::kRead, {0, 8}, -1},
                      {6, AccessKind::kWrite, {0, 8}, -1},
                      {norm, AccessKind::kFree, {0, 1}, -1}};
    script.events.insert(script.events.end() - 1, {squares, sum, scale});
  }
  EXPECT_EQ(Judge(scripts).verdict, Verdict::kPass);
  // A rank that scales by a norm that nobody computed.
  std::vector<Access>& squares = scripts[1].events[16].accesses;
  squares.pop_back();
  scripts[1].events[17].accesses.pop_back();
  const CheckResult result = Judge(scripts);
  ASSERT_GE(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("read only after something was written"));
  EXPECT_EQ(result.violations[0].rank, 1);
}

}  // namespace
}  // namespace shardproof
