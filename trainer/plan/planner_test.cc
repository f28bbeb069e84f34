// A plan is the definition of a mode. The issue orders are written as DESIGN writes them and
// the waits as what must, and must not, come after what; rules that hold in every mode are
// checked over models that are awkward on purpose.
#include "trainer/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StepPlan PlanOf(const RunDescription& run, int32_t rank = 0, int64_t step = 0) {
  EXPECT_TRUE(Validate(run).ok()) << Validate(run);
  EXPECT_TRUE(CanPlan(run).ok()) << CanPlan(run);
  return PlanStep(run, MakePlacement(run), Rank{rank}, step);
}

// `units` bias-free layers of 4 x 4.
RunDescription Layers(int32_t units, Mode mode, Prefetch prefetch = Prefetch::kNotApplicable) {
  RunDescription run = TestRun(absl::StrCat("mlp:", units, "x4"), mode, 2);
  run.sharding.prefetch = prefetch;
  return run;
}

// Units and tensors count from 1 as in DESIGN, buckets from 0.
//   G unit gathered   c unit computed   R unit resharded   S unit or bucket reduce-scattered
//   A bucket all-reduced   U update   P bucket's parameters gathered   B tensor or owner
//   broadcast   + sum into what was reduced before   * scale   f release
std::string Token(const Op& op) {
  const auto of_set = [&](absl::string_view letter) {
    return op.unit >= 0 ? absl::StrCat(letter, op.unit + 1) : absl::StrCat(letter, op.bucket);
  };
  switch (op.kind) {
    case OpKind::kCollective:
      switch (op.purpose) {
        case Purpose::kUnshardParameters:
          return of_set("G");
        case Purpose::kReduceGradients:
          return of_set(op.collective == CollectiveKind::kAllReduce ? "A" : "S");
        case Purpose::kGatherParameters:
          return of_set("P");
        case Purpose::kBroadcastParameters:
          return op.tensor >= 0 ? absl::StrCat("B", op.tensor + 1) : absl::StrCat("B@", op.root);
        case Purpose::kClipNorm:
          return "A_norm";
        default:
          return "?";
      }
    case OpKind::kForward:
    case OpKind::kBackward:
      return of_set("c");
    case OpKind::kReshard:
      return of_set("R");
    case OpKind::kRelease:
      return "f";
    case OpKind::kScale:
      return of_set("*");
    case OpKind::kScaleBy:
      return of_set("clip");
    case OpKind::kNorm:
      return "norm";
    case OpKind::kClipCoefficient:
      return "coefficient";
    case OpKind::kCopy:
      return of_set("W");
    case OpKind::kLoss:
      return "loss";
    case OpKind::kAccumulate:
      return of_set("+");
    case OpKind::kOptimizerUpdate:
      return op.unit >= 0 || op.bucket >= 0 ? of_set("U") : "U";
  }
  return "?";
}

// What the plan issues in a phase (of one micro-batch, if given) of the kinds in `letters`.
std::string Issued(const StepPlan& plan, Phase phase, absl::string_view letters,
                   int32_t micro_batch = -1) {
  std::string text;
  for (const Op& op : plan.ops) {
    const std::string token = Token(op);
    if (op.phase != phase || letters.find(token[0]) == absl::string_view::npos) continue;
    if (micro_batch >= 0 && op.micro_batch != micro_batch) continue;
    absl::StrAppend(&text, text.empty() ? "" : " ", token);
  }
  return text;
}

std::string Backward(const StepPlan& plan, absl::string_view letters, int32_t micro_batch = -1) {
  return Issued(plan, Phase::kBackward, letters, micro_batch);
}

std::string Forward(const StepPlan& plan, absl::string_view letters, int32_t micro_batch = -1) {
  return Issued(plan, Phase::kForward, letters, micro_batch);
}

std::string Optimizer(const StepPlan& plan) { return Issued(plan, Phase::kOptimizer, "UPB"); }

int64_t Count(const StepPlan& plan, Phase phase, CollectiveKind kind) {
  return std::count_if(plan.ops.begin(), plan.ops.end(), [&](const Op& op) {
    return op.kind == OpKind::kCollective && op.phase == phase && op.collective == kind;
  });
}

// ---------------------------------------------------------------- issue orders of DESIGN

TEST(UnitPlans, GatherAndComputeUnitByUnitInForward) {
  const std::string order = "G1 c1 G2 c2 G3 c3 G4 c4 G5 c5 G6 c6 G7 c7 G8 c8";
  EXPECT_EQ(Forward(PlanOf(Layers(8, Mode::kShardGradOp)), "GcS"), order);
  for (Prefetch prefetch : {Prefetch::kBackwardPre, Prefetch::kBackwardPost, Prefetch::kNone}) {
    EXPECT_EQ(Forward(PlanOf(Layers(8, Mode::kFullShard, prefetch)), "GcS"), order);
  }
}

TEST(UnitPlans, IssueBackwardInTheOrderThatPyTorchDoes) {
  EXPECT_EQ(Backward(PlanOf(Layers(8, Mode::kFullShard, Prefetch::kBackwardPre)), "GcS"),
            "G8 G7 c8 S8 G6 c7 S7 G5 c6 S6 G4 c5 S5 G3 c4 S4 G2 c3 S3 G1 c2 S2 c1 S1");
  EXPECT_EQ(Backward(PlanOf(Layers(8, Mode::kFullShard, Prefetch::kBackwardPost)), "GcS"),
            "G8 c8 G7 S8 c7 G6 S7 c6 G5 S6 c5 G4 S5 c4 G3 S4 c3 G2 S3 c2 G1 S2 c1 S1");
  EXPECT_EQ(Backward(PlanOf(Layers(8, Mode::kFullShard, Prefetch::kNone)), "GcS"),
            "G8 c8 S8 G7 c7 S7 G6 c6 S6 G5 c5 S5 G4 c4 S4 G3 c3 S3 G2 c2 S2 G1 c1 S1");
  EXPECT_EQ(Backward(PlanOf(Layers(8, Mode::kShardGradOp)), "GcS"),
            "c8 S8 c7 S7 c6 S6 c5 S5 c4 S4 c3 S3 c2 S2 c1 S1");
}

TEST(UnitPlans, ReshardInForwardAfterTheNextGather) {
  const StepPlan full = PlanOf(Layers(3, Mode::kFullShard, Prefetch::kBackwardPre));
  EXPECT_EQ(Forward(full, "GcR"), "G1 c1 G2 R1 c2 G3 R2 c3 R3");
  EXPECT_EQ(Forward(PlanOf(Layers(3, Mode::kShardGradOp)), "GcR"), "G1 c1 G2 c2 G3 c3");
}

