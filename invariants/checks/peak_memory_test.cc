// Bytes that live too long, too early, twice or beyond the step must be named with the event,
// the unit and the role. The step is written by hand, buffer by buffer.
#include "invariants/checks/peak_memory.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "invariants/checks/hand_made.h"
#include "invariants/closed_forms/example_runs.h"

namespace shardproof {
namespace {

// Three units of 8 elements on 2 ranks: a unit is 32 bytes, its shard 16.
RunDescription SmallRun() { return VectorRun({8, 8, 8}, Sharding(Mode::kFullShard, 2)); }

// Buffers by unit, then the two that all share.
constexpr int32_t kShard = 0, kFull = 3, kUnreduced = 6, kReduced = 9, kMoments = 12, kScalars = 13;

ScriptedEvent Do(EventKind kind, Phase phase, int32_t unit, const std::vector<int32_t>& allocates,
                 const std::vector<int32_t>& frees) {
  ScriptedEvent scripted;
  scripted.event.kind = kind;
  scripted.event.phase = phase;
  scripted.event.unit = unit;
  scripted.event.micro_batch = phase == Phase::kOptimizer ? -1 : 0;
  if (kind == EventKind::kCompute) {
    scripted.event.stage = unit;
    scripted.event.stage_count = 1;
  }
  for (const int32_t buffer : allocates) {
    scripted.accesses.push_back({buffer, AccessKind::kAllocate, {}, -1});
  }
  for (const int32_t buffer : frees) {
    scripted.accesses.push_back({buffer, AccessKind::kFree, {}, -1});
  }
  return scripted;
}

ScriptedEvent Gather(Phase phase, int32_t unit) {
  ScriptedEvent scripted = Do(EventKind::kCollective, phase, unit, {kFull + unit}, {});
  scripted.event.collective = CollectiveKind::kAllGather;
  scripted.event.purpose = Purpose::kUnshardParameters;
  return scripted;
}

ScriptedEvent Scatter(int32_t unit) {
  ScriptedEvent scripted =
      Do(EventKind::kCollective, Phase::kBackward, unit, {kReduced + unit}, {});
  scripted.event.collective = CollectiveKind::kReduceScatter;
  scripted.event.purpose = Purpose::kReduceGradients;
  return scripted;
}

ScriptedEvent Forward(int32_t unit) {
  return Do(EventKind::kCompute, Phase::kForward, unit, {}, {});
}
ScriptedEvent Backward(int32_t unit) {
  return Do(EventKind::kCompute, Phase::kBackward, unit, {kUnreduced + unit}, {});
}
ScriptedEvent Reshard(Phase phase, int32_t unit) {
  return Do(EventKind::kReshard, phase, unit, {}, {kFull + unit});
}
ScriptedEvent Release(const std::vector<int32_t>& buffers) {
  return Do(EventKind::kRelease, Phase::kBackward, -1, {}, buffers);
}
ScriptedEvent Update(int32_t unit) {
  return Do(EventKind::kOptimizer, Phase::kOptimizer, unit, {}, {});
}

// One step of backward_pre. The numbers of the events are those of the comments; live bytes are
// parameters 48 + moments 96 + counters 12 = 156, plus what is written there.
Script CorrectScript(int32_t rank) {
  const Phase forward = Phase::kForward, backward = Phase::kBackward;
  Script script;
  script.ranks = Group{rank, 1, 1};
  const std::pair<BufferRole, int64_t> by_unit[] = {{BufferRole::kParameter, 4},
                                                    {BufferRole::kUnshardedParameter, 8},
                                                    {BufferRole::kUnreducedGradient, 8},
                                                    {BufferRole::kGradient, 4}};
  for (const auto& [role, elements] : by_unit) {
    for (int32_t unit = 0; unit < 3; ++unit) {
      script.buffers.push_back({role, Dtype::kFloat32, MemoryTier::kDevice, elements, unit, -1});
    }
  }
  script.buffers.push_back(
      {BufferRole::kOptimizerState, Dtype::kFloat32, MemoryTier::kDevice, 24, -1, -1});
  script.buffers.push_back({BufferRole::kScalar, Dtype::kFloat32, MemoryTier::kDevice, 3, -1, -1});
  script.live_before = {kShard, kShard + 1, kShard + 2, kMoments, kScalars};
  script.events = {
      Gather(forward, 0),                         //  0  32
      Forward(0),                                 //  1  32
      Gather(forward, 1),                         //  2  64
      Reshard(forward, 0),                        //  3
      Forward(1),                                 //  4  32
      Gather(forward, 2),                         //  5  64
      Reshard(forward, 1),                        //  6
      Forward(2),                                 //  7  32
      Reshard(forward, 2),                        //  8
      Gather(backward, 2),                        //  9  32
      Gather(backward, 1),                        // 10  64
      Backward(2),                                // 11  96
      Reshard(backward, 2),                       // 12
      Scatter(2),                                 // 13  32 + 32 + 16 = 80
      Gather(backward, 0),                        // 14  112
      Backward(1),                                // 15  144, the peak: 300
      Reshard(backward, 1),                       // 16
      Scatter(1),                                 // 17  32 + 64 + 32 = 128
      Release({kUnreduced + 2}),                  // 18
      Backward(0),                                // 19  128
      Reshard(backward, 0),                       // 20
      Scatter(0),                                 // 21  64 + 48 = 112
      Release({kUnreduced + 1, kUnreduced + 0}),  // 22
      Update(0),                                  // 23  48
      Update(1),                                  // 24  48
      Update(2),                                  // 25  48
  };
  return script;
}

// The step after it begins with the gradients of the one before.
Script CorrectLaterScript(int32_t rank) {
  Script script = CorrectScript(rank);
  for (int32_t unit = 0; unit < 3; ++unit) script.live_before.push_back(kReduced + unit);
  script.events.insert(script.events.begin(), Release({kReduced, kReduced + 1, kReduced + 2}));
  return script;
}

StepObservation Shown(const std::vector<Script>& scripts, int64_t step = 0) {
  StepObservation observed = ShowScripts(scripts, step);
  observed.states = {RankState{{0, 1, 2}, {48, 48, 96, 0, 12}, {}, {}}};
  return observed;
}

CheckResult Judge(const std::vector<StepObservation>& steps) {
  const RunDescription run = SmallRun();
  const std::unique_ptr<Check> check = MakePeakMemory();
  check->Begin(run);
  for (const StepObservation& step : steps) check->Step(step, nullptr);
  return check->Finish();
}

// Rank 1 does as the edited script says, rank 0 as it should.
template <typename Edit>
CheckResult JudgeEdited(Edit edit) {
  Script script = CorrectScript(1);
  edit(&script);
  return Judge({Shown({CorrectScript(0), script})});
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PeakMemory, TwoHandWrittenStepsPass) {
  const CheckResult result = Judge({Shown({CorrectScript(0), CorrectScript(1)}, 0),
                                    Shown({CorrectLaterScript(0), CorrectLaterScript(1)}, 1)});
  EXPECT_EQ(result.verdict, Verdict::kPass)
      << (result.violations.empty() ? result.reason : Describe(result, result.violations[0]));
}

TEST(PeakMemory, WithoutBuffersNothingIsObserved) {
  EXPECT_EQ(Judge({StepObservation()}).verdict, Verdict::kNotObserved);
  StepObservation observed = Shown({CorrectScript(0), CorrectScript(1)});
  for (RankEvents& events : observed.events) events.buffers.clear();
  EXPECT_EQ(Judge({observed}).reason, "step 0 showed no buffers of rank 0");
  EXPECT_EQ(Judge({Shown({CorrectScript(0)})}).reason, "step 0 showed no buffers of rank 1");
}

TEST(PeakMemory, AUnitThatIsReshardedLateIsNamedWhereItBegins) {
  const CheckResult result = JudgeEdited([](Script* script) {
    std::swap(script->events[12], script->events[13]);  // S2 before R2
  });
  ASSERT_EQ(result.violation_count, 1);  // below the peak, and gone at the next item
  const Violation& violation = result.violations[0];
  EXPECT_EQ(violation.rank, 1);
  EXPECT_EQ(violation.event, 12);
  EXPECT_EQ(violation.unit, "units.2");
  EXPECT_EQ(violation.rule,
            "live bytes at reduce-scatter of units.2 in backward are those of the mode");
  EXPECT_EQ(violation.expected, "236 bytes");
  EXPECT_EQ(violation.actual, "268 bytes, unsharded_parameter 64 instead of 32");
  EXPECT_TRUE(Has(violation.likely_cause, "resharded too late or gathered too early"));
}

TEST(PeakMemory, AGradientThatIsNeverReleasedIsFoundAtTheNextItemAndAtTheEnd) {
  const CheckResult result =
      JudgeEdited([](Script* script) { script->events[18].accesses.clear(); });
  ASSERT_EQ(result.verdict, Verdict::kFail);
  ASSERT_EQ(result.violation_count, 5);
  EXPECT_EQ(result.violations[0].event, 19);
  EXPECT_EQ(result.violations[0].actual, "316 bytes, unreduced_gradient 96 instead of 64");
  // The difference lasts and is not reported again at events 21 to 25.
  EXPECT_EQ(result.violations[1].rule, "the peak of live bytes is that of the mode");
  EXPECT_EQ(result.violations[1].expected, "300 bytes");
  EXPECT_EQ(result.violations[1].actual, "316 bytes");
  EXPECT_EQ(result.violations[2].unit, "units.2");
  EXPECT_EQ(result.violations[2].actual,
            "unreduced_gradient of units.2 (buffer 8), 32 bytes, alive at its end");
  EXPECT_EQ(result.violations[3].rule, "what lives after a step is the steady state of the mode");
  EXPECT_EQ(result.violations[4].rule,
            "what lives after a step is what the rank's inventory "
            "states");
}

TEST(PeakMemory, AWholeReducedGradientIsCalledOne) {
  const CheckResult result =
      JudgeEdited([](Script* script) { script->buffers[kReduced + 2].elements = 8; });
  ASSERT_FALSE(result.violations.empty());
  EXPECT_EQ(result.violations[0].event, 13);
  EXPECT_EQ(result.violations[0].unit, "units.2");
  EXPECT_EQ(result.violations[0].actual, "252 bytes, gradient 32 instead of 16");
  EXPECT_TRUE(Has(result.violations[0].likely_cause, "whole where the mode keeps a shard"));
}

TEST(PeakMemory, WholeMomentsAreFoundAtTheFirstItem) {
  const CheckResult result =
      JudgeEdited([](Script* script) { script->buffers[kMoments].elements = 48; });
  ASSERT_FALSE(result.violations.empty());
  EXPECT_EQ(result.violations[0].event, 0);
  EXPECT_TRUE(Has(result.violations[0].actual, "optimizer_state 192 instead of 96"));
  EXPECT_TRUE(Has(result.violations[0].likely_cause, "moments are kept whole"));
}

TEST(PeakMemory, RolesThatMakeUpForEachOtherAreBothNamed) {
  const CheckResult result = JudgeEdited([](Script* script) {
    script->buffers[kShard].elements = 8;     // whole: 16 bytes too many
    script->buffers[kMoments].elements = 20;  // 16 too few
  });
  ASSERT_EQ(result.violation_count, 2);  // from the first item on, and at the end
  EXPECT_EQ(result.violations[0].event, 0);
  EXPECT_EQ(result.violations[0].expected, "188 bytes");
  EXPECT_EQ(result.violations[0].actual,
            "188 bytes, parameter 64 instead of 48, optimizer_state 80 instead of 96");
  EXPECT_TRUE(Has(result.violations[0].likely_cause, "parameters are kept whole"));
  EXPECT_EQ(result.violations[1].rule, "what lives after a step is the steady state of the mode");
}

TEST(PeakMemory, ABufferIsAllocatedOnce) {
  const CheckResult result = JudgeEdited([](Script* script) {
    script->events[7].accesses.push_back({kFull + 2, AccessKind::kAllocate, {}, -1});
  });
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rule, "a buffer is allocated only when it is not alive");
  EXPECT_EQ(result.violations[0].event, 7);
  EXPECT_EQ(result.violations[0].actual,
            "allocation of unsharded_parameter of units.2 (buffer 5), which is alive");
}

TEST(PeakMemory, ABufferIsFreedOnce) {
  const CheckResult result = JudgeEdited([](Script* script) {
    script->events[18].accesses.push_back({kUnreduced + 2, AccessKind::kFree, {}, -1});
  });
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rule, "a buffer is freed only when it is alive");
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].event, 18);
}

