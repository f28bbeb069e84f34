// PlanStep: the definition of each mode, as a pure function to a StepPlan.
//
// The planners are in bucket_planners.cc (replicated, zero1_*, zero2) and unit_planners.cc
// (shard_grad_op, full_shard). Their rules, with the public sources, are DESIGN.md's table of
// modes and its recorded issue orders.
#ifndef TRAINER_PLAN_PLANNER_H_
#define TRAINER_PLAN_PLANNER_H_

#include "absl/status/status.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

// Unimplemented, with the reason and what to use instead, for what no planner supports yet:
// hybrid groups, mixed precision, offload, usage rules of a model whose layers feed one another.
// Ok: PlanStep can plan the run.
absl::Status CanPlan(const RunDescription& run);

// One rank's step. In step 0 no gradients of an earlier step are live; which tensors a step
// updates depends on the run's usage rules. Without those, all later steps have the plan of step
// 1. Needs a valid run that CanPlan accepts, and its own placement.
StepPlan PlanStep(const RunDescription& run, const Placement& placement, Rank rank, int64_t step);

// The same without operations: buffers and homes of a rank.
StepPlan PlanState(const RunDescription& run, const Placement& placement, Rank rank);

}  // namespace shardproof

#endif  // TRAINER_PLAN_PLANNER_H_
