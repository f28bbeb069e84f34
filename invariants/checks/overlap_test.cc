// Waiting for everything is a cheap cure for a race, and nothing but this check minds.
#include "invariants/checks/overlap.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/hand_made.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

CheckResult Judge(const RunDescription& run, const StepObservation& observed) {
  const std::unique_ptr<Check> check = MakeOverlap();
  check->Begin(run);
  check->Step(observed, nullptr);
  return check->Finish();
}

// Two ranks, two buckets: backward of layers.1, its reduction, backward of layers.0, its own.
std::vector<Script> TwoBuckets() {
  std::vector<Script> scripts;
  for (int32_t rank = 0; rank < 2; ++rank) {
    Script script;
    script.ranks = {rank, 1, 1};
    for (int32_t bucket = 0; bucket < 2; ++bucket) {
      script.buffers.push_back(
          {.role = BufferRole::kGradient, .elements = 8, .unit = -1, .bucket = bucket});
      script.live_before.push_back(bucket);
      ScriptedEvent backward;
      backward.event.kind = EventKind::kCompute;
      backward.event.phase = Phase::kBackward;
      backward.event.micro_batch = 0;
      backward.event.unit = 1 - bucket;
      backward.event.stage = 1 - bucket;
      backward.event.stage_count = 1;
      backward.accesses = {{bucket, AccessKind::kWrite, {0, 8}}};
      script.events.push_back(backward);
      ScriptedEvent reduction;
      reduction.event.kind = EventKind::kCollective;
      reduction.event.phase = Phase::kBackward;
      reduction.event.stream = StreamId::kCommunication;
      reduction.event.collective = CollectiveKind::kAllReduce;
      reduction.event.purpose = Purpose::kReduceGradients;
      reduction.event.group = {0, 1, 2};
      reduction.event.elements = 8;
      reduction.event.micro_batch = 0;
      reduction.event.bucket = bucket;
      reduction.accesses = {{bucket, AccessKind::kRead, {0, 8}},
                            {bucket, AccessKind::kWrite, {0, 8}}};
      reduction.waits = {2 * bucket};
      script.events.push_back(reduction);
    }
    scripts.push_back(script);
  }
  return scripts;
}

TEST(Overlap, ComputationBesideAReductionPasses) {
  const RunDescription run = HandMadeRun(Mode::kReplicated, 2);
  const CheckResult result = Judge(run, ShowScripts(TwoBuckets(), 0));
  EXPECT_EQ(result.name, "overlap");
  EXPECT_EQ(result.verdict, Verdict::kPass);
}

TEST(Overlap, ComputationThatWaitsForTheReductionIsNamed) {
  std::vector<Script> scripts = TwoBuckets();
  scripts[1].events[2].waits = {1};
  const CheckResult result = Judge(HandMadeRun(Mode::kReplicated, 2), ShowScripts(scripts, 3));
  ASSERT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].step, 3);
  EXPECT_EQ(result.violations[0].event, 2);
  EXPECT_EQ(result.violations[0].unit, "layers.0");
  EXPECT_THAT(result.violations[0].actual, HasSubstr("backward of layers.0"));
}

TEST(Overlap, OneStreamForBothIsNoOverlap) {
  std::vector<Script> scripts = TwoBuckets();
  for (Script& script : scripts) {
    for (ScriptedEvent& event : script.events) event.event.stream = StreamId::kCompute;
  }
  EXPECT_EQ(Judge(HandMadeRun(Mode::kReplicated, 2), ShowScripts(scripts, 0)).violation_count, 2);
}

TEST(Overlap, ASharedBufferIsAReasonToWait) {
  std::vector<Script> scripts = TwoBuckets();
  for (Script& script : scripts) {
    script.events[2].waits = {1};
    script.events[2].accesses.push_back({0, AccessKind::kWrite, {0, 8}});
  }
  EXPECT_EQ(Judge(HandMadeRun(Mode::kReplicated, 2), ShowScripts(scripts, 0)).verdict,
            Verdict::kPass);
}

TEST(Overlap, TheNextMicroBatchMayWait) {
  std::vector<Script> scripts = TwoBuckets();
  for (Script& script : scripts) {
    script.events[2].event.micro_batch = 1;
    script.events[2].waits = {1};
  }
  EXPECT_EQ(Judge(HandMadeRun(Mode::kReplicated, 2), ShowScripts(scripts, 0)).verdict,
            Verdict::kPass);
}

TEST(Overlap, PrefetchNoneIsNotJudged) {
  RunDescription run = HandMadeRun(Mode::kFullShard, 2);
  run.sharding.prefetch = Prefetch::kNone;
  const CheckResult result =
      Judge(run, ShowScripts({FullShardScript(0, 2, 0), FullShardScript(1, 2, 0)}, 0));
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_THAT(result.reason, HasSubstr("prefetch none"));
}

TEST(Overlap, WithoutEventsOrRanksNothingWasObserved) {
  const RunDescription run = HandMadeRun(Mode::kReplicated, 2);
  EXPECT_EQ(Judge(run, StepObservation{}).verdict, Verdict::kNotObserved);
  EXPECT_EQ(Judge(run, ShowScripts({TwoBuckets()[0]}, 0)).verdict, Verdict::kNotObserved);
}

}  // namespace
}  // namespace shardproof