TEST(PeakMemory, BuffersThatAreNotListedAreNamedAndNotFollowed) {
  const CheckResult result = JudgeEdited([](Script* script) {
    script->events[0].accesses.push_back({99, AccessKind::kAllocate, {}, -1});
    script->events[0].accesses.push_back({-1, AccessKind::kFree, {}, -1});
    script->live_before.push_back(77);
  });
  EXPECT_EQ(result.violation_count, 3);
}

TEST(PeakMemory, APeakBetweenTheItemsIsFound) {
  const CheckResult result = JudgeEdited([](Script* script) {
    script->buffers.push_back(
        {BufferRole::kUnreducedGradient, Dtype::kFloat32, MemoryTier::kDevice, 100, 1, -1});
    script->events.insert(script->events.begin() + 16,
                          Do(EventKind::kLocal, Phase::kBackward, 1, {14}, {14}));
  });
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rule, "the peak of live bytes is that of the mode");
  EXPECT_EQ(result.violations[0].event, 16);
  EXPECT_EQ(result.violations[0].actual, "700 bytes");
}

TEST(PeakMemory, BytesThatAreNoModelStateDoNotCount) {
  const CheckResult result = JudgeEdited([](Script* script) {
    script->buffers.push_back(
        {BufferRole::kActivation, Dtype::kFloat32, MemoryTier::kDevice, 100, 1, -1});
    script->events[4].accesses.push_back({14, AccessKind::kAllocate, {}, -1});
  });
  EXPECT_EQ(result.verdict, Verdict::kPass);
}

