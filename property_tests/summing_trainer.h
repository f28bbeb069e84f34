// A trainer with a fault, for tests of what happens when a case fails.
#ifndef PROPERTY_TESTS_SUMMING_TRAINER_H_
#define PROPERTY_TESTS_SUMMING_TRAINER_H_

#include <utility>

#include "trainer/engines/engine_parts.h"

namespace shardproof {

// Never divides by the number of ranks and micro-batches: gradients are sums, not means.
inline EngineParts SummingParts(const RunDescription& run) {
  EngineParts parts = PlannedParts(run);
  parts.plan = [planned = std::move(parts.plan)](
                   const RunDescription& of, const Placement& placement, Rank rank, int64_t step) {
    StepPlan plan = planned(of, placement, rank, step);
    for (Op& op : plan.ops) {
      if (op.kind == OpKind::kScale) op.scale = 1;
    }
    return plan;
  };
  return parts;
}

}  // namespace shardproof

#endif  // PROPERTY_TESTS_SUMMING_TRAINER_H_
