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
    case OpKind::kScaleBy:
    case OpKind::kAccumulate:
    case OpKind::kCopy:
    case OpKind::kLoss:
    case OpKind::kNorm:
    case OpKind::kClipCoefficient:
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

namespace {

constexpr int64_t kBytes = 4;  // float32 throughout; CanPlan refuses other dtypes

// One rank's part of one set.
struct OwnElements {
  int64_t all = 0;
  int64_t trainable = 0;
  int64_t tensors_with_moments = 0;
};

OwnElements CountOwn(const Placement& placement, const TensorSet& set, int32_t shard) {
  const bool all_trainable = set.trainable_elements == set.tensor_elements;
  OwnElements own;
  int32_t counted = -1;
  for (const Segment& segment : set.layout.shard(shard)) {
    if (segment.tensor < 0) continue;
    own.all += segment.count;
    if (!all_trainable && placement.moment_set[segment.tensor] < 0) continue;
    own.trainable += segment.count;
    own.tensors_with_moments += segment.tensor != counted;
    counted = segment.tensor;
  }
  return own;
}

void AddSet(const Placement& placement, const TensorSet& set, Rank rank, const OwnElements& own,
            StateBytes& bytes) {
  const auto add = [&](Keeps keeps, int64_t whole, int64_t part, int64_t& line) {
    if (keeps == Keeps::kNothing) return;
    const bool all = keeps == Keeps::kWhole;
    const int64_t held = all ? set.layout.padded_elements() : set.layout.shard_elements;
    const int64_t logical = all ? whole : part;
    line += logical * kBytes;
    bytes.padding += (held - logical) * kBytes;
  };
  add(set.parameter, set.tensor_elements, own.all, bytes.parameter);
  add(set.gradient, set.trainable_elements, own.trainable, bytes.gradient);
  if (!KeepsMoments(set, rank)) return;
  for (int32_t moment = 0; moment < placement.moments_per_element; ++moment) {
    add(Keeps::kShard, 0, own.trainable, bytes.optimizer);
  }
  if (placement.counts_steps) bytes.scalar += own.tensors_with_moments * kBytes;
}

}  // namespace

std::vector<StateBytes> BytesOfRanks(const Placement& placement, int32_t ranks) {
  std::vector<StateBytes> bytes(ranks);
  // Set by set, not rank by rank: a layout is read once, while it is in cache.
  for (const TensorSet& set : placement.sets) {
    OwnElements own;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      if (rank == 0 || set.layout.shards > 1) {
        own = CountOwn(placement, set, ShardOf(set, Rank{rank}));
      }
      AddSet(placement, set, Rank{rank}, own, bytes[rank]);
    }
  }
  return bytes;
}

}  // namespace shardproof
