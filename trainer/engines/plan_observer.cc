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

StateBytes BytesOfPlan(const Placement& placement, const StepPlan& plan) {
  StateBytes bytes;
  ForEachStateSegment(placement, plan,
                      [&](StateClass state, int32_t buffer, int64_t, const Segment& segment) {
                        const int64_t size = segment.count * DtypeBytes(plan.buffers[buffer].dtype);
                        if (segment.tensor < 0) {
                          bytes.padding += size;
                        } else if (state == StateClass::kParameter) {
                          bytes.parameter += size;
                        } else if (state == StateClass::kReducedGradient) {
                          bytes.gradient += size;
                        } else {
                          bytes.optimizer += size;
                        }
                      });
  if (plan.scalar_buffer >= 0) bytes.scalar = plan.buffers[plan.scalar_buffer].elements * 4;
  return bytes;
}

}  // namespace shardproof
