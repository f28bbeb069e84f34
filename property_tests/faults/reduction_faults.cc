// Classes A and B: which group divides, how many times, and in which micro-batches.
#include <algorithm>
#include <vector>

#include "property_tests/faults/families.h"
#include "property_tests/faults/fault_tools.h"

namespace shardproof {
namespace {

bool IsScale(const DraftOp& op) { return IsKind(op, OpKind::kScale); }

PartsEdit MultiplyScale(std::function<double(const PlanContext&)> factor) {
  return EditPlans([factor = std::move(factor)](const PlanContext& context, PlanDraft& draft) {
    for (DraftOp& item : draft.ops) {
      if (IsScale(item)) item.op.scale *= static_cast<float>(factor(context));
    }
  });
}

double MicroBatches(const PlanContext& context) {
  return static_cast<double>(context.run.data.num_micro_batches);
}

void SkipReductions(const PlanContext&, PlanDraft& draft) {
  EraseIf(draft, [](const DraftOp& op) { return IsReduction(op) || IsScale(op); });
}

// Every later micro-batch's reduction lands where the earlier ones were summed.
void OverwriteAccumulator(const PlanContext&, PlanDraft& draft) {
  for (DraftOp& item : draft.ops) {
    if (!IsReduction(item)) continue;
    const int32_t temporary = item.op.recv.buffer;
    const int32_t home = draft.frame.homes[item.op.set].gradient;
    if (temporary == home) continue;
    RemoveAccesses(item, temporary, AccessKind::kAllocate);
    ReplaceBuffer(item, temporary, home);
    for (DraftOp& other : draft.ops) RemoveAccesses(other, temporary, AccessKind::kFree);
  }
  EraseIf(draft, [](const DraftOp& op) { return IsKind(op, OpKind::kAccumulate); });
  DeriveWaits(draft);
}

void ReduceBeforeLastMicroBatch(const PlanContext& context, PlanDraft& draft) {
  const int32_t last = static_cast<int32_t>(context.run.data.num_micro_batches) - 1;
  const size_t to = Find(draft, [&](const DraftOp& op) {
    return IsKind(op, OpKind::kBackward) && op.op.micro_batch == last;
  });
  const size_t from = Find(draft, IsReduction);
  draft.ops[from].op.micro_batch = last - 1;
  Move(draft, from, to);
  DeriveWaits(draft);
}

void ReduceFirstMicroBatchOnly(const PlanContext&, PlanDraft& draft) {
  const size_t from = Find(draft, IsReduction);
  const size_t to = FindEnd(draft, [](const DraftOp& op) {
    return IsKind(op, OpKind::kBackward) && op.op.micro_batch == 0;
  });
  draft.ops[from].op.micro_batch = 0;
  Move(draft, from, to);
  DeriveWaits(draft);
  // The flag says "reduced", so nobody looks whether it still runs.
  for (DraftOp& item : draft.ops) {
    if (IsKind(item, OpKind::kBackward)) item.waits.clear();
  }
}

void SkipBucketsNotUsedLast(const PlanContext& context, PlanDraft& draft) {
  const RunDescription& run = context.run;
  const int32_t last = static_cast<int32_t>(run.data.num_micro_batches) - 1;
  EraseIf(draft, [&](const DraftOp& op) {
    if (!IsReduction(op)) return false;
    const std::vector<int32_t>& tensors = context.placement.sets[op.op.set].tensors;
    return std::none_of(tensors.begin(), tensors.end(), [&](int32_t tensor) {
      for (int32_t rank = 0; rank < run.sharding.world_size.value; ++rank) {
        if (IsUsed(run, tensor, context.step, Rank{rank}, last)) return true;
      }
      return false;
    });
  });
}

void ReduceAfterEveryMicroBatch(const PlanContext& context, PlanDraft& draft) {
  const DraftOp reduction = draft.ops[Find(draft, IsReduction)];
  for (int32_t k = 0; k + 1 < context.run.data.num_micro_batches; ++k) {
    const size_t end = FindEnd(draft, [&](const DraftOp& op) {
      return IsKind(op, OpKind::kBackward) && op.op.micro_batch == k;
    });
    DraftOp again = reduction;
    again.op.micro_batch = k;
    Insert(draft, end, again);
  }
  DeriveWaits(draft);
}

std::vector<Fault> AveragingFaults() {
  return {
      {.row = "A1",
       .wrong = "The replicated path divides by the ranks of a second axis as well, of which "
                "there are four.",
       .run = "model=probe:8x8;mode=replicated;world_size=4;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = MultiplyScale([](const PlanContext&) { return 0.25; })},
      {.row = "A2",
       .wrong = "The reduced gradient is the sum over the ranks: nobody divides by their number.",
       .run = "model=probe:13;mode=zero2;world_size=4;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = MultiplyScale([](const PlanContext& context) {
         return static_cast<double>(context.run.sharding.world_size.value);
       })},
      {.row = "A4",
       .wrong = "One way to drive the trainer never calls the reduction, so each rank steps with "
                "its own gradient.",
       .run = "model=probe:6;mode=zero1_allgather;world_size=2;steps=1",
       .killers = {"numeric_equivalence", "collective_ledger", "provenance"},
       .apply = EditPlans(SkipReductions)},
      {.row = "A10",
       .wrong = "One of the units is built by a second implementation, which leaves the division "
                "out.",
       .run = "model=probe:16,10;mode=shard_grad_op;world_size=4;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans([](const PlanContext&, PlanDraft& draft) {
         EraseIf(draft, [](const DraftOp& op) { return IsScale(op) && op.op.unit == 1; });
       })},
      {.row = "A11",
       .wrong = "The bias is replicated like the weight, but only the weight's gradient is "
                "reduced, so the ranks' copies of the bias drift apart.",
       .run = "model=probe:6,3;mode=replicated;world_size=2;bucket_cap_bytes=4;steps=3",
       .killers = {"numeric_equivalence", "collective_ledger", "provenance"},
       .apply = EditPlans([](const PlanContext&, PlanDraft& draft) {
         EraseIf(draft, [](const DraftOp& op) { return IsReduction(op) && op.op.bucket == 0; });
       })},
  };
}