TEST(UnitPlans, ReshardInBackwardRightAfterTheirComputation) {
  EXPECT_EQ(Backward(PlanOf(Layers(3, Mode::kFullShard, Prefetch::kBackwardPre)), "GcRS"),
            "G3 G2 c3 R3 S3 G1 c2 R2 S2 c1 R1 S1");
  EXPECT_EQ(Backward(PlanOf(Layers(3, Mode::kFullShard, Prefetch::kBackwardPost)), "GcRS"),
            "G3 c3 R3 G2 S3 c2 R2 G1 S2 c1 R1 S1");
  EXPECT_EQ(Backward(PlanOf(Layers(3, Mode::kFullShard, Prefetch::kNone)), "GcRSf"),
            "G3 c3 R3 S3 f G2 c2 R2 S2 f G1 c1 R1 S1 f");
  EXPECT_EQ(Backward(PlanOf(Layers(3, Mode::kShardGradOp)), "GcRS"), "c3 R3 S3 c2 R2 S2 c1 R1 S1");
}

TEST(UnitPlans, UpdateUnitByUnit) {
  EXPECT_EQ(Optimizer(PlanOf(Layers(3, Mode::kFullShard, Prefetch::kNone))), "U1 U2 U3");
  EXPECT_EQ(Optimizer(PlanOf(Layers(3, Mode::kShardGradOp))), "U1 U2 U3");
}

TEST(UnitPlans, ScaleTheShardAfterTheSumOrTheFullGradientBeforeIt) {
  RunDescription run = Layers(2, Mode::kFullShard, Prefetch::kNone);
  run.data.num_micro_batches = 2;
  const StepPlan after = PlanOf(run);
  EXPECT_EQ(Backward(after, "cS+*", 0), "c2 S2 c1 S1");
  EXPECT_EQ(Backward(after, "cS+*", 1), "c2 S2 +2 *2 c1 S1 +1 *1");
  run.sharding.scale_before_reduce = true;
  const StepPlan before = PlanOf(run);
  EXPECT_EQ(Backward(before, "cS+*", 0), "c2 *2 S2 c1 *1 S1");
  EXPECT_EQ(Backward(before, "cS+*", 1), "c2 *2 S2 +2 c1 *1 S1 +1");
  for (const StepPlan* plan : {&after, &before}) {
    for (const Op& op : plan->ops) {
      if (op.kind == OpKind::kScale) {
        EXPECT_EQ(op.scale, 0.25f);
      }
    }
  }
}

// ---------------------------------------------------------------- the study's step

struct StudyCounts {
  int64_t all_reduce = 0, gather_forward = 0, gather_backward = 0, gather_optimizer = 0,
          reduce_scatter = 0, broadcast = 0;
  bool operator==(const StudyCounts&) const = default;
};

StudyCounts CountsOf(const StepPlan& plan) {
  return {Count(plan, Phase::kBackward, CollectiveKind::kAllReduce),
          Count(plan, Phase::kForward, CollectiveKind::kAllGather),
          Count(plan, Phase::kBackward, CollectiveKind::kAllGather),
          Count(plan, Phase::kOptimizer, CollectiveKind::kAllGather),
          Count(plan, Phase::kBackward, CollectiveKind::kReduceScatter),
          Count(plan, Phase::kOptimizer, CollectiveKind::kBroadcast)};
}

std::ostream& operator<<(std::ostream& out, const StudyCounts& counts) {
  return out << counts.all_reduce << " all-reduces, " << counts.gather_forward << " + "
             << counts.gather_backward << " + " << counts.gather_optimizer << " all-gathers, "
             << counts.reduce_scatter << " reduce-scatters, " << counts.broadcast << " broadcasts";
}

TEST(PlanStep, IssuesTheCollectivesOfTheStudy) {
  const std::vector<RunDescription> runs = InEveryMode(TestRun("mlp:8x2048", Mode::kReplicated, 4));
  const StudyCounts full_shard = {.gather_forward = 8, .gather_backward = 8, .reduce_scatter = 8};
  const StudyCounts expected[] = {
      {.all_reduce = 2},
      {.all_reduce = 2, .broadcast = 8},
      {.all_reduce = 2, .gather_optimizer = 2},
      {.gather_optimizer = 2, .reduce_scatter = 2},
      {.gather_forward = 8, .reduce_scatter = 8},
      full_shard,
      full_shard,
      full_shard,
  };
  ASSERT_EQ(runs.size(), 8u);
  for (size_t i = 0; i < runs.size(); ++i) {
    const StepPlan plan = PlanOf(runs[i], /*rank=*/3, /*step=*/1);
    EXPECT_EQ(CountsOf(plan), expected[i]) << ModeRowName(runs[i].sharding);
    for (const Op& op : plan.ops) {
      if (op.kind != OpKind::kCollective) continue;
      const bool bucket = op.bucket >= 0;  // 64 MiB; units and tensors have 16 MiB
      EXPECT_EQ(op.elements, bucket ? 16'777'216 : 4'194'304) << Token(op);
      EXPECT_EQ(op.group, (Group{0, 1, 4}));
      EXPECT_EQ(op.dtype, Dtype::kFloat32);
      EXPECT_EQ(op.stream, StreamId::kCommunication);
    }
  }
}

// ---------------------------------------------------------------- order in time

// Which operations must have ended before which: streams in order, and waits.
class HappensBefore {
 public:
  explicit HappensBefore(const StepPlan& plan) : plan_(plan) {
    int32_t last_of_stream[kStreams] = {-1, -1};
    for (size_t index = 0; index < plan.ops.size(); ++index) {
      const Op& op = plan.ops[index];
      std::vector<bool>& before = before_.emplace_back(plan.ops.size(), false);
      const auto add = [&](int32_t earlier) {
        if (earlier < 0) return;
        EXPECT_LT(earlier, static_cast<int32_t>(index)) << "waits for what was not issued yet";
        before[earlier] = true;
        for (size_t i = 0; i < index; ++i) before[i] = before[i] || before_[earlier][i];
      };
      add(last_of_stream[static_cast<int>(op.stream)]);
      for (int32_t wait : plan.WaitsOf(op)) add(wait);
      last_of_stream[static_cast<int>(op.stream)] = static_cast<int32_t>(index);
    }
  }
  bool operator()(int32_t earlier, int32_t later) const { return before_[later][earlier]; }
  // By token; each must be issued once in its phase.
  bool operator()(Phase phase, absl::string_view earlier, absl::string_view later) const {
    return (*this)(Find(phase, earlier), Find(phase, later));
  }

 private:
  int32_t Find(Phase phase, absl::string_view token) const {
    for (size_t i = 0; i < plan_.ops.size(); ++i) {
      if (plan_.ops[i].phase == phase && Token(plan_.ops[i]) == token) return i;
    }
    ADD_FAILURE() << "no " << token;
    return 0;
  }

  const StepPlan& plan_;
  std::vector<std::vector<bool>> before_;
};

