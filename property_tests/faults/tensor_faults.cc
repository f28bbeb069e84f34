// Classes I and J: tied and reused tensors, frozen ones, and those used only sometimes.
#include <algorithm>
#include <utility>
#include <vector>

#include "property_tests/faults/families.h"
#include "property_tests/faults/fault_tools.h"

namespace shardproof {
namespace {

bool IsBackward(const DraftOp& op) { return IsKind(op, OpKind::kBackward); }

void DropUpdatesOf(int32_t tensor, PlanDraft& draft) {
  for (DraftOp& item : draft.ops) {
    if (!IsKind(item, OpKind::kOptimizerUpdate)) continue;
    item.updates.erase(
        std::remove_if(item.updates.begin(), item.updates.end(),
                       [tensor](const UpdateRange& update) { return update.tensor == tensor; }),
        item.updates.end());
  }
}

// The reduction of tensor 0's set follows the first backward that writes to it; well ordered.
void ReduceAfterFirstUse(const PlanContext& context, PlanDraft& draft) {
  const int32_t set = context.placement.gradient_set[0];
  const int32_t full = UnreducedBuffer(draft, set);
  const size_t first_use = Find(draft, [&](const DraftOp& op) {
    return IsBackward(op) && HasAccess(op, full, AccessKind::kWrite);
  });
  const size_t reduction =
      Find(draft, [set](const DraftOp& op) { return IsReduction(op) && op.op.set == set; });
  Move(draft, reduction, first_use + 1);
  DeriveWaits(draft);
}

// A copy of the tied weight is gathered once and never again; the second stage that uses the
// weight reads the copy.
void ReadAliasOfItsOwn(const PlanContext& context, PlanDraft& draft) {
  const int32_t full = UnshardedBuffer(draft, 0);
  const int32_t alias = AddBuffer(draft, draft.frame.buffers[full]);
  for (DraftOp& item : draft.ops) {
    if (item.op.unit == 2 && (IsBackward(item) || IsKind(item, OpKind::kForward))) {
      ReplaceBuffer(item, full, alias);
    }
  }
  if (context.step > 0) {
    draft.frame.live_before.push_back(alias);
    return;
  }
  DraftOp gather = draft.ops[Find(draft, IsUnshard)];
  ReplaceBuffer(gather, full, alias);
  Insert(draft, 0, gather);
  DeriveWaits(draft);
}

// The alias has a gradient buffer too, and the unit waits in vain for both to be ready.
void GiveAliasItsOwnGradient(const PlanContext&, PlanDraft& draft) {
  const int32_t full = UnreducedBuffer(draft, 0);
  const int32_t alias = AddBuffer(draft, draft.frame.buffers[full]);
  const ElementRange all = {0, draft.frame.buffers[full].elements};
  bool allocated = false;
  for (DraftOp& item : draft.ops) {
    if (IsBackward(item) && item.op.unit == 2) ReplaceBuffer(item, full, alias);
    if (IsBackward(item) && item.op.unit == 0 && !allocated) {
      item.accesses.insert(item.accesses.begin(), {full, AccessKind::kAllocate, all});
      allocated = true;
    }
    if (HasAccess(item, full, AccessKind::kFree)) {
      item.accesses.push_back({alias, AccessKind::kFree, all});
    }
  }
  EraseIf(draft, [](const DraftOp& op) { return IsReduction(op) && op.op.unit == 0; });
  DeriveWaits(draft);
}

// Unit 2 uses a tensor of unit 0 and flattens it once more.
void FlattenIntoBothUnits(const RunDescription&, Placement& placement) {
  TensorSet again = placement.sets[0];
  again.unit = placement.sets[2].unit;
  placement.sets[2] = again;
}

void ReduceOnEveryPass(const PlanContext&, PlanDraft& draft) {
  const int32_t full = UnreducedBuffer(draft, 0);
  const auto writes = [&](const DraftOp& op) {
    return IsBackward(op) && HasAccess(op, full, AccessKind::kWrite);
  };
  const auto reduces = [](const DraftOp& op) { return IsReduction(op) && op.op.set == 0; };
  DraftOp& last = draft.ops[Find(draft, reduces)];
  const DraftOp first = last;
  RemoveAccesses(last, last.op.recv.buffer, AccessKind::kAllocate);
  DraftOp again = last;
  bool allocates = true;
  // The last pass has its reduction.
  for (size_t at = Find(draft, writes); at + 1 < FindEnd(draft, writes);
       at = Find(draft, writes, at + 1)) {
    Insert(draft, at + 1, allocates ? first : again);
    allocates = false;
  }
  DeriveWaits(draft);
}

// On rank 1 backward runs the other way round, and buckets fill in the order of arrival: what
// the ranks call bucket 0 holds different tensors.
void FillBucketsInOtherOrder(const PlanContext& context, PlanDraft& draft) {
  if (context.rank.value != 1) return;
  const size_t upper = Find(draft, IsBackward);
  const size_t lower = Find(draft, IsBackward, upper + 1);
  Move(draft, lower, upper);
  std::vector<DraftOp*> sums;
  std::vector<DraftOp*> scales;
  for (DraftOp& item : draft.ops) {
    if (IsReduction(item)) sums.push_back(&item);
    if (IsKind(item, OpKind::kScale)) scales.push_back(&item);
  }
  for (std::vector<DraftOp*>* pair : {&sums, &scales}) {
    std::swap((*pair)[0]->op.send, (*pair)[1]->op.send);
    std::swap((*pair)[0]->op.recv, (*pair)[1]->op.recv);
    std::swap((*pair)[0]->accesses, (*pair)[1]->accesses);
  }
  DeriveWaits(draft);
}

std::vector<Fault> TiedFaults() {
  return {
      {.row = "I1",
       .wrong = "The last rank's rows of a tied weight, which its rows do not divide, are never "
                "updated.",
       .run = "model=probe:7x4,5,7x4;ties=t2:t0;mode=full_shard;layout=rows;world_size=3;steps=3",
       .killers = {"numeric_equivalence", "liveness", "provenance"},
       .apply = EditPlans([](const PlanContext& context, PlanDraft& draft) {
         if (context.rank.value + 1 == context.run.sharding.world_size.value) {
           DropUpdatesOf(0, draft);
         }
       })},
      {.row = "I2",
       .wrong = "A module that backward passes twice is reduced after the first pass, and what "
                "the second one adds is lost.",
       .run = "model=probe:6,3,6;ties=t2:t0;mode=zero2;world_size=2;bucket_cap_bytes=4;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(ReduceAfterFirstUse)},
      {.row = "I4",
       .wrong = "The second name of a tied weight has values of its own, which no update reaches.",
       .run = "model=probe:6,3,6;ties=t2:t0;mode=full_shard;world_size=2;steps=3",
       .killers = {"unshard_lifecycle", "provenance"},
       .apply = EditPlans(ReadAliasOfItsOwn)},
      {.row = "I5",
       .wrong = "A tied weight gets two gradient buffers, and its unit, which counts both, is "
                "never reduced.",
       .run = "model=probe:6,3,6;ties=t2:t0;mode=full_shard;world_size=2;steps=2",
       .killers = {"collective_ledger", "peak_memory", "provenance"},
       .apply = EditPlans(GiveAliasItsOwnGradient)},
      {.row = "I7",
       .wrong = "A weight that two units share is flattened into both.",
       .run = "model=probe:4,6,4;ties=t2:t0;mode=full_shard;world_size=2;steps=1",
       .killers = {"padding", "aggregate_factors", "provenance"},
       .apply = EditPlacement(FlattenIntoBothUnits)},
      {.row = "I8",
       .wrong = "The hook of a module used three times reduces its gradient on every pass.",
       .run = "model=probe:6,3,6,4,6;ties=t2:t0,t4:t0;mode=full_shard;world_size=2;steps=1",
       .killers = {"collective_ledger"},
       .apply = EditPlans(ReduceOnEveryPass)},
  };
}

std::vector<Fault> UsageFaults() {
  return {
      {.row = "J4",
       .wrong = "Frozen weights are in the map of gradients as well, so a gradient is written "
                "where padding should be.",
       .run = "model=probe:4,4;units=0-1;frozen=0;mode=full_shard;world_size=2;steps=1",
       .killers = {"padding", "provenance"},
       .apply = EditPlacement([](const RunDescription&, Placement& placement) {
         placement.gradient_set[0] = placement.parameter_set[0];
       })},
      {.row = "J7",
       .wrong = "A layer that only rank 0 used has a gradient on rank 0 only, so the other ranks "
                "do not update their shards of it.",
       .run = "model=probe:4,6;mode=full_shard;world_size=2;usage=1@rank:0;steps=1",
       .killers = {"numeric_equivalence", "liveness", "provenance"},
       .apply = EditPlans([](const PlanContext& context, PlanDraft& draft) {
         if (context.rank.value == 1) DropUpdatesOf(1, draft);
       })},
      {.row = "J8",
       .wrong = "Gradients fill the buckets in the order of their arrival, which differs on rank "
                "1: a sum mixes two tensors.",
       .run = "model=probe:4,4;mode=zero1_allgather;world_size=2;bucket_cap_bytes=16;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(FillBucketsInOtherOrder)},
      {.row = "J10",
       .wrong = "Every tensor is updated in every step, also one that the step did not use.",
       .run = "model=probe:4,4;mode=zero1_allgather;world_size=2;"
              "usage=0@steps:even,1@steps:odd;steps=4",
       .killers = {"numeric_equivalence", "liveness", "provenance"},
       .apply = PlanAs([](RunDescription& run) { run.usage.clear(); })},
  };
}

}  // namespace

std::vector<Fault> TensorFaults() {
  std::vector<Fault> faults = TiedFaults();
  for (Fault& fault : UsageFaults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace shardproof
