// A missing wait fails on slow networks and busy machines only; it must be found on any
// machine, from the step alone.
#include "invariants/checks/ordering.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/hand_made.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

std::vector<Script> FullShard(int32_t ranks = 2) {
  std::vector<Script> scripts;
  for (int32_t rank = 0; rank < ranks; ++rank) scripts.push_back(FullShardScript(rank, ranks, 0));
  return scripts;
}

CheckResult Judge(const StepObservation& observed, int32_t ranks = 2) {
  const RunDescription run = HandMadeRun(Mode::kFullShard, ranks);
  const std::unique_ptr<Check> check = MakeOrdering();
  check->Begin(run);
  check->Step(observed, nullptr);
  return check->Finish();
}

CheckResult Judge(const std::vector<Script>& scripts) {
  return Judge(ShowScripts(scripts, 0), static_cast<int32_t>(scripts.size()));
}

TEST(Ordering, AStepWithAllItsWaitsPasses) {
  for (const int32_t ranks : {1, 2, 4}) {
    const CheckResult result = Judge(FullShard(ranks));
    EXPECT_EQ(result.name, "ordering");
    EXPECT_EQ(result.verdict, Verdict::kPass)
        << (result.violations.empty() ? result.reason : result.violations[0].likely_cause);
  }
  EXPECT_EQ(Judge({ReplicatedScript(0, 2, 0), ReplicatedScript(1, 2, 0)}).verdict, Verdict::kPass);
}

TEST(Ordering, RanksShownAsOneGroupPass) {
  Script script = FullShardScript(0, 4, 0);
  script.ranks = {0, 1, 4};
  EXPECT_EQ(Judge(ShowScripts({script}, 0), 4).verdict, Verdict::kPass);
}

TEST(Ordering, ComputationThatDoesNotWaitForItsGatherIsNamed) {
  std::vector<Script> scripts = FullShard();
  scripts[1].events[4].waits.clear();
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  const Violation& violation = result.violations[0];
  EXPECT_EQ(violation.rank, 1);
  EXPECT_EQ(violation.step, 0);
  EXPECT_EQ(violation.event, 4);
  EXPECT_EQ(violation.unit, "layers.1");
  EXPECT_EQ(violation.likely_cause,
            "event 4 (forward of layers.1, compute) needs a wait on event 3 (all_gather of "
            "layers.1, communication)");
  EXPECT_THAT(violation.actual, HasSubstr("read of unsharded_parameter of layers.1 (buffer 3)"));
}

TEST(Ordering, AReductionThatDoesNotWaitForTheGradientIsNamed) {
  std::vector<Script> scripts = FullShard();
  scripts[0].events[14].waits.clear();
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  bool found = false;
  for (const Violation& violation : result.violations) {
    found |= violation.rank == 0 && violation.event == 14 && violation.unit == "layers.0" &&
             violation.likely_cause ==
                 "event 14 (reduce_scatter of layers.0, communication) needs a wait on event 12 "
                 "(backward of layers.0, compute)";
  }
  EXPECT_TRUE(found);
}

TEST(Ordering, MemoryIsReusedOnlyAfterAWaitOnItsRelease) {
  std::vector<Script> scripts = FullShard();
  // The gather of layers.1 may take the memory of layers.0 while layers.0 still computes.
  scripts[0].events[3].waits = {};
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("every release issued before it"));
  EXPECT_EQ(result.violations[0].event, 3);
  EXPECT_EQ(result.violations[0].unit, "layers.1");
  EXPECT_THAT(result.violations[0].likely_cause,
              HasSubstr("needs a wait on event 2 (reshard of layers.0, compute)"));
}

TEST(Ordering, HostMemoryIsNotReusedOnTheDevice) {
  std::vector<Script> scripts = FullShard();
  for (Script& script : scripts) {
    script.buffers[2].tier = MemoryTier::kHost;
    script.events[3].waits = {};
  }
  EXPECT_EQ(Judge(scripts).verdict, Verdict::kPass);
}