TEST(UnitPlans, GatherInForwardBesideTheComputationBeforeButAfterTheReshardBeforeThat) {
  const StepPlan plan = PlanOf(Layers(4, Mode::kFullShard, Prefetch::kBackwardPost));
  const HappensBefore before(plan);
  EXPECT_TRUE(before(Phase::kForward, "G2", "c2"));
  EXPECT_FALSE(before(Phase::kForward, "c1", "G2"));
  EXPECT_TRUE(before(Phase::kForward, "R1", "G3"));
  EXPECT_FALSE(before(Phase::kForward, "c2", "G3"));
  EXPECT_TRUE(before(Phase::kForward, "R2", "G4"));
}

TEST(UnitPlans, GatherBesideTheComputationAboveInBackwardPre) {
  const StepPlan plan = PlanOf(Layers(4, Mode::kFullShard, Prefetch::kBackwardPre));
  const HappensBefore before(plan);
  EXPECT_FALSE(before(Phase::kBackward, "c4", "G3"));
  EXPECT_FALSE(before(Phase::kBackward, "c3", "G2"));
  EXPECT_TRUE(before(Phase::kBackward, "R4", "G2"));
  EXPECT_TRUE(before(Phase::kBackward, "R3", "G1"));
}

TEST(UnitPlans, GatherAfterTheComputationAboveInBackwardPost) {
  const StepPlan plan = PlanOf(Layers(4, Mode::kFullShard, Prefetch::kBackwardPost));
  const HappensBefore before(plan);
  EXPECT_TRUE(before(Phase::kBackward, "c4", "G3"));
  EXPECT_TRUE(before(Phase::kBackward, "c3", "G2"));
  EXPECT_FALSE(before(Phase::kBackward, "S4", "G3"));
  EXPECT_FALSE(before(Phase::kBackward, "S3", "G2"));
}

TEST(UnitPlans, GatherAfterTheReductionAboveWithoutPrefetch) {
  const StepPlan plan = PlanOf(Layers(4, Mode::kFullShard, Prefetch::kNone));
  const HappensBefore before(plan);
  EXPECT_TRUE(before(Phase::kBackward, "S4", "G3"));
  EXPECT_TRUE(before(Phase::kBackward, "S2", "G1"));
  EXPECT_TRUE(before(Phase::kBackward, "c2", "S2"));
}

TEST(UnitPlans, ReduceBesideTheNextComputation) {
  for (Prefetch prefetch : {Prefetch::kBackwardPre, Prefetch::kBackwardPost}) {
    const StepPlan plan = PlanOf(Layers(4, Mode::kFullShard, prefetch));
    const HappensBefore before(plan);
    EXPECT_TRUE(before(Phase::kBackward, "c4", "S4"));
    EXPECT_FALSE(before(Phase::kBackward, "S4", "c3"));
    EXPECT_FALSE(before(Phase::kBackward, "c3", "S4"));
    // The third gradient is allocated when the first is freed.
    EXPECT_TRUE(before(Phase::kBackward, "S4", "c2"));
  }
}

TEST(BucketPlans, ReduceBesideTheNextComputationAndGatherBesideTheNextUpdate) {
  RunDescription run = Layers(3, Mode::kZero1AllGather);
  run.sharding.bucket_cap_bytes = 1;
  const StepPlan plan = PlanOf(run);
  const HappensBefore before(plan);
  EXPECT_TRUE(before(Phase::kBackward, "c3", "A0"));
  EXPECT_FALSE(before(Phase::kBackward, "A0", "c1"));
  EXPECT_TRUE(before(Phase::kOptimizer, "U0", "P0"));
  EXPECT_FALSE(before(Phase::kOptimizer, "P0", "U2"));
  EXPECT_FALSE(before(Phase::kOptimizer, "U1", "P0"));
}

// ---------------------------------------------------------------- rules of every plan

// Every mode over models, micro-batches, layouts and ways to scale.
std::vector<RunDescription> AwkwardRuns() {
  std::vector<RunDescription> runs;
  std::vector<ModelDescription> models = AwkwardProbes();
  for (ModelDescription& model : AwkwardMlps()) models.push_back(std::move(model));
  for (ModelDescription& model : models) {
    RunDescription base = TestRun("probe:1", Mode::kReplicated, 3);
    base.model = std::move(model);
    base.sharding.bucket_cap_bytes = 60;
    for (const RunDescription& synced : WithEveryGradSync(base)) {
      for (const RunDescription& mode : InEveryMode(synced)) {
        for (RunDescription run : InEveryLayout(mode)) {
          runs.push_back(run);
          if (run.sharding.layout != LayoutKind::kFlat) continue;
          run.sharding.scale_before_reduce = true;
          run.optimizer.kind = OptimizerKind::kSgd;
          run.optimizer.momentum = run.data.num_micro_batches == 1 ? 0 : 0.9;
          runs.push_back(run);
        }
      }
    }
  }
  return runs;
}

std::string Describe(const RunDescription& run) {
  return absl::StrCat(run.model.name, " with ", run.model.units.size(), " units, ",
                      ModeRowName(run.sharding), ", ", Name(run.sharding.layout),
                      ", K=", run.data.num_micro_batches, ", ", Name(run.sharding.grad_sync));
}

void ExpectConflictsAreOrdered(const StepPlan& plan) {
  const HappensBefore before(plan);
  const auto conflicts = [](const PlanAccess& a, const PlanAccess& b) {
    const bool whole = a.kind == AccessKind::kAllocate || a.kind == AccessKind::kFree ||
                       b.kind == AccessKind::kAllocate || b.kind == AccessKind::kFree;
    if (a.buffer != b.buffer) return false;
    if (a.kind == AccessKind::kRead && b.kind == AccessKind::kRead) return false;
    return whole || a.range.Overlaps(b.range);
  };
  for (size_t later = 0; later < plan.ops.size(); ++later) {
    for (size_t earlier = 0; earlier < later; ++earlier) {
      if (before(earlier, later)) continue;
      for (const PlanAccess& a : plan.AccessesOf(plan.ops[earlier])) {
        for (const PlanAccess& b : plan.AccessesOf(plan.ops[later])) {
          const bool reuse = a.kind == AccessKind::kFree && b.kind == AccessKind::kAllocate;
          EXPECT_FALSE(conflicts(a, b) || reuse)
              << Token(plan.ops[earlier]) << " (" << earlier << ") and " << Token(plan.ops[later])
              << " (" << later << ") on buffers " << a.buffer << ", " << b.buffer;
        }
      }
    }
  }
}

