// From a StepPlan to what an Observation shows of it. The engines call this for operations
// that they execute, so an event is there because its operation ran.
#ifndef TRAINER_ENGINES_PLAN_OBSERVER_H_
#define TRAINER_ENGINES_PLAN_OBSERVER_H_

#include "invariants/observation/observation.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

// The events of all operations in issue order, versions unknown. Event i is operation i.
RankEvents EventsOfPlan(const StepPlan& plan, Group ranks);

// Logical and padding bytes of what the rank keeps between steps.
StateBytes BytesOfPlan(const Placement& placement, const StepPlan& plan);

// Calls fn(StateClass, buffer, offset in buffer, segment) for every run of elements that the
// rank keeps between steps. Frozen elements of gradients and moments come as padding.
template <typename Fn>
void ForEachStateSegment(const Placement& placement, const StepPlan& plan, Fn fn) {
  for (size_t index = 0; index < placement.sets.size(); ++index) {
    const FlatLayout& layout = placement.sets[index].layout;
    const SetHome& home = plan.homes[index];
    const auto visit = [&](StateClass state, int32_t buffer, ElementRange part) {
      if (buffer < 0 || part.count == 0) return;
      const bool whole = part.count == layout.padded_elements();
      const int32_t first_rank = whole ? 0 : static_cast<int32_t>(part.first / part.count);
      const int32_t last_rank = whole ? layout.shards - 1 : first_rank;
      for (int32_t rank = first_rank; rank <= last_rank; ++rank) {
        for (Segment segment : layout.shard(rank)) {
          const int64_t offset = layout.offset(segment) - part.first;
          if (segment.tensor >= 0 && state != StateClass::kParameter &&
              placement.moment_set[segment.tensor] < 0) {
            segment.tensor = -1;
          }
          if (segment.tensor < 0) segment.first = offset;
          fn(state, buffer, offset, segment);
        }
      }
    };
    visit(StateClass::kParameter, home.parameter, home.parameter_part);
    visit(StateClass::kReducedGradient, home.gradient, home.gradient_part);
    visit(StateClass::kExpAvg, home.exp_avg, home.moment_part);
    visit(StateClass::kExpAvgSq, home.exp_avg_sq, home.moment_part);
  }
}

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PLAN_OBSERVER_H_
