#include "trainer/plan/planner.h"

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

StepPlan PlanStep(const RunDescription& run, const Placement& placement, Rank rank,
                  int64_t step_index) {
  PlanBuilder step(run, placement, rank, step_index);
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

StepPlan PlanState(const RunDescription& run, const Placement& placement, Rank rank) {
  return PlanBuilder(run, placement, rank, /*step=*/0).Take();
}

}  // namespace shardproof
