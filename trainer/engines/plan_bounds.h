// CheckPlan: whether a plan can be executed without leaving its buffers.
//
// Planners write such plans by construction. Engines check all the same, since what they are
// given may have been edited.
#ifndef TRAINER_ENGINES_PLAN_BOUNDS_H_
#define TRAINER_ENGINES_PLAN_BOUNDS_H_

#include "absl/status/status.h"
#include "invariants/run_description/run_description.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

// InvalidArgument that names rank, operation and what is out of bounds: a buffer or range that
// does not exist, slices outside their pools, a collective whose shape does not fit its ranges, a
// stage, tensor or set outside the model, a use of a set in a buffer too small for it.
absl::Status CheckPlan(const RunDescription& run, const Placement& placement, const StepPlan& plan);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PLAN_BOUNDS_H_
