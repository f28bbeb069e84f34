#include "trainer/engines/step_report.h"

#include <algorithm>
#include <vector>

#include "invariants/observation/padding_value.h"
#include "trainer/engines/plan_observer.h"
#include "trainer/model/model_compute.h"

namespace shardproof {
namespace {

// Calls fn(tensor) for every run of elements whose updates are this rank's.
template <typename Fn>
void ForEachOwnTensor(const Placement& placement, Rank rank, Fn fn) {
  for (size_t index = 0; index < placement.sets.size(); ++index) {
    const TensorSet& set = placement.sets[index];
    if (set.owner >= 0 && set.owner != rank.value) continue;
    for (const Segment& segment : set.layout.shard(ShardOf(set, rank))) {
      if (segment.tensor < 0) continue;
      if (placement.moment_set[segment.tensor] == static_cast<int32_t>(index)) fn(segment.tensor);
    }
  }
}

}  // namespace

RankState StateOfRank(const RunDescription& run, const Placement& placement,
                      absl::Span<const SetHome> homes, Rank rank, const StateBytes& bytes,
                      const std::function<const float*(int32_t buffer)>& values) {
  RankState state;
  state.ranks = {rank.value, 1, 1};
  state.bytes = bytes;
  for (StateClass cls : kStateClasses) {
    ForEachStateSegment(placement, homes, rank, cls,
                        [&](int32_t buffer, int64_t offset, const Segment& segment) {
                          state.segments.push_back({cls,
                                                    segment.tensor,
                                                    {segment.first, segment.count},
                                                    buffer,
                                                    offset,
                                                    values(buffer) + offset});
                        });
  }
  std::vector<bool> has_state(run.model.tensors.size(), false);
  ForEachOwnTensor(placement, rank, [&](int32_t tensor) {
    if (!has_state[tensor]) state.steps.push_back({tensor, 0});
    has_state[tensor] = true;
  });
  return state;
}

void FillInitialState(const RunDescription& run, const Placement& placement, const StepPlan& plan,
                      const std::function<float*(int32_t buffer)>& values) {
  for (StateClass state : kStateClasses) {
    if (state == StateClass::kReducedGradient) continue;
    ForEachStateSegment(
        placement, plan.homes, plan.rank, state,
        [&](int32_t buffer, int64_t offset, const Segment& segment) {
          float* const to = values(buffer) + offset;
          if (segment.tensor < 0) {
            std::fill_n(to, segment.count, PaddingValue(buffer));
          } else if (state == StateClass::kParameter) {
            FillInitialValues(run, segment.tensor, {segment.first, segment.count}, to);
          } else {
            std::fill_n(to, segment.count, 0.0f);
          }
        });
  }
}

void ShowCalls(absl::Span<const LedgerEntry> calls, absl::Span<const int32_t> place,
               RankEvents& events) {
  for (size_t op = 0; op < events.events.size(); ++op) {
    Event& event = events.events[op];
    if (event.kind != EventKind::kCollective) continue;
    event.completed = place[op] >= 0 && static_cast<size_t>(place[op]) < calls.size();
    if (!event.completed) continue;
    const LedgerEntry& call = calls[place[op]];
    event.collective = call.kind;
    event.dtype = call.dtype;
    event.elements = call.elements;
    event.group = call.group;
    if (call.kind == CollectiveKind::kBroadcast) event.root = call.root.value;
  }
}

bool ComputesLoss(const StepPlan& plan) {
  return std::any_of(plan.ops.begin(), plan.ops.end(), [](const Op& op) {
    return op.kind == OpKind::kBackward || op.kind == OpKind::kLoss;
  });
}

}  // namespace shardproof
