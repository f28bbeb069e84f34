// Classes E and F: updates that never reach what the model uses, memory that lives too long or
// not long enough.
#include <vector>

#include "property_tests/faults/families.h"
#include "property_tests/faults/fault_tools.h"

namespace shardproof {
namespace {

bool IsUpdate(const DraftOp& op) { return IsKind(op, OpKind::kOptimizerUpdate); }

// A gather's output goes to memory that nobody looks at.
void GatherIntoScratch(const PlanContext&, PlanDraft& draft) {
  for (size_t at = 0; at < draft.ops.size(); ++at) {
    if (!IsCollective(draft.ops[at], CollectiveKind::kAllGather)) continue;
    const int64_t elements = draft.ops[at].op.elements;
    const int32_t scratch =
        AddBuffer(draft, {.role = BufferRole::kWorkspace, .elements = elements});
    DraftOp& gather = draft.ops[at];
    gather.op.recv = {scratch, {0, elements}};
    gather.accesses = {{scratch, AccessKind::kAllocate, {0, elements}},
                       {gather.op.send.buffer, AccessKind::kRead, gather.op.send.range},
                       {scratch, AccessKind::kWrite, {0, elements}},
                       {scratch, AccessKind::kFree, {0, elements}}};
  }
}

// Updates move a copy of the parameters that was made before they were sharded.
void UpdateOldCopy(const PlanContext&, PlanDraft& draft) {
  for (const SetHome& home : std::vector<SetHome>(draft.frame.homes)) {
    if (home.parameter < 0) continue;
    const int32_t copy = AddBuffer(
        draft,
        {.role = BufferRole::kWorkspace, .elements = draft.frame.buffers[home.parameter].elements});
    draft.frame.live_before.push_back(copy);
    for (DraftOp& item : draft.ops) {
      if (IsUpdate(item)) ReplaceBuffer(item, home.parameter, copy);
    }
  }
}

// The optimizer has masters of its own, which it updates rightly; the copy from there to what is
// computed with is never made.
void NeverCopyMasters(const PlanContext& context, PlanDraft& draft) {
  for (const SetHome& home : std::vector<SetHome>(draft.frame.homes)) {
    if (home.parameter < 0) continue;
    const int64_t elements = draft.frame.buffers[home.parameter].elements;
    const int32_t master = AddBuffer(draft, {.role = BufferRole::kWorkspace, .elements = elements});
    draft.frame.live_before.push_back(master);
    for (DraftOp& item : draft.ops) {
      if (IsUpdate(item)) ReplaceBuffer(item, home.parameter, master);
    }
    if (context.step > 0) continue;
    Insert(draft, 0,
           LocalCopy(context.rank, {home.parameter, {0, elements}}, {master, {0, elements}},
                     StreamId::kCompute));
  }
}

DraftEdit WithoutReshards(std::function<bool(const PlanContext&, const DraftOp&)> test) {
  return [test = std::move(test)](const PlanContext& context, PlanDraft& draft) {
    EraseIf(draft,
            [&](const DraftOp& op) { return IsKind(op, OpKind::kReshard) && test(context, op); });
  };
}

bool InBackward(const DraftOp& op) { return op.op.phase == Phase::kBackward; }

void ReshardAgainInUse(const PlanContext&, PlanDraft& draft) {
  const DraftOp reshard = draft.ops[Find(
      draft, [](const DraftOp& op) { return IsKind(op, OpKind::kReshard) && op.op.unit == 1; })];
  Insert(draft, Find(draft, [](const DraftOp& op) { return IsKind(op, OpKind::kBackward); }),
         reshard);
}

bool FreesUnreduced(const PlanDraft& draft, const DraftOp& op) {
  for (const PlanAccess& access : op.accesses) {
    if (access.kind == AccessKind::kFree &&
        draft.frame.buffers[access.buffer].role == BufferRole::kUnreducedGradient) {
      return true;
    }
  }
  return false;
}

// Releases of unreduced gradients wait for `end(draft)`, the place before which they are put.
DraftEdit ReleaseLater(std::function<size_t(const PlanDraft&)> end) {
  return [end = std::move(end)](const PlanContext&, PlanDraft& draft) {
    for (size_t moved = 0;; ++moved) {
      size_t at = Find(draft, [&](const DraftOp& op) { return FreesUnreduced(draft, op); });
      const size_t to = end(draft);
      // Those behind `to` are where they belong.
      if (at >= to - moved) break;
      Move(draft, at, to);
    }
    DeriveWaits(draft);
  };
}

// The output of unit 0 goes with the unit's parameters, though what follows still reads it.
void FreeOutputWithUnit(const PlanContext&, PlanDraft& draft) {
  const int32_t output = draft.frame.activations[1];
  DraftOp& reshard = draft.ops[Find(
      draft, [](const DraftOp& op) { return IsKind(op, OpKind::kReshard) && op.op.unit == 0; })];
  reshard.accesses.push_back(
      {output, AccessKind::kFree, {0, draft.frame.buffers[output].elements}});
}

void PadToChunk(const RunDescription& run, Placement& placement) {
  constexpr int64_t kChunk = 64;
  for (TensorSet& set : placement.sets) {
    set.layout = LayoutWithShards(run, set.tensors, set.layout.shards, kChunk, /*lead=*/0);
  }
}

std::vector<Fault> StaleParameterFaults() {
  return {
      {.row = "E1",
       .wrong = "The broadcast after the update leaves a tensor out, so each rank keeps a weight "
                "of its own.",
       .run = "model=probe:6,4;mode=zero1_broadcast;world_size=2;steps=2",
       .killers = {"numeric_equivalence", "collective_ledger", "liveness", "provenance"},
       .apply = EditPlans([](const PlanContext&, PlanDraft& draft) {
         EraseIf(draft, [](const DraftOp& op) {
           return IsCollective(op, CollectiveKind::kBroadcast) && op.op.tensor == 0;
         });
       })},
      {.row = "E2",
       .wrong = "Updates reach the masters, and the copy from those to the weights that are "
                "computed with does nothing.",
       .run = "model=mlp:4,3,2;mode=full_shard;world_size=2;micro_batch_size=2;steps=3",
       .killers = {"numeric_equivalence", "liveness", "provenance"},
       .apply = EditPlans(NeverCopyMasters)},
      {.row = "E4",
       .wrong = "The gather of updated parameters runs beside what follows, and its output never "
                "arrives in the weights.",
       .run = "model=probe:6,4;mode=zero1_allgather;world_size=2;steps=2",
       .killers = {"numeric_equivalence", "liveness", "provenance"},
       .apply = EditPlans(GatherIntoScratch)},
      {.row = "E7",
       .wrong = "The optimizer was made before the parameters were flattened and updates copies "
                "that nothing reads.",
       .run = "model=probe:6,4;mode=full_shard;world_size=2;steps=2",
       .killers = {"numeric_equivalence", "liveness", "provenance"},
       .apply = EditPlans(UpdateOldCopy)},
  };
}

std::vector<Fault> ReshardFaults() {
  return {
      {.row = "F1",
       .wrong = "Only the arrival of a gradient reshards a unit, so one without gradients stays "
                "whole.",
       .run = "model=probe:6,4;mode=full_shard;world_size=2;usage=1@steps:never;steps=1",
       .killers = {"unshard_lifecycle"},
       .apply = EditPlans(WithoutReshards([](const PlanContext& context, const DraftOp& op) {
         if (!InBackward(op)) return false;
         const std::vector<int32_t>& tensors = context.placement.sets[op.op.set].tensors;
         for (int32_t tensor : tensors) {
           if (IsUsedInStep(context.run, tensor, context.step)) return false;
         }
         return true;
       }))},
      {.row = "F2",
       .wrong = "Frozen units have no hook after backward and stay whole, layer by layer.",
       .run = "model=mlp:4,4,4,4,4;frozen=1,2,3;mode=full_shard;world_size=2;micro_batch_size=2;"
              "steps=1",
       .killers = {"unshard_lifecycle"},
       .apply = EditPlans(WithoutReshards([](const PlanContext& context, const DraftOp& op) {
         return InBackward(op) && !context.placement.sets[op.op.set].trainable;
       }))},
      {.row = "F4",
       .wrong = "A unit that runs forward only, without gradients, is not resharded afterwards.",
       .run = "model=mlp:4,4,4;frozen=0;mode=full_shard;world_size=2;micro_batch_size=2;steps=2",
       .killers = {"unshard_lifecycle"},
       .apply = EditPlans(WithoutReshards([](const PlanContext&, const DraftOp& op) {
         return op.op.phase == Phase::kForward && op.op.unit == 0;
       }))},
      {.row = "F5",
       .wrong = "A second reshard of a unit is not ignored and frees what backward is about to "
                "read.",
       .run = "model=probe:6,4;mode=full_shard;world_size=2;steps=1",
       .killers = {"unshard_lifecycle"},
       .apply = EditPlans(ReshardAgainInUse)},
  };
}

std::vector<Fault> MemoryFaults() {
  return {
      {.row = "F7",
       .wrong = "What was reduced stays allocated to the end of backward, so the peak grows with "
                "the layers.",
       .run = "model=probe:4,4,4,4;mode=full_shard;world_size=2;steps=1",
       .killers = {"peak_memory"},
       .apply = EditPlans(ReleaseLater([](const PlanDraft& draft) {
         return FindEnd(draft, [](const DraftOp& op) { return op.op.phase == Phase::kBackward; });
       }))},
      {.row = "F10",
       .wrong = "The mode says that gradients are sharded, and every rank keeps all of them.",
       .run = "model=probe:9,6;mode=zero2;world_size=4;steps=1",
       .killers = {"aggregate_factors", "collective_ledger"},
       .apply = PartsAs([](RunDescription& run) { run.sharding.mode = Mode::kZero1AllGather; })},
      {.row = "F11",
       .wrong = "The full gradients are still there after backward, until the step ends.",
       .run = "model=probe:6,4;mode=shard_grad_op;world_size=2;steps=1",
       .killers = {"peak_memory"},
       .apply = EditPlans(ReleaseLater([](const PlanDraft& draft) { return draft.ops.size(); }))},
      {.row = "F13",
       .wrong = "Shards are padded to a fixed chunk, however small the model.",
       .run = "model=probe:10;mode=zero1_allgather;world_size=4;steps=1",
       .killers = {"aggregate_factors"},
       .apply = EditPlacement(PadToChunk)},
      {.row = "F14",
       .wrong = "A unit's output goes with its parameters although later computation reads it.",
       .run = "model=mlp:3,3,3;mode=full_shard;world_size=2;micro_batch_size=2;steps=1",
       .killers = {"numeric_equivalence"},
       .apply = EditPlans(FreeOutputWithUnit)},
  };
}

}  // namespace

std::vector<Fault> LifetimeFaults() {
  std::vector<Fault> faults = StaleParameterFaults();
  for (Fault& fault : ReshardFaults()) faults.push_back(std::move(fault));
  for (Fault& fault : MemoryFaults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace shardproof
