// Edited plans: each fault is found by its name, and no edit hangs or crashes.
#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/engines/provenance_engine.h"
#include "trainer/engines/provenance_judge.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Edit = std::function<void(Rank rank, StepPlan& plan)>;

EngineParts Edited(const RunDescription& run, Edit edit) {
  EngineParts parts = PlannedParts(run);
  const PlanSource planned = parts.plan;
  parts.plan = [planned, edit](const RunDescription& of, const Placement& placement, Rank rank,
                               int64_t step) {
    StepPlan plan = planned(of, placement, rank, step);
    edit(rank, plan);
    return plan;
  };
  return parts;
}

// Does nothing, so that the other operations keep their numbers.
void Drop(Op& op) {
  op.kind = OpKind::kRelease;
  op.access_count = 0;
}

// Calls fn on the first operation that fits.
void OnFirst(StepPlan& plan, const std::function<bool(const Op&)>& fits,
             const std::function<void(Op&)>& fn) {
  for (Op& op : plan.ops) {
    if (!fits(op)) continue;
    fn(op);
    return;
  }
}

std::function<bool(const Op&)> IsKind(OpKind kind) {
  return [kind](const Op& op) { return op.kind == kind; };
}
std::function<bool(const Op&)> HasPurpose(Purpose purpose) {
  return
      [purpose](const Op& op) { return op.kind == OpKind::kCollective && op.purpose == purpose; };
}

// The text of what is found in the edited run; it must be found.
std::string Findings(const RunDescription& run, Edit edit) {
  const absl::StatusOr<CheckResult> result = Judge(run, Edited(run, std::move(edit)));
  if (!result.ok()) return result.status().ToString();
  EXPECT_EQ(result->verdict, Verdict::kFail);
  return Text(*result);
}

RunDescription EditedRun(Mode mode, int64_t micro_batches = 1) {
  RunDescription run = TestRun("probe:3x2,4,5,2x2,7", mode, 4);
  run.data.num_micro_batches = micro_batches;
  return run;
}

TEST(EditedPlans, ADroppedScaleIsCounted) {
  const std::string text = Findings(EditedRun(Mode::kZero2), [](Rank, StepPlan& plan) {
    OnFirst(plan, IsKind(OpKind::kScale), Drop);
  });
  EXPECT_THAT(text, HasSubstr("every contribution is scaled 0 times"));
  EXPECT_THAT(text, HasSubstr("(ratio 4)"));
  EXPECT_THAT(text, HasSubstr("the ratio is N"));
}

TEST(EditedPlans, ADoubledScaleIsCounted) {
  const std::string text = Findings(EditedRun(Mode::kFullShard), [](Rank, StepPlan& plan) {
    // The release after it gives way.
    for (auto scale = plan.ops.rbegin(); scale != plan.ops.rend(); ++scale) {
      if (scale->kind != OpKind::kScale) continue;
      *(scale - 1) = *scale;
      return;
    }
  });
  EXPECT_THAT(text, HasSubstr("every contribution is scaled twice (by 0.0625 in all)"));
  EXPECT_THAT(text, HasSubstr("the ratio is 1/N"));
}

TEST(EditedPlans, ADroppedReductionLacksTheOtherRanks) {
  const std::string text = Findings(EditedRun(Mode::kReplicated, 3), [](Rank, StepPlan& plan) {
    for (Op& op : plan.ops) {
      if (op.purpose == Purpose::kReduceGradients && op.bucket == 0) Drop(op);
    }
  });
  EXPECT_THAT(text, HasSubstr("rank 1 is missing; rank 2 is missing; rank 3 is missing"));
  EXPECT_THAT(text, HasSubstr("Likely cause: a reduction over the ranks that did not run"));
}

TEST(EditedPlans, ARepeatedReductionCountsEveryRankAgain) {
  const std::string text = Findings(EditedRun(Mode::kReplicated), [](Rank, StepPlan& plan) {
    for (size_t op = 0; op < plan.ops.size(); ++op) {
      if (plan.ops[op].purpose != Purpose::kReduceGradients) continue;
      // The scale after it gives way.
      plan.ops[op + 1] = plan.ops[op];
      return;
    }
  });
  EXPECT_THAT(text, HasSubstr("rank 0's micro-batch 0 is counted 4 times"));
}