// Follows allocations in issue order, from what is live before to what the next step finds.
void ExpectLifetimesAreSound(const StepPlan& plan, const StepPlan& next) {
  std::vector<bool> live(plan.buffers.size(), false);
  std::vector<bool> written(plan.buffers.size(), false);
  for (int32_t buffer : plan.live_before) live[buffer] = written[buffer] = true;
  for (const Op& op : plan.ops) {
    AccessKind last = AccessKind::kAllocate;
    for (const PlanAccess& access : plan.AccessesOf(op)) {
      const std::string what = absl::StrCat(Token(op), " on buffer ", access.buffer, " (",
                                            Name(plan.buffers[access.buffer].role), ")");
      EXPECT_GE(access.kind, last) << "allocate, read, write, free is the order; " << what;
      last = access.kind;
      EXPECT_GE(access.range.first, 0) << what;
      EXPECT_LE(access.range.end(), plan.buffers[access.buffer].elements) << what;
      if (access.kind == AccessKind::kAllocate) {
        EXPECT_FALSE(live[access.buffer]) << what;
        live[access.buffer] = true;
        written[access.buffer] = false;
      }
      EXPECT_TRUE(live[access.buffer]) << what;
      if (access.kind == AccessKind::kRead) {
        EXPECT_TRUE(written[access.buffer]) << what;
      }
      if (access.kind == AccessKind::kWrite) written[access.buffer] = true;
      if (access.kind == AccessKind::kFree) live[access.buffer] = false;
    }
  }
  std::vector<bool> found(plan.buffers.size(), false);
  for (int32_t buffer : next.live_before) found[buffer] = true;
  EXPECT_EQ(live, found) << "what lives after the step and what the next one finds";
}

TEST(PlanStep, OrdersConflictingAccessesOfEveryMode) {
  for (const RunDescription& run : AwkwardRuns()) {
    SCOPED_TRACE(Describe(run));
    ExpectConflictsAreOrdered(PlanOf(run, /*rank=*/1, /*step=*/1));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PlanStep, UsesOnlyLiveAndWrittenBuffersAndLeavesNone) {
  for (const RunDescription& run : AwkwardRuns()) {
    SCOPED_TRACE(Describe(run));
    const StepPlan steady = PlanOf(run, 1, /*step=*/1);
    ExpectLifetimesAreSound(PlanOf(run, 1, /*step=*/0), steady);
    ExpectLifetimesAreSound(steady, steady);
    if (::testing::Test::HasFailure()) return;
  }
}

// The collectives as members must see them: what the simulated world compares, and more.
std::vector<std::string> Collectives(const StepPlan& plan) {
  std::vector<std::string> calls;
  for (const Op& op : plan.ops) {
    if (op.kind != OpKind::kCollective) continue;
    calls.push_back(absl::StrCat(Token(op), ":", Name(op.collective), " ", op.elements, " root ",
                                 op.root, " in ", Name(op.phase), " ", op.micro_batch));
  }
  return calls;
}

TEST(PlanStep, IssuesTheSameOperationsOnEveryRank) {
  for (const RunDescription& run : AwkwardRuns()) {
    SCOPED_TRACE(Describe(run));
    const StepPlan first = PlanOf(run, 0);
    for (int32_t rank = 1; rank < run.sharding.world_size.value; ++rank) {
      const StepPlan plan = PlanOf(run, rank);
      EXPECT_EQ(Collectives(plan), Collectives(first));
      EXPECT_EQ(plan.ops.size(), first.ops.size());
    }
    if (::testing::Test::HasFailure()) return;
  }
}

// Every trainable element is updated on one rank, or on all of them in replicated, with its
// own gradient and moments.
void ExpectUpdatesCoverTheModel(const RunDescription& run) {
  const Placement placement = MakePlacement(run);
  std::vector<std::vector<int32_t>> updates;
  for (const TensorSpec& tensor : run.model.tensors) updates.emplace_back(Elements(tensor), 0);
  const int32_t ranks = run.sharding.world_size.value;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const StepPlan plan = PlanStep(run, placement, Rank{rank}, /*step=*/0);
    std::vector<bool> has_state(updates.size(), false);
    for (const UpdateRange& update : plan.updates) {
      const auto within = [&](const BufferRange& range, BufferRole role) {
        EXPECT_EQ(plan.buffers[range.buffer].role, role);
        EXPECT_EQ(range.range.count, update.count);
        EXPECT_GE(range.range.first, 0);
        EXPECT_LE(range.range.end(), plan.buffers[range.buffer].elements);
      };
      within(update.parameter, BufferRole::kParameter);
      within(update.gradient, BufferRole::kGradient);
      if (update.exp_avg.buffer >= 0) within(update.exp_avg, BufferRole::kOptimizerState);
      if (update.exp_avg_sq.buffer >= 0) within(update.exp_avg_sq, BufferRole::kOptimizerState);
      const bool adamw = run.optimizer.kind == OptimizerKind::kAdamW;
      EXPECT_EQ(update.exp_avg_sq.buffer >= 0, adamw);
      EXPECT_EQ(update.exp_avg.buffer >= 0, adamw || run.optimizer.momentum != 0);
      // The whole tensor, or the part that the rank's shard holds.
      int64_t first = -1;
      const TensorSet& set = placement.sets[placement.moment_set[update.tensor]];
      for (const Segment& segment : set.layout.shard(set.layout.shards == 1 ? 0 : rank)) {
        if (segment.tensor == update.tensor) first = segment.first;
      }
      ASSERT_GE(first, 0);
      for (int64_t i = 0; i < update.count; ++i) ++updates[update.tensor][first + i];
      has_state[update.tensor] = true;
    }
    const int64_t counters = std::count(has_state.begin(), has_state.end(), true);
    if (run.optimizer.kind == OptimizerKind::kAdamW) {
      EXPECT_EQ(plan.buffers[plan.scalar_buffer].elements, counters);
    } else {
      EXPECT_EQ(plan.scalar_buffer, -1);
    }
  }
  const int32_t times = run.sharding.mode == Mode::kReplicated ? ranks : 1;
  for (size_t tensor = 0; tensor < updates.size(); ++tensor) {
    const int32_t expected = run.model.tensors[tensor].trainable ? times : 0;
    EXPECT_EQ(updates[tensor], std::vector<int32_t>(updates[tensor].size(), expected));
  }
}

