#include "trainer/plan/planner.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/plan/mode_planners.h"

namespace shardproof {

absl::Status CanPlan(const RunDescription& run) {
  const ShardingDescription& sharding = run.sharding;
  const auto refuse = [](auto... parts) {
    return absl::UnimplementedError(absl::StrCat("the trainer cannot run ", parts...));
  };
  if (ShardCount(sharding) != sharding.world_size.value) {
    return refuse("shard_group_size=", sharding.shard_group_size, " on ", sharding.world_size.value,
                  " ranks yet: use 0 or the world size");
  }
  const MixedPrecision& precision = sharding.precision;
  for (Dtype dtype : {precision.parameter, precision.reduce, precision.master, precision.moment}) {
    if (dtype != Dtype::kFloat32) {
      return refuse("dtype ", Name(dtype),
                    " yet: use float32 for parameter, reduce, master "
                    "and moment");
    }
  }
  for (MemoryTier tier : {sharding.parameter_tier, sharding.optimizer_tier}) {
    if (tier != MemoryTier::kDevice) {
      return refuse("state in the ", Name(tier), " tier yet: use device");
    }
  }
  if (!run.usage.empty() && run.model.kind == ModelKind::kMlp) {
    return refuse("usage of tensor ", run.usage[0].tensor,
                  ": the layers of an mlp feed one another, so none can be left out; use a probe");
  }
  return absl::OkStatus();
}

StepPlan PlanStep(const RunDescription& run, const Placement& placement, Rank rank, int64_t step) {
  return PlanStepAfter(run, placement, rank, step, /*gradients_live=*/step > 0);
}

StepPlan PlanStepAfter(const RunDescription& run, const Placement& placement, Rank rank,
                       int64_t step_index, bool gradients_live) {
  PlanBuilder step(run, placement, rank, step_index, gradients_live);
  switch (run.sharding.mode) {
    case Mode::kReplicated:
      PlanReplicated(step);
      break;
    case Mode::kZero1Broadcast:
      PlanZero1Broadcast(step);
      break;
    case Mode::kZero1AllGather:
      PlanZero1AllGather(step);
      break;
    case Mode::kZero2:
      PlanZero2(step);
      break;
    case Mode::kShardGradOp:
      PlanShardGradOp(step);
      break;
    case Mode::kFullShard:
      PlanFullShard(step);
      break;
  }
  return step.Take();
}

StepPlan PlanForwardOnly(const RunDescription& run, const Placement& placement, Rank rank,
                         bool gradients_live) {
  PlanBuilder step(run, placement, rank, /*step=*/0, gradients_live);
  if (ShardsUnits(run.sharding.mode)) {
    PlanUnitForward(step);
  } else {
    PlanBucketForward(step);
  }
  return step.Take();
}

StepPlan PlanDropGradients(const RunDescription& run, const Placement& placement, Rank rank,
                           bool gradients_live) {
  PlanBuilder step(run, placement, rank, /*step=*/0, gradients_live);
  DeclareTransients(step);
  step.ReleaseGradients();
  return step.Take();
}

StepPlan PlanOpenView(const RunDescription& run, const Placement& placement, Rank rank,
                      bool gradients_live) {
  PlanBuilder step(run, placement, rank, /*step=*/0, gradients_live);
  if (ShardsUnits(run.sharding.mode)) {
    PlanUnitViewOpening(step);
  } else {
    DeclareTransients(step);
  }
  return step.Take();
}

StepPlan PlanCloseView(const RunDescription& run, const Placement& placement, Rank rank,
                       bool gradients_live, bool write_back) {
  PlanBuilder step(run, placement, rank, /*step=*/0, gradients_live);
  if (ShardsUnits(run.sharding.mode)) {
    PlanUnitViewClosing(step, write_back);
  } else {
    DeclareTransients(step);
  }
  return step.Take();
}

namespace {

bool StaysBetweenSteps(BufferRole role) {
  return role == BufferRole::kParameter || role == BufferRole::kOptimizerState ||
         role == BufferRole::kScalar;
}

}  // namespace

StepPlan CutShort(StepPlan plan, size_t ops) {
  plan.ops.resize(std::min(ops, plan.ops.size()));
  std::vector<bool> live(plan.buffers.size(), false);
  for (int32_t buffer : plan.live_before) live[buffer] = true;
  Op release;
  release.first_wait = static_cast<int32_t>(plan.waits.size());
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    for (const PlanAccess& access : plan.AccessesOf(plan.ops[op])) {
      if (access.kind == AccessKind::kAllocate) live[access.buffer] = true;
      if (access.kind == AccessKind::kFree) live[access.buffer] = false;
    }
    // One wait suffices: the last operation of the other stream.
    if (plan.ops[op].stream == release.stream) continue;
    plan.waits.resize(release.first_wait);
    plan.waits.push_back(static_cast<int32_t>(op));
    release.wait_count = 1;
  }
  release.first_access = static_cast<int32_t>(plan.accesses.size());
  for (size_t buffer = 0; buffer < live.size(); ++buffer) {
    const BufferSpec& spec = plan.buffers[buffer];
    if (!live[buffer] || StaysBetweenSteps(spec.role)) continue;
    plan.accesses.push_back({static_cast<int32_t>(buffer), AccessKind::kFree, {0, spec.elements}});
    ++release.access_count;
  }
  plan.ops.push_back(release);
  return plan;
}

StepPlan PlanState(const RunDescription& run, const Placement& placement, Rank rank) {
  return PlanBuilder(run, placement, rank, /*step=*/0, /*gradients_live=*/false).Take();
}

}  // namespace shardproof
