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
  if (run.clip_grad_norm != 0) {
    return refuse("clip_grad_norm=", run.clip_grad_norm, " yet: use 0");
  }
  return absl::OkStatus();
}

StepPlan PlanStep(const RunDescription& run, const Placement& placement, Rank rank,
                  bool first_step) {
  PlanBuilder step(run, placement, rank, first_step);
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
  return PlanBuilder(run, placement, rank, /*first_step=*/true).Take();
}

}  // namespace shardproof