TEST(PlanStep, UpdatesEachTrainableElementOnItsOwners) {
  for (const RunDescription& run : AwkwardRuns()) {
    SCOPED_TRACE(Describe(run));
    ExpectUpdatesCoverTheModel(run);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PlanState, HasTheBuffersAndHomesOfTheStep) {
  for (const RunDescription& run : InEveryMode(Layers(3, Mode::kReplicated))) {
    const StepPlan state = PlanState(run, MakePlacement(run), Rank{1});
    const StepPlan step = PlanOf(run, 1);
    EXPECT_THAT(state.ops, IsEmpty());
    EXPECT_EQ(state.live_before, step.live_before);
    ASSERT_EQ(state.homes.size(), step.homes.size());
    for (size_t set = 0; set < state.homes.size(); ++set) {
      EXPECT_EQ(state.homes[set].parameter, step.homes[set].parameter);
      EXPECT_EQ(state.homes[set].gradient, step.homes[set].gradient);
    }
    for (size_t buffer = 0; buffer < state.buffers.size(); ++buffer) {
      EXPECT_EQ(state.buffers[buffer].role, step.buffers[buffer].role);
      EXPECT_EQ(state.buffers[buffer].elements, step.buffers[buffer].elements);
    }
  }
}

// ---------------------------------------------------------------- what lives when

TEST(PlanStep, FreesGradientsOfTheStepBeforeAndHasNoneInTheFirst) {
  for (const RunDescription& run : InEveryMode(Layers(3, Mode::kReplicated))) {
    SCOPED_TRACE(ModeRowName(run.sharding));
    const StepPlan first = PlanOf(run, 0, /*step=*/0);
    const StepPlan steady = PlanOf(run, 0, /*step=*/1);
    EXPECT_EQ(Forward(first, "f"), "");
    EXPECT_EQ(Forward(steady, "f"), "f");
    EXPECT_EQ(steady.ops[0].kind, OpKind::kRelease);
    EXPECT_EQ(steady.ops[0].unit, -1) << "more than one unit's gradients are freed";
    EXPECT_EQ(steady.ops.size(), first.ops.size() + 1);
    std::vector<int32_t> freed;
    for (const PlanAccess& access : steady.AccessesOf(steady.ops[0])) {
      EXPECT_EQ(access.kind, AccessKind::kFree);
      EXPECT_EQ(steady.buffers[access.buffer].role, BufferRole::kGradient);
      freed.push_back(access.buffer);
    }
    std::vector<int32_t> live = first.live_before;
    live.insert(live.end(), freed.begin(), freed.end());
    EXPECT_EQ(steady.live_before, live);
  }
}

// The most buffers of a role that live at once in a phase, by the events' order: after an
// operation's allocations, before its frees.
int32_t MostLive(const StepPlan& plan, BufferRole role, Phase phase) {
  int32_t live = 0, most = 0;
  for (const Op& op : plan.ops) {
    int32_t freed = 0;
    for (const PlanAccess& access : plan.AccessesOf(op)) {
      if (plan.buffers[access.buffer].role != role) continue;
      live += access.kind == AccessKind::kAllocate;
      freed += access.kind == AccessKind::kFree;
    }
    if (op.phase == phase) most = std::max(most, live);
    live -= freed;
  }
  EXPECT_EQ(live, 0);
  return most;
}

std::vector<int32_t> MostLiveUnitsAndGradients(const RunDescription& run) {
  const StepPlan plan = PlanOf(run);
  return {MostLive(plan, BufferRole::kUnshardedParameter, Phase::kForward),
          MostLive(plan, BufferRole::kUnshardedParameter, Phase::kBackward),
          MostLive(plan, BufferRole::kUnreducedGradient, Phase::kBackward)};
}

TEST(UnitPlans, KeepNoMoreFullUnitsAndGradientsThanDesignAllows) {
  for (int64_t micro_batches : {1, 2}) {
    RunDescription run = Layers(8, Mode::kFullShard, Prefetch::kBackwardPre);
    run.data.num_micro_batches = micro_batches;
    run.sharding.grad_sync = GradSync::kEvery;
    // A second reduction has an output of its own, released with its full gradient.
    const int32_t each = micro_batches > 1 ? 2 : 1;
    EXPECT_THAT(MostLiveUnitsAndGradients(run), ElementsAre(2, 2, 2 * each));
    run.sharding.prefetch = Prefetch::kBackwardPost;
    EXPECT_THAT(MostLiveUnitsAndGradients(run), ElementsAre(2, 1, 2 * each));
    run.sharding.prefetch = Prefetch::kNone;
    EXPECT_THAT(MostLiveUnitsAndGradients(run), ElementsAre(2, 1, each));
    run.sharding.mode = Mode::kShardGradOp;
    run.sharding.prefetch = Prefetch::kNotApplicable;
    EXPECT_THAT(MostLiveUnitsAndGradients(run), ElementsAre(8, 8, 2 * each));
  }
}

TEST(UnitPlans, KeepEveryFullGradientUntilTheLastMicroBatchReducesIt) {
  RunDescription run = Layers(4, Mode::kFullShard, Prefetch::kNone);
  run.data.num_micro_batches = 3;
  run.sharding.grad_sync = GradSync::kLast;
  EXPECT_THAT(MostLiveUnitsAndGradients(run), ElementsAre(2, 1, 4));
}

TEST(BucketPlans, OfZero2KeepTwoFullBuckets) {
  RunDescription run = Layers(6, Mode::kZero2);
  run.sharding.bucket_cap_bytes = 1;
  const StepPlan plan = PlanOf(run);
  EXPECT_EQ(MostLive(plan, BufferRole::kUnreducedGradient, Phase::kBackward), 2);
}

TEST(BucketPlans, OfWholeGradientsNeedNoSecondBufferForOneReduction) {
  for (Mode mode : {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather}) {
    RunDescription run = Layers(4, mode);
    run.sharding.bucket_cap_bytes = 1;
    run.data.num_micro_batches = 3;
    run.sharding.grad_sync = GradSync::kLast;
    EXPECT_EQ(MostLive(PlanOf(run), BufferRole::kUnreducedGradient, Phase::kBackward), 0);
    run.sharding.grad_sync = GradSync::kEvery;
    EXPECT_EQ(MostLive(PlanOf(run), BufferRole::kUnreducedGradient, Phase::kBackward), 2);
  }
}

// ---------------------------------------------------------------- micro-batches

TEST(UnitPlans, ReduceOnceWithGradSyncLastAndAddMicroBatchesBefore) {
  RunDescription run = Layers(2, Mode::kFullShard, Prefetch::kBackwardPre);
  run.data.num_micro_batches = 3;
  run.sharding.grad_sync = GradSync::kLast;
  const StepPlan plan = PlanOf(run);
  for (int32_t k : {0, 1}) EXPECT_EQ(Backward(plan, "GcRS+*", k), "G2 G1 c2 R2 c1 R1") << k;
  EXPECT_EQ(Backward(plan, "GcRS+*", 2), "G2 G1 c2 R2 S2 *2 c1 R1 S1 *1");
  for (int32_t k : {0, 1, 2}) EXPECT_EQ(Forward(plan, "GcR", k), "G1 c1 G2 R1 c2 R2") << k;
  for (const Op& op : plan.ops) {
    for (const SetUse& use : plan.GradientUsesOf(op)) {
      EXPECT_EQ(use.accumulate, op.micro_batch > 0);
    }
  }
}

TEST(UnitPlans, ReduceEveryMicroBatchWithGradSyncEveryAndAddAfter) {
  RunDescription run = Layers(2, Mode::kShardGradOp);
  run.data.num_micro_batches = 3;
  run.sharding.grad_sync = GradSync::kEvery;
  const StepPlan plan = PlanOf(run);
  EXPECT_EQ(Backward(plan, "cS+*", 0), "c2 S2 c1 S1");
  EXPECT_EQ(Backward(plan, "cS+*", 1), "c2 S2 +2 c1 S1 +1");
  EXPECT_EQ(Backward(plan, "cS+*", 2), "c2 S2 +2 *2 c1 S1 +1 *1");
  for (const Op& op : plan.ops) {
    for (const SetUse& use : plan.GradientUsesOf(op)) EXPECT_FALSE(use.accumulate);
    if (op.kind == OpKind::kScale) {
      EXPECT_EQ(op.scale, static_cast<float>(1.0 / 6.0));
    }
  }
}

TEST(BucketPlans, ReduceOnceOrInEveryMicroBatch) {
  RunDescription run = Layers(2, Mode::kReplicated);
  run.sharding.bucket_cap_bytes = 1;
  run.data.num_micro_batches = 3;
  run.sharding.grad_sync = GradSync::kLast;
  const StepPlan last = PlanOf(run);
  EXPECT_EQ(Backward(last, "cA+*", 0), "c2 c1");
  EXPECT_EQ(Backward(last, "cA+*", 1), "c2 c1");
  EXPECT_EQ(Backward(last, "cA+*", 2), "c2 A0 *0 c1 A1 *1");
  run.sharding.grad_sync = GradSync::kEvery;
  const StepPlan every = PlanOf(run);
  EXPECT_EQ(Backward(every, "cA+*", 0), "c2 A0 c1 A1");
  EXPECT_EQ(Backward(every, "cA+*", 1), "c2 A0 +0 c1 A1 +1");
  EXPECT_EQ(Backward(every, "cA+*", 2), "c2 A0 +0 *0 c1 A1 +1 *1");
  run.sharding.mode = Mode::kZero2;
  EXPECT_EQ(Backward(PlanOf(run), "cS+*", 2), "c2 S0 +0 *0 c1 S1 +1 *1");
}

TEST(UnitPlans, KeepUnitsUnshardedBetweenMicroBatchesOfShardGradOp) {
  RunDescription run = Layers(3, Mode::kShardGradOp);
  run.data.num_micro_batches = 2;
  run.sharding.grad_sync = GradSync::kLast;
  const StepPlan gathers_again = PlanOf(run);
  EXPECT_EQ(Forward(gathers_again, "GcR", 1), "G1 c1 G2 c2 G3 c3");
  run.sharding.keep_unsharded_between_micro_batches = true;
  const StepPlan keeps = PlanOf(run);
  EXPECT_EQ(Forward(keeps, "GcR", 0), "G1 c1 G2 c2 G3 c3");
  EXPECT_EQ(Backward(keeps, "GcRS", 0), "c3 c2 c1");
  EXPECT_EQ(Forward(keeps, "GcR", 1), "c1 c2 c3");
  EXPECT_EQ(Backward(keeps, "GcRS", 1), "c3 R3 S3 c2 R2 S2 c1 R1 S1");
}

TEST(UnitPlans, KeepUnitsUnshardedBetweenMicroBatchesOfFullShard) {
  RunDescription run = Layers(3, Mode::kFullShard, Prefetch::kBackwardPre);
  run.data.num_micro_batches = 2;
  run.sharding.grad_sync = GradSync::kLast;
  run.sharding.keep_unsharded_between_micro_batches = true;
  const StepPlan plan = PlanOf(run);
  EXPECT_EQ(Forward(plan, "GcR", 0), "G1 c1 G2 R1 c2 G3 R2 c3 R3");
  EXPECT_EQ(Backward(plan, "GcRS", 0), "G3 G2 c3 G1 c2 c1");
  // Forward still reshards, so the last micro-batch's backward gathers as ever.
  EXPECT_EQ(Forward(plan, "GcR", 1), "c1 R1 c2 R2 c3 R3");
  EXPECT_EQ(Backward(plan, "GcRS", 1), "G3 G2 c3 R3 S3 G1 c2 R2 S2 c1 R1 S1");
}

// ---------------------------------------------------------------- units of other shapes

TEST(UnitPlans, GatherARootThatStaysUnshardedOnceAMicroBatch) {
  RunDescription run = Layers(4, Mode::kFullShard, Prefetch::kBackwardPre);
  SetUnits({{0, 3}, {1}, {2}}, run.model);
  run.model.units[0].reshard_after_forward = false;
  run.data.num_micro_batches = 2;
  run.sharding.grad_sync = GradSync::kEvery;
  const StepPlan plan = PlanOf(run);
  for (int32_t k : {0, 1}) {
    EXPECT_EQ(Forward(plan, "GcR", k), "G1 c1 G2 c2 G3 R2 c3 R3 c1");
    EXPECT_EQ(Backward(plan, "GcRS", k), "G3 c1 G2 c3 R3 S3 c2 R2 S2 c1 R1 S1");
  }
}

TEST(UnitPlans, KeepAUnitOfTwoRunsUnshardedFromItsFirstToItsLast) {
  RunDescription run = Layers(4, Mode::kFullShard, Prefetch::kBackwardPost);
  SetUnits({{0, 3}, {1}, {2}}, run.model);
  const StepPlan plan = PlanOf(run);
  EXPECT_EQ(Forward(plan, "GcR"), "G1 c1 G2 c2 G3 R2 c3 R3 c1 R1");
  EXPECT_EQ(Backward(plan, "GcRS"), "G1 c1 G3 c3 R3 G2 S3 c2 R2 S2 c1 R1 S1");
}

TEST(UnitPlans, ComputeNeighbouringStagesOfAUnitAtOnce) {
  RunDescription run = Layers(5, Mode::kFullShard, Prefetch::kNone);
  SetUnits({{0, 1, 4}, {2, 3}}, run.model);
  const StepPlan plan = PlanOf(run);
  EXPECT_EQ(Forward(plan, "Gc"), "G1 c1 G2 c2 c1");
  std::vector<std::string> computed;
  for (const Op& op : plan.ops) {
    if (op.kind != OpKind::kForward && op.kind != OpKind::kBackward) continue;
    computed.push_back(absl::StrCat(Name(op.phase), " ", op.stage, "+", op.stage_count));
  }
  EXPECT_THAT(computed, ElementsAre("forward 0+2", "forward 2+2", "forward 4+1", "backward 4+1",
                                    "backward 2+2", "backward 0+2"));
}

TEST(UnitPlans, NeitherGatherNorReduceAUnitWithoutElements) {
  RunDescription run = TestRun("probe:3,5", Mode::kFullShard, 2);
  run.model.stages = {{"a", {0}}, {"no tensors", {}}, {"b", {1}}};
  SetUnits({{0}, {1}, {2}}, run.model);
  const StepPlan plan = PlanOf(run);
  EXPECT_EQ(Forward(plan, "GcR"), "G1 c1 R1 c2 G3 c3 R3");
  EXPECT_EQ(Backward(plan, "GcRS"), "G3 c3 R3 S3 G1 c2 c1 R1 S1");
  EXPECT_EQ(Optimizer(plan), "U1 U3");
}

// ---------------------------------------------------------------- frozen tensors

TEST(UnitPlans, EndBackwardAtTheFirstTrainableTensorAndReshardWhatItDoesNotReach) {
  for (Mode mode : {Mode::kShardGradOp, Mode::kFullShard}) {
    RunDescription run = Layers(4, mode);
    if (mode == Mode::kFullShard) run.sharding.prefetch = Prefetch::kBackwardPre;
    Freeze({0, 1}, run.model);
    const StepPlan plan = PlanOf(run);
    const bool full = mode == Mode::kFullShard;
    EXPECT_EQ(Forward(plan, "GcR"),
              full ? "G1 c1 G2 R1 c2 G3 R2 c3 G4 R3 c4 R4" : "G1 c1 G2 R1 c2 G3 R2 c3 G4 c4");
    EXPECT_EQ(Backward(plan, "GcRS"), full ? "G4 G3 c4 R4 S4 c3 R3 S3" : "c4 R4 S4 c3 R3 S3");
    EXPECT_EQ(Optimizer(plan), "U3 U4");
  }
}

TEST(UnitPlans, GatherAFrozenUnitInTheMiddleForItsInputGradientButReduceNothing) {
  RunDescription run = Layers(3, Mode::kFullShard, Prefetch::kBackwardPost);
  Freeze({1}, run.model);
  const StepPlan plan = PlanOf(run);
  EXPECT_EQ(Backward(plan, "GcRS"), "G3 c3 R3 G2 S3 c2 R2 G1 c1 R1 S1");
  EXPECT_EQ(Optimizer(plan), "U1 U3");
}

TEST(UnitPlans, ReduceAUnitWhoseLowerRunBackwardDoesNotReach) {
  // The head trains, the embedding of the same unit and the blocks below are frozen.
  RunDescription run = Layers(4, Mode::kFullShard, Prefetch::kBackwardPre);
  SetUnits({{0, 3}, {1}, {2}}, run.model);
  Freeze({0, 1}, run.model);
  const StepPlan plan = PlanOf(run);
  EXPECT_EQ(Forward(plan, "GcR"), "G1 c1 G2 c2 G3 R2 c3 R3 c1 R1");
  EXPECT_EQ(Backward(plan, "GcRS"), "G1 G3 c1 R1 S1 c3 R3 S3");
  EXPECT_EQ(Optimizer(plan), "U1 U3");
}

TEST(BucketPlans, LeaveFrozenTensorsOutOfBucketsAndBroadcasts) {
  RunDescription run = Layers(4, Mode::kZero1Broadcast);
  run.sharding.bucket_cap_bytes = 1;
  Freeze({0, 2}, run.model);
  const StepPlan plan = PlanOf(run);
  EXPECT_EQ(Backward(plan, "cA"), "c4 A0 c3 c2 A1");
  EXPECT_EQ(Optimizer(plan), "U B2 B4");
  run.sharding.mode = Mode::kZero2;
  run.sharding.layout = LayoutKind::kFlat;
  EXPECT_EQ(Backward(PlanOf(run), "cS"), "c4 S0 c3 c2 S1");
  EXPECT_EQ(Optimizer(PlanOf(run)), "U0 P0 U1 P1");
}

TEST(PlanStep, ComputesForwardOnlyWhenNothingIsTrainable) {
  for (RunDescription& run : InEveryMode(Layers(2, Mode::kReplicated))) {
    Freeze({0, 1}, run.model);
    const StepPlan plan = PlanOf(run);
    EXPECT_EQ(Forward(plan, "c"), "c1 c2") << ModeRowName(run.sharding);
    EXPECT_EQ(Backward(plan, "GcRSA+*"), "") << ModeRowName(run.sharding);
    EXPECT_EQ(Optimizer(plan), "") << ModeRowName(run.sharding);
  }
}

// ---------------------------------------------------------------- buckets

TEST(BucketPlans, ReduceABucketOnceBackwardHasWrittenAllOfIt) {
  RunDescription run = Layers(4, Mode::kReplicated);
  run.sharding.bucket_cap_bytes = 100;  // two layers of 64 bytes
  EXPECT_EQ(Backward(PlanOf(run), "cA"), "c4 c3 A0 c2 c1 A1");
  EXPECT_EQ(Optimizer(PlanOf(run)), "U0 U1");
  run.sharding.mode = Mode::kZero1AllGather;
  EXPECT_EQ(Backward(PlanOf(run), "cA"), "c4 c3 A0 c2 c1 A1");
  EXPECT_EQ(Optimizer(PlanOf(run)), "U0 P0 U1 P1");
  run.sharding.mode = Mode::kZero2;
  EXPECT_EQ(Backward(PlanOf(run), "cS"), "c4 c3 S0 c2 c1 S1");
  EXPECT_EQ(Optimizer(PlanOf(run)), "U0 P0 U1 P1");
}

TEST(BucketPlans, ReduceNoBucketBeforeItsPredecessors) {
  // Registered in the order in which backward meets them: bucket 0 is complete last.
  RunDescription run = TestRun("probe:3,4,5", Mode::kZero2, 2);
  run.model.stages = {{"a", {2}}, {"b", {1}}, {"c", {0}}};
  run.sharding.bucket_cap_bytes = 1;
  EXPECT_EQ(Backward(PlanOf(run), "cS"), "c3 c2 c1 S0 S1 S2");
}

TEST(BucketPlans, WaitForTheLowestStageOfATiedTensor) {
  RunDescription run = TestRun("probe:3,4", Mode::kReplicated, 2);
  run.model.stages.push_back({"head", {0}});
  SetUnits({{0, 2}, {1}}, run.model);
  run.sharding.bucket_cap_bytes = 1;
  EXPECT_EQ(Backward(PlanOf(run), "cA"), "c1 c2 A0 c1 A1");
}

TEST(BucketPlans, BroadcastEachTensorFromItsOwnerInRegistrationOrder) {
  RunDescription run = TestRun("probe:3,9,4,5x2", Mode::kZero1Broadcast, 2);
  // 10 -> 0, 9 -> 1, 4 -> 1, 3 -> 0.
  std::vector<std::string> broadcasts;
  for (const Op& op : PlanOf(run).ops) {
    if (op.purpose != Purpose::kBroadcastParameters) continue;
    broadcasts.push_back(absl::StrCat(op.tensor, ":", op.elements, "@", op.root));
  }
  EXPECT_THAT(broadcasts, ElementsAre("0:3@0", "1:9@1", "2:4@1", "3:10@0"));
  EXPECT_EQ(Optimizer(PlanOf(run, 1)), "U B1 B2 B3 B4");
}

TEST(BucketPlans, BroadcastOncePerOwnerWithTensorsInTheBucketView) {
  RunDescription run = TestRun("probe:3,9,4,5x2", Mode::kZero1Broadcast, 2);
  run.sharding.broadcast_bucket_view = true;
  std::vector<std::string> broadcasts;
  for (const Op& op : PlanOf(run).ops) {
    if (op.purpose != Purpose::kBroadcastParameters) continue;
    broadcasts.push_back(absl::StrCat(op.tensor, ":", op.elements, "@", op.root));
    EXPECT_EQ(op.bucket, -1);
  }
  EXPECT_THAT(broadcasts, ElementsAre("-1:13@0", "-1:13@1"));
  run.sharding.world_size = {7};
  EXPECT_EQ(Optimizer(PlanOf(run, 6)), "U B@0 B@1 B@2 B@3");
}

// ---------------------------------------------------------------- one rank, tiny shards

TEST(PlanStep, IssuesTheSameCollectivesOnOneRank) {
  for (const RunDescription& run : InEveryMode(Layers(3, Mode::kReplicated))) {
    RunDescription alone = run;
    alone.sharding.world_size = {1};
    EXPECT_EQ(CountsOf(PlanOf(alone)), CountsOf(PlanOf(run))) << ModeRowName(run.sharding);
  }
}

// ---------------------------------------------------------------- refusals

RunDescription Refusable() { return Layers(2, Mode::kFullShard, Prefetch::kBackwardPre); }

TEST(CanPlan, RefusesHybridGroups) {
  RunDescription run = Refusable();
  run.sharding.world_size = {4};
  run.sharding.shard_group_size = 2;
  const absl::Status status = CanPlan(run);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("shard_group_size=2 on 4 ranks"), HasSubstr("use 0 or")));
  run.sharding.shard_group_size = 4;
  EXPECT_TRUE(CanPlan(run).ok());
}