TEST(Ordering, AWaitOnALaterEventOfTheStreamIsAWaitOnTheEarlierOnes) {
  std::vector<Script> scripts = FullShard();
  for (Script& script : scripts) script.events[12].waits = {11};
  for (Script& script : scripts) script.events[16].waits = {15};  // covers 9, 10, 11 and 14
  EXPECT_EQ(Judge(scripts).verdict, Verdict::kPass);
}

TEST(Ordering, AccessesOfDifferentRangesDoNotConflict) {
  Script script = ReplicatedScript(0, 1, 0);
  script.events[0].accesses = {{0, AccessKind::kRead, {0, 4}, -1}};
  script.events[2].event.stream = StreamId::kCommunication;
  script.events[2].accesses = {{0, AccessKind::kWrite, {4, 4}, -1}};
  script.events[2].waits = {};
  script.events[1].accesses = {{1, AccessKind::kAllocate, {0, 8}, -1},
                               {1, AccessKind::kWrite, {0, 8}, -1}};
  script.events[3].accesses = {};
  script.events[3].waits = {};
  EXPECT_EQ(Judge({script}).verdict, Verdict::kPass);
  script.events[2].accesses[0].range = {3, 4};
  const CheckResult result = Judge({script});
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].unit, "bucket 0");
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("needs a wait on event 0 (forward"));
}

TEST(Ordering, TwoReadersNeedNoOrder) {
  Script script = ReplicatedScript(0, 1, 0);
  script.events[2].accesses = {{0, AccessKind::kRead, {0, 8}, -1}};
  script.events[2].waits = {};
  script.events[3].accesses = {};
  script.events[3].waits = {};
  EXPECT_EQ(Judge({script}).verdict, Verdict::kPass);
}

TEST(Ordering, ACollectiveOrdersWhatOtherRanksDidBeforeIt) {
  // Rank 0 writes on its compute stream and then starts a collective there; rank 1 takes part
  // and starts a second collective, in which rank 0 takes part on its other stream without a
  // wait of its own. The first end of that second one is after rank 0's write.
  Script zero = ReplicatedScript(0, 2, 0);
  Script one = ReplicatedScript(1, 2, 0);
  const ScriptedEvent collective = zero.events[2];
  ScriptedEvent on_compute = collective;
  on_compute.event.elements = 0;  // so that it need not use a buffer
  on_compute.event.stream = StreamId::kCompute;
  on_compute.accesses = {};
  on_compute.waits = {};
  ScriptedEvent second = collective;
  second.event.elements = 0;
  second.accesses = {};
  second.waits = {};
  ScriptedEvent reader;
  reader.event.kind = EventKind::kLocal;
  reader.event.stream = StreamId::kCommunication;
  reader.accesses = {{0, AccessKind::kWrite, {0, 8}, -1}};
  ScriptedEvent writer = reader;
  writer.event.stream = StreamId::kCompute;
  zero.events = {writer, on_compute, second, reader};
  // Rank 1 has both on one stream, so that its second starts after its first.
  one.events = {on_compute, on_compute, writer};
  EXPECT_EQ(Judge({zero, one}).verdict, Verdict::kPass);
  // With streams of its own, rank 1 orders nothing.
  one.events[1].event.stream = StreamId::kCommunication;
  const CheckResult result = Judge({zero, one});
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 0);
  EXPECT_EQ(result.violations[0].event, 3);
}

TEST(Ordering, AWaitOnTheFutureIsNamed) {
  std::vector<Script> scripts = FullShard();
  scripts[0].events[4].waits.push_back(4);
  scripts[0].events[7].waits.push_back(-1);
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("a wait names an earlier event"));
  EXPECT_EQ(result.violations[0].event, 4);
  EXPECT_THAT(result.violations[1].actual, HasSubstr("event -1 in event 7"));
}