TEST(PeakMemory, InAnotherOrderThePeakIsStillJudged) {
  const auto gather_up_front = [](Script* script) {
    std::rotate(script->events.begin() + 11, script->events.begin() + 14,
                script->events.begin() + 15);  // G2 G1 G0 c2 R2 S2 c1 ...
  };
  // Three units beside one gradient are 128 bytes: below the peak, and issue_order's affair.
  EXPECT_EQ(JudgeEdited(gather_up_front).verdict, Verdict::kPass);
  const CheckResult result = JudgeEdited([&](Script* script) {
    gather_up_front(script);
    std::rotate(script->events.begin() + 13, script->events.begin() + 14,
                script->events.begin() + 16);  // ... c2 S2 c1 R2: three units at c1
  });
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rule, "the peak of live bytes is that of the mode");
  EXPECT_EQ(result.violations[0].event, 14);
  EXPECT_EQ(result.violations[0].unit, "units.1");
  EXPECT_EQ(result.violations[0].actual, "332 bytes");
}

TEST(PeakMemory, NothingIsAllocatedOrFreedBetweenSteps) {
  Script later = CorrectLaterScript(1);
  later.live_before.pop_back();
  later.events[0].accesses.pop_back();
  const CheckResult result = Judge(
      {Shown({CorrectScript(0), CorrectScript(1)}, 0), Shown({CorrectLaterScript(0), later}, 1)});
  ASSERT_EQ(result.violation_count, 1);
  EXPECT_EQ(result.violations[0].rank, 1);
  EXPECT_EQ(result.violations[0].step, 1);
  EXPECT_EQ(result.violations[0].expected, "gradient of units.2 (buffer 11) alive");
}