TEST(CanPlan, RefusesMixedPrecisionOfAnyPart) {
  for (Dtype MixedPrecision::*part : {&MixedPrecision::parameter, &MixedPrecision::reduce,
                                      &MixedPrecision::master, &MixedPrecision::moment}) {
    RunDescription run = Refusable();
    run.sharding.precision.*part = Dtype::kBFloat16;
    const absl::Status status = CanPlan(run);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("dtype bfloat16"), HasSubstr("use float32")));
  }
}

TEST(CanPlan, RefusesOffloadOfParametersAndOfTheOptimizer) {
  for (MemoryTier ShardingDescription::*tier :
       {&ShardingDescription::parameter_tier, &ShardingDescription::optimizer_tier}) {
    RunDescription run = Refusable();
    run.sharding.*tier = MemoryTier::kHost;
    const absl::Status status = CanPlan(run);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("the host tier"), HasSubstr("use device")));
  }
}

// Layers 1 and 3 share a weight that lies in unit 1, over a unit 2 of its own.
RunDescription Tied(Prefetch prefetch) {
  RunDescription run = TestRun("probe:4,3,2", Mode::kFullShard, 2);
  run.sharding.prefetch = prefetch;
  run.model.stages[2].tensors.push_back(0);
  return run;
}

TEST(UnitPlans, GatherAndReduceATiedWeightWithTheUnitOfItsFirstStage) {
  // Run 3 needs units 3 and 1. Backward needs unit 1 last in run 1, so it stays until then.
  const StepPlan pre = PlanOf(Tied(Prefetch::kBackwardPre));
  EXPECT_EQ(Forward(pre, "GcR"), "G1 c1 G2 c2 G3 R2 c3 R3 R1");
  EXPECT_EQ(Backward(pre, "GcRS"), "G3 G1 G2 c3 R3 S3 c2 R2 S2 c1 R1 S1");
  const StepPlan none = PlanOf(Tied(Prefetch::kNone));
  EXPECT_EQ(Backward(none, "GcRS"), "G3 G1 c3 R3 S3 G2 c2 R2 S2 c1 R1 S1");
}

