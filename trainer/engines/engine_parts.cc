#include "trainer/engines/engine_parts.h"

#include "trainer/plan/planner.h"

namespace shardproof {

EngineParts PlannedParts(const RunDescription& run) {
  return {.placement = MakePlacement(run),
          .plan = PlanStep,
          .plan_varies_by_step = !run.usage.empty(),
          .decorate = nullptr};
}

}  // namespace shardproof
