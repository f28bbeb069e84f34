// Class D: one missing edge between what one stream still uses and another one reuses.
#include <algorithm>
#include <vector>

#include "property_tests/faults/families.h"
#include "property_tests/faults/fault_tools.h"

namespace shardproof {
namespace {

bool OnCompute(const DraftOp& op) { return op.op.stream == StreamId::kCompute; }
bool IsBackward(const DraftOp& op) { return IsKind(op, OpKind::kBackward); }
bool IsUpdate(const DraftOp& op) { return IsKind(op, OpKind::kOptimizerUpdate); }

// Operations that pass lose all their waits.
DraftEdit WithoutWaits(std::function<bool(const PlanContext&, const DraftOp&)> test) {
  return [test = std::move(test)](const PlanContext& context, PlanDraft& draft) {
    for (DraftOp& item : draft.ops) {
      if (test(context, item)) item.waits.clear();
    }
  };
}

// Buckets take turns in the buffers of the first two, and the release of the second one does not
// wait until it was sent.
void SwapTwoBuffersWithoutEvent(const PlanContext&, PlanDraft& draft) {
  std::vector<int32_t> buffers;
  for (size_t set = 0; set < draft.frame.homes.size(); ++set) {
    const int32_t full = UnreducedBuffer(draft, static_cast<int32_t>(set));
    if (full < 0) continue;
    if (buffers.size() >= 2) {
      for (DraftOp& item : draft.ops) ReplaceBuffer(item, full, buffers[buffers.size() % 2]);
    }
    buffers.push_back(full);
  }
  DeriveWaits(draft);
  for (DraftOp& item : draft.ops) {
    if (HasAccess(item, buffers[1], AccessKind::kFree)) item.waits.clear();
  }
}

void WaitForFirstProducer(const PlanContext&, PlanDraft& draft) {
  const int32_t first = draft.ops[Find(draft, IsBackward)].id;
  for (DraftOp& item : draft.ops) {
    if (IsReduction(item)) item.waits = {first};
  }
}

// The tied weight's unit is reduced after its first backward pass; the second one adds to it all
// the same.
void ReduceBesideSecondPass(const PlanContext&, PlanDraft& draft) {
  const int32_t full = UnreducedBuffer(draft, 0);
  const auto writes = [&](const DraftOp& op) {
    return IsBackward(op) && HasAccess(op, full, AccessKind::kWrite);
  };
  const size_t first_pass = Find(draft, writes);
  const size_t reduction =
      Find(draft, [](const DraftOp& op) { return IsReduction(op) && op.op.set == 0; });
  Move(draft, reduction, first_pass + 1);
  DeriveWaits(draft);
  for (size_t at = first_pass + 1; at < draft.ops.size(); ++at) {
    if (writes(draft.ops[at])) draft.ops[at].waits.clear();
  }
}

// The sum of a temporary into the gradient still reads it when it is released: only its arrival
// was waited for.
void ReleaseBeforeAccumulated(const PlanContext&, PlanDraft& draft) {
  for (size_t at = 0; at < draft.ops.size(); ++at) {
    if (!IsKind(draft.ops[at], OpKind::kAccumulate)) continue;
    const int32_t temporary = draft.ops[at].op.send.buffer;
    const int32_t arrival = draft.ops[at - 1].id;
    const size_t release = Find(
        draft, [&](const DraftOp& op) { return HasAccess(op, temporary, AccessKind::kFree); }, at);
    if (release < draft.ops.size()) draft.ops[release].waits = {arrival};
  }
}

// A second copy of each shard is made while the step begins, and gathers send that copy without
// waiting for it.
void GatherFromUnfinishedCopy(const PlanContext& context, PlanDraft& draft) {
  for (size_t set = 0; set < context.placement.sets.size(); ++set) {
    const int32_t shard = draft.frame.homes[set].parameter;
    const int64_t elements = draft.frame.buffers[shard].elements;
    const int32_t copy = AddBuffer(draft, {.role = BufferRole::kWorkspace, .elements = elements});
    draft.frame.live_before.push_back(copy);
    for (DraftOp& item : draft.ops) {
      if (IsUnshard(item)) ReplaceBuffer(item, shard, copy);
    }
    Insert(
        draft, 0,
        LocalCopy(context.rank, {shard, {0, elements}}, {copy, {0, elements}}, StreamId::kCompute));
  }
}

// One buffer stages both optimizers' weights, and the first one's gather clears all of it.
void ClearSecondStaging(const PlanContext& context, PlanDraft& draft) {
  const size_t second = FindEnd(draft, IsUpdate);
  const int32_t set = draft.ops[second - 1].op.set;
  const int32_t parameters = draft.frame.homes[set].parameter;
  DraftOp clear;
  clear.op.kind = OpKind::kScale;
  clear.op.phase = Phase::kOptimizer;
  clear.op.set = set;
  clear.op.bucket = context.placement.sets[set].bucket;
  clear.op.scale = 0;
  clear.op.recv = {parameters, {0, draft.frame.buffers[parameters].elements}};
  AccessOperands(clear, context.rank);
  Insert(draft, second, clear);
  DeriveWaits(draft);
}

std::vector<Fault> BucketRaces() {
  return {
      {.row = "D1",
       .wrong = "Computation does not wait until a bucket was sent before it releases and "
                "refills it.",
       .run = "model=probe:8,8,8;mode=zero2;world_size=2;bucket_cap_bytes=32;"
              "num_micro_batches=2;steps=1",
       .killers = {"ordering"},
       .apply = EditPlans(WithoutWaits([](const PlanContext&, const DraftOp& op) {
         return OnCompute(op) && op.op.phase == Phase::kBackward;
       }))},
      {.row = "D2",
       .wrong = "Of the two buffers in which buckets take turns, the swap back to one lacks its "
                "event.",
       .run = "model=probe:8,8,8,8,8;mode=zero2;world_size=2;bucket_cap_bytes=32;steps=3",
       .killers = {"ordering"},
       .apply = EditPlans(SwapTwoBuffersWithoutEvent)},
      {.row = "D4",
       .wrong = "Two computations fill a bucket, and its reduction waits for the first of them.",
       .run = "model=probe:4,4;mode=zero2;world_size=2;steps=1",
       .killers = {"ordering"},
       .apply = EditPlans(WaitForFirstProducer)},
      {.row = "D5",
       .wrong = "The update does not wait for the reduction that runs beside it, so equal runs "
                "differ.",
       .run = "model=probe:4,4;mode=zero2;world_size=2;steps=3",
       .killers = {"ordering"},
       .apply = EditPlans(
           WithoutWaits([](const PlanContext&, const DraftOp& op) { return IsUpdate(op); }))},
      {.row = "D16",
       .wrong = "Reductions do not wait for the computation of what they send; whatever makes "
                "ranks wait elsewhere hides it.",
       .run = "model=probe:8,8;mode=zero2;world_size=4;steps=2",
       .killers = {"ordering"},
       .apply = EditPlans(
           WithoutWaits([](const PlanContext&, const DraftOp& op) { return IsReduction(op); }))},
      {.row = "D17",
       .wrong = "On one rank, in one step, the update runs before its gradient has arrived.",
       .run = "model=probe:9,5;mode=full_shard;world_size=4;steps=3;seed=20",
       .killers = {"ordering"},
       .apply = EditPlans(WithoutWaits([](const PlanContext& context, const DraftOp& op) {
         return IsUpdate(op) && context.step == 1 && context.rank.value == 2;
       }))},
  };
}

}  // namespace

std::vector<Fault> OrderingFaults() {
  std::vector<Fault> faults = {
      {.row = "D7",
       .wrong = "A module's gradient is reduced while its second use in backward still adds to "
                "it.",
       .run = "model=probe:6,3,6;ties=t2:t0;mode=full_shard;world_size=2;steps=1",
       .killers = {"ordering"},
       .apply = EditPlans(ReduceBesideSecondPass)},
      {.row = "D8",
       .wrong = "Only rank 0's gather is ordered after the work that produced what it sends; the "
                "other ranks' are not.",
       .run = "model=probe:6;mode=zero1_allgather;world_size=2;steps=1",
       .killers = {"ordering"},
       .apply = EditPlans(WithoutWaits([](const PlanContext& context, const DraftOp& op) {
         return context.rank.value != 0 && IsCollective(op, CollectiveKind::kAllGather);
       }))},
      {.row = "D10",
       .wrong = "The memory of a reduced part is given back while its sum into the gradient still "
                "reads it.",
       .run = "model=probe:6,6,6;mode=full_shard;world_size=2;num_micro_batches=3;steps=1",
       .killers = {"ordering"},
       .apply = EditPlans(ReleaseBeforeAccumulated)},
      {.row = "D11",
       .wrong = "Shards have a second copy, made beside what follows, and the first gathers send "
                "it before it is complete.",
       .run = "model=mlp:4,3,2;mode=full_shard;world_size=2;micro_batch_size=2;steps=3",
       .killers = {"ordering"},
       .apply = EditPlans(GatherFromUnfinishedCopy)},
      {.row = "D13",
       .wrong = "Two optimizers stage their weights in one buffer, and the first one's gather sets "
                "the second one's to zero before they were sent.",
       .run = "model=probe:4,4;mode=zero1_allgather;world_size=2;bucket_cap_bytes=16;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(ClearSecondStaging)},
      {.row = "D14",
       .wrong = "The full parameters are handed out before their gather has ended.",
       .run = "model=probe:6,4;mode=full_shard;world_size=2;steps=1",
       .killers = {"ordering"},
       .apply = EditPlans(WithoutWaits(
           [](const PlanContext&, const DraftOp& op) { return IsKind(op, OpKind::kForward); }))},
  };
  for (Fault& fault : BucketRaces()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace shardproof