TEST(PeakMemory, AnInventoryThatLeavesBuffersOutIsFound) {
  StepObservation observed = Shown({CorrectScript(0), CorrectScript(1)});
  observed.states[0].bytes.gradient = 0;
  const CheckResult result = Judge({observed});
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[1].rank, 1);
  EXPECT_EQ(result.violations[1].expected, "156 bytes, as stated");
  EXPECT_EQ(result.violations[1].actual, "204 bytes alive");
}

// As CorrectScript, where the last stage uses the first one's tensor too: unit 0 stays whole to
// the end of forward and through backward, and its gradient lives from the first backward on.
Script TiedScript(int32_t rank) {
  const Phase forward = Phase::kForward, backward = Phase::kBackward;
  Script script = CorrectScript(rank);
  ScriptedEvent last = Backward(2);
  last.accesses.push_back({kUnreduced, AccessKind::kAllocate, {}, -1});
  ScriptedEvent first = Backward(0);
  first.accesses.clear();
  script.events = {
      Gather(forward, 0),                         //  0  32
      Forward(0),                                 //  1  32
      Gather(forward, 1),                         //  2  64
      Forward(1),                                 //  3  64
      Gather(forward, 2),                         //  4  96
      Reshard(forward, 1),                        //  5
      Forward(2),                                 //  6  64
      Reshard(forward, 2),                        //  7
      Reshard(forward, 0),                        //  8
      Gather(backward, 2),                        //  9  32
      Gather(backward, 0),                        // 10  64
      Gather(backward, 1),                        // 11  96
      last,                                       // 12  96 + 64 = 160
      Reshard(backward, 2),                       // 13
      Scatter(2),                                 // 14  64 + 64 + 16 = 144
      Backward(1),                                // 15  64 + 96 + 16 = 176, the peak
      Reshard(backward, 1),                       // 16
      Scatter(1),                                 // 17  32 + 96 + 32 = 160
      Release({kUnreduced + 2}),                  // 18
      first,                                      // 19  32 + 64 + 32 = 128
      Reshard(backward, 0),                       // 20
      Scatter(0),                                 // 21  64 + 48 = 112
      Release({kUnreduced + 1, kUnreduced + 0}),  // 22
      Update(0),                                  // 23  48
      Update(1),                                  // 24  48
      Update(2),                                  // 25  48
  };
  return script;
}