// The second use in a micro-batch reads what the first one wrote, and the plan says so.
TEST(UnitPlans, ReadTheGradientThatATiedWeightsLaterUseLeft) {
  const StepPlan plan = PlanOf(Tied(Prefetch::kNone));
  for (const Op& op : plan.ops) {
    if (op.kind != OpKind::kBackward) continue;
    const int32_t gradient = plan.GradientUsesOf(op)[0].buffer;
    const bool reads = std::any_of(
        plan.AccessesOf(op).begin(), plan.AccessesOf(op).end(), [&](const PlanAccess& access) {
          return access.buffer == gradient && access.kind == AccessKind::kRead;
        });
    EXPECT_EQ(reads, op.stage == 0) << "backward of stage " << op.stage;
  }
}

TEST(ClippingPlans, SumSquaresOfShardsOverTheRanksAndOfWholeGradientsNot) {
  RunDescription run = TestRun("probe:4,3", Mode::kZero2, 2);
  run.clip_grad_norm = 1;
  const auto optimizer = [&run] { return Issued(PlanOf(run), Phase::kOptimizer, "nAcUP"); };
  EXPECT_EQ(optimizer(), "norm A_norm coefficient clip0 U0 P0");
  run.sharding.mode = Mode::kReplicated;
  EXPECT_EQ(optimizer(), "norm coefficient clip0 U0");
  run.sharding.mode = Mode::kShardGradOp;
  EXPECT_EQ(optimizer(), "norm A_norm coefficient clip1 clip2 U1 U2");
}

