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

// Logical and padding bytes of what each of the ranks keeps between steps.
std::vector<StateBytes> BytesOfRanks(const Placement& placement, int32_t ranks);

// The buffer in which a rank keeps this class of a set; -1: it keeps none.
int32_t BufferOf(StateClass state, const SetHome& home);

// Calls fn(buffer, offset in buffer, segment) for every run of elements of one class of one set
// that a rank with these homes keeps between steps. Frozen elements of gradients and moments
// come as padding, whose segment.first is its offset in the buffer.
template <typename Fn>
void ForEachSegmentOfSet(const Placement& placement, size_t index, const SetHome& home, Rank rank,
                         StateClass state, Fn fn) {
  const TensorSet& set = placement.sets[index];
  const int32_t buffer = BufferOf(state, home);
  if (buffer < 0) return;
  const bool whole = (state == StateClass::kParameter && set.parameter == Keeps::kWhole) ||
                     (state == StateClass::kReducedGradient && set.gradient == Keeps::kWhole);
  const int32_t own = ShardOf(set, rank);
  for (int32_t shard = whole ? 0 : own; shard < (whole ? set.layout.shards : own + 1); ++shard) {
    for (Segment segment : set.layout.shard(shard)) {
      const int64_t offset = whole ? set.layout.offset(segment) : segment.shard_offset;
      if (segment.tensor >= 0 && state != StateClass::kParameter &&
          placement.moment_set[segment.tensor] < 0) {
        segment.tensor = -1;
      }
      if (segment.tensor < 0) segment.first = offset;
      fn(buffer, offset, segment);
    }
  }
}

// The same over all sets.
template <typename Fn>
void ForEachStateSegment(const Placement& placement, absl::Span<const SetHome> homes, Rank rank,
                         StateClass state, Fn fn) {
  for (size_t index = 0; index < placement.sets.size(); ++index) {
    ForEachSegmentOfSet(placement, index, homes[index], rank, state, fn);
  }
}

inline constexpr StateClass kStateClasses[] = {StateClass::kParameter, StateClass::kReducedGradient,
                                               StateClass::kExpAvg, StateClass::kExpAvgSq};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PLAN_OBSERVER_H_
