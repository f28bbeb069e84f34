#include "trainer/engines/plan_observer.h"

namespace shardproof {
namespace {

EventKind EventKindOf(OpKind kind) {
  switch (kind) {
    case OpKind::kCollective:
      return EventKind::kCollective;
    case OpKind::kForward:
    case OpKind::kBackward:
      return EventKind::kCompute;
    case OpKind::kReshard:
      return EventKind::kReshard;
    case OpKind::kRelease:
      return EventKind::kRelease;
    case OpKind::kScale:
    case OpKind::kAccumulate:
      return EventKind::kLocal;
    case OpKind::kOptimizerUpdate:
      return EventKind::kOptimizer;
  }
  return EventKind::kLocal;
}

Event EventOf(const Op& op) {
  Event event;
  event.kind = EventKindOf(op.kind);
  event.phase = op.phase;
  event.stream = op.stream;
  event.collective = op.collective;
  event.purpose = op.purpose;
  event.dtype = op.dtype;
  event.group = op.group;
  event.root = op.root;
  event.elements = op.elements;
  event.micro_batch = op.micro_batch;
  event.unit = op.unit;
  event.bucket = op.bucket;
  event.tensor = op.tensor;
  event.stage = op.stage;
  event.stage_count = op.stage_count;
  event.first_wait = static_cast<uint32_t>(op.first_wait);
  event.wait_count = static_cast<uint32_t>(op.wait_count);
  event.first_access = static_cast<uint32_t>(op.first_access);
  event.access_count = static_cast<uint32_t>(op.access_count);
  return event;
}

}  // namespace

RankEvents EventsOfPlan(const StepPlan& plan, Group ranks) {
  RankEvents result;
  result.ranks = ranks;
  result.live_before = plan.live_before;
  result.waits = plan.waits;
  result.buffers.reserve(plan.buffers.size());
  for (const BufferSpec& spec : plan.buffers) {
    result.buffers.push_back(
        {spec.role, spec.dtype, spec.tier, spec.elements, spec.unit, spec.bucket});
  }
  result.accesses.reserve(plan.accesses.size());
  for (const PlanAccess& access : plan.accesses) {
    result.accesses.push_back({access.buffer, access.kind, access.range, /*version=*/-1});
  }
  result.events.reserve(plan.ops.size());
  for (const Op& op : plan.ops) result.events.push_back(EventOf(op));
  return result;
}

int32_t BufferOf(StateClass state, const SetHome& home) {
  switch (state) {
    case StateClass::kParameter:
      return home.parameter;
    case StateClass::kReducedGradient:
      return home.gradient;
    case StateClass::kExpAvg:
      return home.exp_avg;
    case StateClass::kExpAvgSq:
      return home.exp_avg_sq;
  }
  return -1;
}

StateBytes BytesOfRank(const Placement& placement, Rank rank) {
  constexpr int64_t kBytes = 4;  // float32 throughout; CanPlan refuses other dtypes
  StateBytes bytes;
  for (const TensorSet& set : placement.sets) {
    int64_t own_elements = 0;
    int64_t own_trainable = 0;
    const bool all_trainable = set.trainable_elements == set.tensor_elements;
    for (const Segment& segment : set.layout.shard(ShardOf(set, rank))) {
      if (segment.tensor < 0) continue;
      own_elements += segment.count;
      if (all_trainable || placement.moment_set[segment.tensor] >= 0) {
        own_trainable += segment.count;
      }
    }
    const auto add = [&](Keeps keeps, int64_t whole, int64_t own, int64_t& line) {
      if (keeps == Keeps::kNothing) return;
      const bool all = keeps == Keeps::kWhole;
      const int64_t held = all ? set.layout.padded_elements() : set.layout.shard_elements;
      const int64_t logical = all ? whole : own;
      line += logical * kBytes;
      bytes.padding += (held - logical) * kBytes;
    };
    add(set.parameter, set.tensor_elements, own_elements, bytes.parameter);
    add(set.gradient, set.trainable_elements, own_trainable, bytes.gradient);
    for (int32_t moment = 0; moment < placement.moments_per_element; ++moment) {
      add(KeepsMoments(set, rank) ? Keeps::kShard : Keeps::kNothing, 0, own_trainable,
          bytes.optimizer);
    }
  }
  if (placement.counts_steps) bytes.scalar = TensorsWithMoments(placement, rank) * kBytes;
  return bytes;
}

}  // namespace shardproof