TEST(ClippingPlans, CountEveryTrainableElementOnceAndNoPadding) {
  RunDescription run = TestRun("probe:5,3x3,2", Mode::kShardGradOp, 3);
  run.clip_grad_norm = 1;
  Freeze({2}, run.model);
  SetUnits({{0, 2}, {1}}, run.model);
  int64_t elements = 0;
  for (int32_t rank = 0; rank < 3; ++rank) {
    const StepPlan plan = PlanOf(run, rank);
    for (const Op& op : plan.ops) {
      if (op.kind != OpKind::kNorm) continue;
      for (const UpdateRange& range : plan.UpdatesOf(op)) elements += range.count;
    }
  }
  EXPECT_EQ(elements, 5 + 9);
}

TEST(Plans, UpdateTensorsOnlyInStepsThatUseThem) {
  RunDescription run = TestRun("probe:4,3", Mode::kReplicated, 2);
  run.usage = {{.tensor = 1, .rank = 0, .steps = StepUse::kOdd}};
  const auto updated = [&run](int64_t step) {
    std::vector<int32_t> tensors;
    for (const UpdateRange& update : PlanOf(run, 1, step).updates) {
      tensors.push_back(update.tensor);
      EXPECT_EQ(update.advance, 1);
      EXPECT_EQ(update.counter_of, update.tensor);
    }
    return tensors;
  };
  EXPECT_THAT(updated(0), ElementsAre(0));
  EXPECT_THAT(updated(1), ElementsAre(1, 0));
}

TEST(CanPlan, RefusesUsageOfALayer) {
  RunDescription run = Layers(2, Mode::kReplicated);
  run.usage = {{.tensor = 1, .rank = 0}};
  const absl::Status status = CanPlan(run);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("usage of tensor 1"), HasSubstr("use a probe")));
}

TEST(CanPlan, AcceptsEveryModeInFloat32) {
  for (const RunDescription& run : InEveryMode(Layers(2, Mode::kReplicated))) {
    EXPECT_TRUE(CanPlan(run).ok()) << CanPlan(run);
  }
}

}  // namespace
}  // namespace shardproof