std::vector<Fault> AccumulationFaults() {
  return {
      {.row = "B1",
       .wrong = "Every micro-batch counts as the last one: its reduction overwrites what the "
                "earlier ones left instead of adding to it.",
       .run = "model=probe:9;mode=zero2;world_size=2;num_micro_batches=4;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(OverwriteAccumulator)},
      {.row = "B2",
       .wrong = "The accumulated gradient is reduced before the last micro-batch's is added to "
                "it, which then enters unreduced.",
       .run = "model=probe:64;mode=zero1_allgather;world_size=2;num_micro_batches=4;"
              "grad_sync=last;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(ReduceBeforeLastMicroBatch)},
      {.row = "B4",
       .wrong = "The flag that the reduction was sent is reset once a step: micro-batch 0 is "
                "reduced, and the later ones write to the buffer while it is sent.",
       .run = "model=probe:20;mode=zero2;world_size=2;num_micro_batches=3;grad_sync=last;steps=1",
       .killers = {"ordering", "numeric_equivalence", "provenance"},
       .apply = EditPlans(ReduceFirstMicroBatchOnly)},
      {.row = "B5",
       .wrong = "The reduction after the last micro-batch covers only the tensors that this one "
                "used.",
       .run = "model=probe:5,7;mode=replicated;world_size=2;bucket_cap_bytes=4;"
              "num_micro_batches=2;grad_sync=last;usage=0@micro_batch:0,1@micro_batch:1;steps=1",
       .killers = {"numeric_equivalence", "collective_ledger", "provenance"},
       .apply = EditPlans(SkipBucketsNotUsedLast)},
      {.row = "B8",
       .wrong = "Each micro-batch reduces the whole accumulator again, so that the earlier ones "
                "are summed over the ranks more than once.",
       .run = "model=probe:7;mode=zero1_allgather;world_size=2;num_micro_batches=3;"
              "grad_sync=last;steps=1",
       .killers = {"numeric_equivalence", "collective_ledger", "provenance"},
       .apply = EditPlans(ReduceAfterEveryMicroBatch)},
      {.row = "B11",
       .wrong = "Micro-batches before the last one are not kept from synchronizing and reduce "
                "their gradients too.",
       .run = "model=probe:6;mode=full_shard;world_size=2;num_micro_batches=2;grad_sync=last;"
              "steps=1",
       .killers = {"collective_ledger"},
       .apply = PlanAs([](RunDescription& run) { run.sharding.grad_sync = GradSync::kEvery; })},
  };
}

std::vector<Fault> MicroBatchScaleFaults() {
  return {
      {.row = "B7",
       .wrong = "This mode alone forgets to divide by the number of micro-batches.",
       .run = "model=probe:5x3,5;mode=zero2;world_size=2;num_micro_batches=4;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = MultiplyScale(MicroBatches)},
      {.row = "B10",
       .wrong = "The division by the number of micro-batches happens twice.",
       .run = "model=probe:7;mode=zero1_allgather;world_size=2;num_micro_batches=4;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply =
           MultiplyScale([](const PlanContext& context) { return 1 / MicroBatches(context); })},
  };
}

}  // namespace

std::vector<Fault> ReductionFaults() {
  std::vector<Fault> faults = AveragingFaults();
  for (Fault& fault : AccumulationFaults()) faults.push_back(std::move(fault));
  for (Fault& fault : MicroBatchScaleFaults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace shardproof