TEST(EditedPlans, AReductionInHalfTheRanksLacksTheOthers) {
  const std::string text = Findings(EditedRun(Mode::kReplicated), [](Rank rank, StepPlan& plan) {
    OnFirst(plan, HasPurpose(Purpose::kReduceGradients), [&](Op& op) {
      op.group = {rank.value / 2 * 2, 1, 2};
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 2's micro-batch 0 is missing; rank 3's micro-batch 0 is "
                              "missing"));
}

TEST(EditedPlans, ADroppedAccumulationLosesAMicroBatch) {
  RunDescription run = EditedRun(Mode::kFullShard, 2);
  std::string text =
      Findings(run, [](Rank, StepPlan& plan) { OnFirst(plan, IsKind(OpKind::kAccumulate), Drop); });
  EXPECT_THAT(text, HasSubstr("rank 0's micro-batch 1 is missing"));
  run.sharding.grad_sync = GradSync::kLast;
  text = Findings(run, [](Rank rank, StepPlan& plan) {
    if (rank.value != 2) return;
    for (SetUse& use : plan.gradient_uses) use.accumulate = false;
  });
  EXPECT_THAT(text, HasSubstr("rank 2's micro-batch 0 is missing"));
  EXPECT_THAT(text, HasSubstr("Likely cause: a gradient that was overwritten"));
}

TEST(EditedPlans, ABroadcastFromAnotherRankIsStale) {
  const std::string text = Findings(EditedRun(Mode::kZero1Broadcast), [](Rank, StepPlan& plan) {
    OnFirst(plan, HasPurpose(Purpose::kBroadcastParameters),
            [](Op& op) { op.root = (op.root + 1) % 4; });
  });
  EXPECT_THAT(text, HasSubstr("Expected version 1, found version 0"));
}

TEST(EditedPlans, AnUpdateAtAnotherOffsetNamesBothElements) {
  const std::string text = Findings(EditedRun(Mode::kReplicated), [](Rank, StepPlan& plan) {
    for (UpdateRange& update : plan.updates) {
      if (update.tensor != 1) continue;
      update.gradient.range.first += 1;
      return;
    }
  });
  EXPECT_THAT(text, HasSubstr("tensor t1, element 0"));
  EXPECT_THAT(text, HasSubstr("element 1 of t1 lies where element 0 of t1 belongs"));
}

TEST(EditedPlans, AGatherOfAnotherShardNamesBothElements) {
  RunDescription run = EditedRun(Mode::kZero1AllGather);
  const std::string text = Findings(run, [](Rank rank, StepPlan& plan) {
    OnFirst(plan, HasPurpose(Purpose::kGatherParameters), [&](Op& op) {
      if (rank.value == 1) op.send.range.first = 0;
    });
  });
  EXPECT_THAT(text, HasSubstr("lies where"));
  EXPECT_THAT(text, HasSubstr("an offset or a shard that is not this buffer's"));
}

TEST(EditedPlans, AMissingGatherIsStale) {
  const std::string text = Findings(EditedRun(Mode::kZero2), [](Rank, StepPlan& plan) {
    OnFirst(plan, HasPurpose(Purpose::kGatherParameters), Drop);
  });
  EXPECT_THAT(text, HasSubstr("Expected version 1, found version 0"));
  EXPECT_THAT(text, HasSubstr("a gather, broadcast or copy after it that did not run"));
}

TEST(EditedPlans, AnEarlyFreeIsRead) {
  const std::string text = Findings(EditedRun(Mode::kFullShard), [](Rank, StepPlan& plan) {
    // What the first reshard frees goes with the unit's forward.
    OnFirst(plan, IsKind(OpKind::kForward), [&](Op& forward) {
      OnFirst(plan, IsKind(OpKind::kReshard), [&](Op& reshard) {
        PlanAccess free = plan.AccessesOf(reshard)[0];
        Op early = reshard;
        early.first_access = static_cast<int32_t>(plan.accesses.size());
        early.wait_count = 0;
        plan.accesses.push_back(free);
        reshard = forward;
        forward = early;
      });
    });
  });
  EXPECT_THAT(text, HasSubstr("freed memory of"));
}

TEST(EditedPlans, PaddingThatIsAddedIsNamed) {
  RunDescription run = TestRun("probe:3,2", Mode::kZero2, 2);
  const std::string text = Findings(run, [](Rank, StepPlan& plan) {
    for (Op& op : plan.ops) {
      if (op.kind != OpKind::kAccumulate && op.kind != OpKind::kScale) continue;
      // Adds the shard to itself, one element on, where rank 1 has padding.
      op.kind = OpKind::kAccumulate;
      op.send = op.recv;
      op.send.range.first += 1;
      op.send.range.count -= 1;
      op.recv.range.count -= 1;
      return;
    }
  });
  EXPECT_THAT(text, HasSubstr("padding of bucket 0"));
  EXPECT_THAT(text, HasSubstr("padding was added"));
}

TEST(EditedPlans, AClipOfLocalNormsIsNamed) {
  RunDescription run = EditedRun(Mode::kFullShard);
  run.clip_grad_norm = 1;
  std::string text = Findings(
      run, [](Rank, StepPlan& plan) { OnFirst(plan, HasPurpose(Purpose::kClipNorm), Drop); });
  EXPECT_THAT(text, HasSubstr("a norm without element"));
  text = Findings(run, [](Rank, StepPlan& plan) { OnFirst(plan, IsKind(OpKind::kScaleBy), Drop); });
  EXPECT_THAT(text, HasSubstr("every contribution is clipped 0 times"));
  text = Findings(
      run, [](Rank, StepPlan& plan) { OnFirst(plan, IsKind(OpKind::kClipCoefficient), Drop); });
  EXPECT_THAT(text, HasSubstr("times freed memory"));
}

TEST(EditedPlans, CountersAndGroupsOfOtherTensorsAreNamed) {
  RunDescription run = EditedRun(Mode::kReplicated);
  run.optimizer.groups = {{.tensors = {2}, .learning_rate = 1}};
  const std::string text = Findings(run, [](Rank, StepPlan& plan) {
    for (UpdateRange& update : plan.updates) {
      if (update.tensor == 2) update.hyper_parameters_of = 0;
      if (update.tensor == 3) update.advance = 2;
    }
  });
  EXPECT_THAT(text, HasSubstr("Expected the hyper-parameters of t2, found those of t0"));
  EXPECT_THAT(text, HasSubstr("Expected step count 1, found step count 2"));
}

TEST(EditedPlans, GradientsOfAnEarlierStepAreNamed) {
  const std::string text = Findings(EditedRun(Mode::kReplicated), [](Rank, StepPlan& plan) {
    const int32_t gradient = plan.homes[0].gradient;
    const std::vector<int32_t>& live = plan.live_before;
    if (std::find(live.begin(), live.end(), gradient) == live.end()) return;
    // From step 1 on, nobody clears the gradients, and backward adds to them.
    for (PlanAccess& access : plan.accesses) {
      if (access.buffer == gradient) access.kind = AccessKind::kRead;
    }
    for (SetUse& use : plan.gradient_uses) use.accumulate = true;
  });
  EXPECT_THAT(text, HasSubstr("rank 0's micro-batch 0 of step 0 is counted"));
  EXPECT_THAT(text, HasSubstr("a gradient of an earlier step"));
  EXPECT_THAT(text, Not(HasSubstr("step 0, unit")));
}

// --- edits of placements, from which the plans are made ---

TEST(EditedPlacements, ElementsThatShareAPlaceAreNamed) {
  const RunDescription run = EditedRun(Mode::kFullShard);
  EngineParts parts = PlannedParts(run);
  // What rank 1 holds is said to begin one element before, which rank 0 has too.
  for (Segment& segment : parts.placement.sets[0].layout.segments) {
    if (segment.rank == 1) segment.first -= 1;
  }
  const absl::StatusOr<CheckResult> result = Judge(run, std::move(parts));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict, Verdict::kFail);
  EXPECT_THAT(Text(*result), HasSubstr("tensor t0"));
}

TEST(EditedPlacements, PlacesOutsideTensorsAndBuffersAreErrors) {
  const RunDescription run = EditedRun(Mode::kFullShard);
  for (int what = 0; what < 3; ++what) {
    EngineParts parts = PlannedParts(run);
    Segment& segment = parts.placement.sets[0].layout.segments[0];
    if (what == 0) segment.shard_offset = 100;
    if (what == 1) segment.first = 5;
    if (what == 2) segment.tensor = 99;
    const absl::StatusOr<CheckResult> result = Judge(run, std::move(parts));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("set 0 places elements"));
  }
}