TEST(Ordering, CollectivesInDifferentOrdersAreOneViolation) {
  std::vector<Script> scripts = FullShard();
  std::swap(scripts[1].events[0].event, scripts[1].events[3].event);
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].event, 0);
  EXPECT_THAT(result.violations[0].rule, HasSubstr("same order"));
  EXPECT_THAT(result.violations[0].actual,
              HasSubstr("rank 1 issues event 0 (all_gather of layers.1"));
  EXPECT_THAT(result.violations[0].expected,
              HasSubstr("rank 0 issues event 0 (all_gather of layers.0"));
}

TEST(Ordering, ACollectiveThatOneRankNeverIssuesIsNamed) {
  std::vector<Script> scripts = FullShard(3);
  scripts[2].Drop(14);
  const CheckResult result = Judge(scripts);
  ASSERT_GE(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 0);
  EXPECT_EQ(result.violations[0].event, 14);
  EXPECT_EQ(result.violations[0].expected, "rank 2 issues no such collective");
}

TEST(Ordering, CollectivesThatWaitForEachOtherInACircleDoNotHang) {
  // Two groups on one stream of each rank, in opposite orders.
  Script zero = ReplicatedScript(0, 2, 0);
  Script one = ReplicatedScript(1, 2, 0);
  ScriptedEvent a = zero.events[2];
  a.accesses = {{0, AccessKind::kRead, {0, 8}, -1}};
  a.waits = {};
  ScriptedEvent b = a;
  b.event.group = {0, 1, 3};  // the same members, another group
  zero.events = {a, b};
  one.events = {b, a};
  const CheckResult result = Judge({zero, one});
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("wait for each other"));
}

TEST(Ordering, WithoutEventsOrAccessesNothingIsObserved) {
  EXPECT_EQ(Judge(StepObservation{}).verdict, Verdict::kNotObserved);
  std::vector<Script> scripts = FullShard();
  for (Script& script : scripts) {
    for (ScriptedEvent& event : script.events) event.accesses.clear();
  }
  const CheckResult result = Judge(scripts);
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_THAT(result.reason, HasSubstr("which buffers"));
  EXPECT_EQ(Judge(ShowScripts({FullShardScript(0, 2, 0)}, 0)).verdict, Verdict::kNotObserved);
}

TEST(Ordering, AnEventThatUsesNothingLeavesItsOrderUnobserved) {
  std::vector<Script> scripts = FullShard();
  for (const int32_t event : {1, 9, 12}) {
    std::vector<Script> edited = scripts;
    std::erase_if(edited[1].events[event].accesses, [](const Access& access) {
      return access.kind == AccessKind::kRead || access.kind == AccessKind::kWrite;
    });
    const CheckResult result = Judge(edited);
    EXPECT_EQ(result.verdict, Verdict::kNotObserved);
    EXPECT_THAT(result.reason, HasSubstr("of rank 1 uses was not shown"));
  }
  for (Script& script : scripts) {
    script.events[16].accesses.clear();  // an update on a rank that owns nothing
    ScriptedEvent barrier = script.events[14];
    barrier.event.collective = CollectiveKind::kBarrier;
    barrier.accesses.clear();
    ScriptedEvent empty = script.events[14];
    empty.event.elements = 0;
    empty.accesses.clear();
    ScriptedEvent without_stages;
    without_stages.event.kind = EventKind::kCompute;
    script.events.insert(script.events.end(), {barrier, empty, without_stages});
  }
  EXPECT_EQ(Judge(scripts).verdict, Verdict::kPass);
}