CheckResult JudgeRun(const RunDescription& run, const std::vector<Script>& scripts) {
  const std::unique_ptr<Check> check = MakePeakMemory();
  check->Begin(run);
  check->Step(Shown(scripts), nullptr);
  return check->Finish();
}

TEST(PeakMemory, ATiedUnitAndItsGradientLiveFromTheFirstUseToTheLast) {
  RunDescription run = SmallRun();
  run.model.stages[2].tensors = {2, 0};
  const CheckResult right = JudgeRun(run, {TiedScript(0), TiedScript(1)});
  EXPECT_EQ(right.verdict, Verdict::kPass)
      << (right.violations.empty() ? right.reason : Describe(right, right.violations[0]));
  Script script = TiedScript(1);
  script.events[12] = Backward(2);  // what the tie adds is thrown away, or kept elsewhere
  script.events[19] = Backward(0);
  const CheckResult late = JudgeRun(run, {TiedScript(0), script});
  ASSERT_EQ(late.verdict, Verdict::kFail);
  EXPECT_EQ(late.violations[0].rank, 1);
  EXPECT_EQ(late.violations[0].event, 12);
  EXPECT_TRUE(Has(late.violations[0].actual, "unreduced_gradient 32 instead of 64"));
}

TEST(PeakMemory, NormAndCoefficientAreNoModelState) {
  RunDescription run = SmallRun();
  run.clip_grad_norm = 1;
  const auto clipped = [](int32_t rank, BufferRole role) {
    Script script = CorrectScript(rank);
    const int32_t norm = static_cast<int32_t>(script.buffers.size());
    script.buffers.push_back({role, Dtype::kFloat64, MemoryTier::kDevice, 1, -1, -1});
    ScriptedEvent sum = Do(EventKind::kCollective, Phase::kOptimizer, -1, {}, {});
    sum.event.collective = CollectiveKind::kAllReduce;
    sum.event.purpose = Purpose::kClipNorm;
    script.events.insert(script.events.end() - 3,
                         {Do(EventKind::kLocal, Phase::kOptimizer, -1, {norm}, {}), sum,
                          Do(EventKind::kLocal, Phase::kOptimizer, -1, {}, {norm})});
    return script;
  };
  const BufferRole workspace = BufferRole::kWorkspace;
  EXPECT_EQ(JudgeRun(run, {clipped(0, workspace), clipped(1, workspace)}).verdict, Verdict::kPass);
  const CheckResult state =
      JudgeRun(run, {clipped(0, workspace), clipped(1, BufferRole::kGradient)});
  ASSERT_EQ(state.violation_count, 1);  // at the norm's sum; gone at the first update
  EXPECT_EQ(state.violations[0].event, 24);
  EXPECT_EQ(state.violations[0].rule,
            "live bytes at all-reduce of the clip norm in optimizer are those of the mode");
  EXPECT_TRUE(Has(state.violations[0].actual, "gradient 56 instead of 48"));
}

}  // namespace
}  // namespace shardproof