// --- collectives that do not meet, and waits that never end ---

std::string ErrorOf(const RunDescription& run, Edit edit) {
  const absl::StatusOr<CheckResult> result = Judge(run, Edited(run, std::move(edit)));
  return result.ok() ? Text(*result) : result.status().ToString();
}

TEST(EditedPlans, CollectivesThatDisagreeNameTheRanks) {
  const RunDescription run = EditedRun(Mode::kReplicated);
  std::string text = ErrorOf(run, [](Rank rank, StepPlan& plan) {
    if (rank.value != 2) return;
    OnFirst(plan, HasPurpose(Purpose::kReduceGradients),
            [](Op& op) { op.collective = CollectiveKind::kBroadcast, op.root = 0; });
  });
  EXPECT_THAT(text, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_THAT(text, HasSubstr("rank 0 calls all_reduce"));
  EXPECT_THAT(text, HasSubstr("rank 2 broadcast"));
  text = ErrorOf(run, [](Rank rank, StepPlan& plan) {
    OnFirst(plan, HasPurpose(Purpose::kReduceGradients), [&](Op& op) {
      if (rank.value == 1) op.group = {0, 1, 2};
    });
  });
  EXPECT_THAT(text, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_THAT(text, HasSubstr("over ranks 0, 1 ("));
}

TEST(EditedPlans, RanksThatNeverMeetAreNamed) {
  const RunDescription run = EditedRun(Mode::kReplicated);
  std::string text = ErrorOf(run, [](Rank rank, StepPlan& plan) {
    if (rank.value == 3) OnFirst(plan, HasPurpose(Purpose::kReduceGradients), Drop);
  });
  EXPECT_THAT(text, HasSubstr("DEADLINE_EXCEEDED: deadlock in step 0"));
  EXPECT_THAT(text, HasSubstr("rank 3 has ended its step"));
  text = ErrorOf(run, [](Rank, StepPlan& plan) {
    plan.ops[1].first_wait = static_cast<int32_t>(plan.waits.size());
    plan.ops[1].wait_count = 1;
    plan.waits.push_back(2);
  });
  EXPECT_THAT(text, HasSubstr("rank 0 at operation 1 waits for operation 2"));
}

TEST(EditedPlans, RangesOutsideTheirBuffersAreErrors) {
  const std::string text = ErrorOf(EditedRun(Mode::kReplicated), [](Rank, StepPlan& plan) {
    OnFirst(plan, IsKind(OpKind::kScale), [](Op& op) { op.recv.range.first = 1; });
  });
  EXPECT_THAT(text, HasSubstr("INVALID_ARGUMENT"));
}

// Every operation of every plan dropped, doubled, swapped with the next, dropped on one rank, and
// moved to another group: an answer each time.
TEST(EditedPlans, NoEditHangsOrCrashes) {
  RunDescription run = EditedRun(Mode::kReplicated, 2);
  run.data.steps = 2;
  for (const RunDescription& mode : InEveryMode(run)) {
    const EngineParts parts = PlannedParts(mode);
    const size_t ops = parts.plan(mode, parts.placement, Rank{0}, 1).ops.size();
    for (size_t at = 0; at + 1 < ops; ++at) {
      for (int what = 0; what < 5; ++what) {
        const absl::StatusOr<CheckResult> result =
            Judge(mode, Edited(mode, [&](Rank rank, StepPlan& plan) {
                    if (at + 1 >= plan.ops.size()) return;
                    if (what == 0) plan.ops.erase(plan.ops.begin() + at);
                    if (what == 1) plan.ops.insert(plan.ops.begin() + at, plan.ops[at]);
                    if (what == 2) std::swap(plan.ops[at], plan.ops[at + 1]);
                    if (what == 3 && rank.value == 1) Drop(plan.ops[at]);
                    if (what == 4) plan.ops[at].group = {rank.value % 2, 2, 2};
                  }));
        EXPECT_NE(result.status().code(), absl::StatusCode::kInternal) << result.status();
      }
    }
  }
}

// Changes one field of something in the plan to a small, a large or a plausible number.
void Scramble(std::mt19937& random, StepPlan& plan) {
  const auto number = [&]() -> int32_t {
    switch (random() % 6) {
      case 0:
        return -1 - static_cast<int32_t>(random() % 3);
      case 1:
        return 1 << 30;
      default:
        return static_cast<int32_t>(random() % 9);
    }
  };
  const auto range = [&](BufferRange& of) {
    if (random() % 3 == 0) of.buffer = number();
    if (random() % 3 == 0) of.range.first = number();
    if (random() % 3 == 0) of.range.count = number();
  };
  Op& op = plan.ops[random() % plan.ops.size()];
  int32_t* const fields[] = {&op.root,
                             &op.micro_batch,
                             &op.set,
                             &op.stage,
                             &op.stage_count,
                             &op.first_wait,
                             &op.wait_count,
                             &op.first_access,
                             &op.access_count,
                             &op.first_update,
                             &op.update_count,
                             &op.first_parameter_use,
                             &op.parameter_use_count,
                             &op.first_gradient_use,
                             &op.gradient_use_count,
                             &op.group.first,
                             &op.group.stride,
                             &op.group.count};
  switch (random() % 10) {
    case 0:
      op.kind = static_cast<OpKind>(random() % 13);
      break;
    case 1:
      op.collective = static_cast<CollectiveKind>(random() % 5);
      break;
    case 2:
      op.elements = number();
      break;
    case 3:
      range(op.send);
      break;
    case 4:
      range(op.recv);
      break;
    case 5:
      if (!plan.waits.empty()) plan.waits[random() % plan.waits.size()] = number();
      break;
    case 6: {
      PlanAccess& access = plan.accesses[random() % plan.accesses.size()];
      access.buffer = number();
      access.kind = static_cast<AccessKind>(random() % 4);
      break;
    }
    case 7: {
      UpdateRange& update = plan.updates[random() % plan.updates.size()];
      range(random() % 2 == 0 ? update.parameter : update.gradient);
      if (random() % 2 == 0) update.counter_of = number();
      break;
    }
    case 8: {
      std::vector<SetUse>& uses = random() % 2 == 0 ? plan.parameter_uses : plan.gradient_uses;
      if (!uses.empty()) uses[random() % uses.size()] = {number(), number(), random() % 2 == 0};
      break;
    }
    default:
      *fields[random() % 18] = number();
  }
}

TEST(EditedPlans, NoScrambledFieldHangsOrCrashes) {
  RunDescription run = EditedRun(Mode::kReplicated, 2);
  run.data.steps = 2;
  run.clip_grad_norm = 1;
  std::mt19937 random(1);
  for (const RunDescription& mode : InEveryMode(run)) {
    for (int trial = 0; trial < 100; ++trial) {
      const uint32_t seed = static_cast<uint32_t>(random());
      const uint32_t ranks = static_cast<uint32_t>(random() % 5);
      const absl::StatusOr<CheckResult> result =
          Judge(mode, Edited(mode, [&](Rank rank, StepPlan& plan) {
                  // Of one rank, or alike on all.
                  if (ranks < 4 && rank.value != static_cast<int32_t>(ranks)) return;
                  std::mt19937 edits(seed);
                  for (uint32_t i = 0; i <= seed % 3; ++i) Scramble(edits, plan);
                }));
      EXPECT_NE(result.status().code(), absl::StatusCode::kInternal) << result.status();
    }
  }
}

}  // namespace
}  // namespace shardproof
