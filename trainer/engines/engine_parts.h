// EngineParts: what an engine executes, open to whoever wants to execute something else.
//
// PlannedParts gives the trainer itself. A seeded fault is an edit of what is in here: the
// placement before plans are made from it, the plans as they are asked for, or a decorator
// around each rank's communicator. Engines know nothing of it.
#ifndef TRAINER_ENGINES_ENGINE_PARTS_H_
#define TRAINER_ENGINES_ENGINE_PARTS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "collectives/communicator.h"
#include "invariants/run_description/run_description.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

// One rank's plan of a step. Buffers (ids, sizes, roles) and homes must be those of the rank's
// other steps.
using PlanSource = std::function<StepPlan(const RunDescription& run, const Placement& placement,
                                          Rank rank, int64_t step)>;

// Gives what a rank talks to in place of `inner`, to which it may forward
// (collectives/forwarding_communicator.h) and which outlives it. The ledger lies outside: it
// records what the rank asked for. Only engines that move floats call it.
using CommunicatorDecorator =
    std::function<std::unique_ptr<Communicator>(Rank rank, Communicator* inner)>;

struct EngineParts {
  Placement placement;
  PlanSource plan;
  // False: all steps from step 1 on have the same plan, so that engines ask for two only.
  bool plan_varies_by_step = false;
  CommunicatorDecorator decorate;  // may be empty
};

// MakePlacement and PlanStep.
EngineParts PlannedParts(const RunDescription& run);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_ENGINE_PARTS_H_
