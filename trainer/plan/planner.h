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

// The same where it is known whether reduced gradients of an earlier step are still there: they
// are not after a step that was cut short, or once they were dropped.
StepPlan PlanStepAfter(const RunDescription& run, const Placement& placement, Rank rank,
                       int64_t step, bool gradients_live);

// What an idle trainer does beside training steps. All have the buffers of PlanStep and leave
// every unit sharded, unless they say otherwise.

// Forward and loss of all micro-batches.
StepPlan PlanForwardOnly(const RunDescription& run, const Placement& placement, Rank rank,
                         bool gradients_live);
// Frees the reduced gradients.
StepPlan PlanDropGradients(const RunDescription& run, const Placement& placement, Rank rank,
                           bool gradients_live);
// Unit modes: gathers all units and leaves them unsharded. Others: nothing, their parameters
// are whole.
StepPlan PlanOpenView(const RunDescription& run, const Placement& placement, Rank rank,
                      bool gradients_live);
// Ends such a view. With `write_back` the rank's own part of what the view holds now becomes its
// shard.
StepPlan PlanCloseView(const RunDescription& run, const Placement& placement, Rank rank,
                       bool gradients_live, bool write_back);
// The first `ops` operations of a plan, then the release of all that is no state between steps,
// reduced gradients included. Cut before the first update, the step can be repeated.
StepPlan CutShort(StepPlan plan, size_t ops);

// The same without operations: buffers and homes of a rank.
StepPlan PlanState(const RunDescription& run, const Placement& placement, Rank rank);

}  // namespace shardproof

#endif  // TRAINER_PLAN_PLANNER_H_