// FullShardScript of one step that clips: events 16 to 19 are the squares of the rank's shards,
// their sum over the ranks, the coefficient, and the scaling of both shards; 20 is the update.
Script ClippedScript(int32_t rank, int32_t ranks) {
  Script script = FullShardScript(rank, ranks, 0);
  const int32_t norm = static_cast<int32_t>(script.buffers.size());
  const int32_t coefficient = norm + 1;
  script.buffers.push_back(
      {BufferRole::kWorkspace, Dtype::kFloat64, MemoryTier::kDevice, 1, -1, -1});
  script.buffers.push_back(
      {BufferRole::kWorkspace, Dtype::kFloat32, MemoryTier::kDevice, 1, -1, -1});
  const auto use = [](AccessKind kind, int32_t buffer) {
    return Access{buffer, kind, {0, buffer < 9 ? 8 : 1}, -1};
  };
  const AccessKind read = AccessKind::kRead, write = AccessKind::kWrite;
  ScriptedEvent squares, sum, divide, scale;
  sum.event.kind = EventKind::kCollective;
  sum.event.stream = StreamId::kCommunication;
  sum.event.collective = CollectiveKind::kAllReduce;
  sum.event.purpose = Purpose::kClipNorm;
  sum.event.dtype = Dtype::kFloat64;
  sum.event.group = {0, 1, ranks};
  sum.event.elements = 1;
  squares.accesses = {use(AccessKind::kAllocate, norm), use(read, 6), use(read, 7),
                      use(write, norm)};
  squares.waits = {15};
  sum.accesses = {use(read, norm), use(write, norm)};
  sum.waits = {16};
  divide.accesses = {use(AccessKind::kAllocate, coefficient), use(read, norm),
                     use(write, coefficient)};
  divide.waits = {17};
  scale.accesses = {use(read, coefficient),
                    use(read, 6),
                    use(write, 6),
                    use(read, 7),
                    use(write, 7),
                    use(AccessKind::kFree, norm),
                    use(AccessKind::kFree, coefficient)};
  for (ScriptedEvent* event : {&squares, &sum, &divide, &scale}) {
    event->event.phase = Phase::kOptimizer;
  }
  script.events.insert(script.events.end() - 1, {squares, sum, divide, scale});
  return script;
}

TEST(Ordering, ClippingThatWaitsForItsNormPasses) {
  const CheckResult result = Judge({ClippedScript(0, 2), ClippedScript(1, 2)});
  EXPECT_EQ(result.verdict, Verdict::kPass)
      << (result.violations.empty() ? result.reason : result.violations[0].likely_cause);
}

TEST(Ordering, ACoefficientThatDoesNotWaitForTheNormsSumIsNamed) {
  std::vector<Script> scripts = {ClippedScript(0, 2), ClippedScript(1, 2)};
  scripts[1].events[18].waits.clear();
  const CheckResult result = Judge(scripts);
  ASSERT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].event, 18);
  EXPECT_THAT(result.violations[0].likely_cause, HasSubstr("needs a wait on event 17"));
}

TEST(Ordering, LocalArithmeticOfClippingMustSayWhatItUses) {
  std::vector<Script> scripts = {ClippedScript(0, 2), ClippedScript(1, 2)};
  scripts[0].events[18].accesses.clear();
  const CheckResult result = Judge(scripts);
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_THAT(result.reason, HasSubstr("event 18"));
}

TEST(Ordering, ComputationOfTensorsWithoutElementsUsesNothing) {
  RunDescription run = HandMadeRun(Mode::kFullShard, 2);
  run.model.kind = ModelKind::kProbe;
  run.model.tensors.push_back({"empty", {0}, 1, true, {}});
  run.model.stages.push_back({"layers.2", {4}});
  run.model.units.push_back({"layers.2", {2}, true});
  std::vector<Script> scripts = FullShard();
  for (Script& script : scripts) {
    ScriptedEvent compute;
    compute.event.kind = EventKind::kCompute;
    compute.event.stage = compute.event.unit = 2;
    compute.event.stage_count = 1;
    script.events.push_back(compute);
  }
  const auto judge = [&] {
    const std::unique_ptr<Check> check = MakeOrdering();
    check->Begin(run);
    check->Step(ShowScripts(scripts, 0), nullptr);
    return check->Finish().verdict;
  };
  EXPECT_EQ(judge(), Verdict::kPass);
  run.model.tensors[4].shape = {1};
  EXPECT_EQ(judge(), Verdict::kNotObserved);
}

}  // namespace
}  // namespace shardproof
