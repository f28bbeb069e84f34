// Classes K, M, N, P and Q: order and number of collectives, optimizer arithmetic, degenerate
// groups.
#include <algorithm>
#include <vector>

#include "property_tests/faults/families.h"
#include "property_tests/faults/fault_tools.h"

namespace shardproof {
namespace {

bool IsUpdate(const DraftOp& op) { return IsKind(op, OpKind::kOptimizerUpdate); }

DraftEdit EachUpdate(std::function<void(const PlanContext&, UpdateRange&)> edit) {
  return [edit = std::move(edit)](const PlanContext& context, PlanDraft& draft) {
    for (DraftOp& item : draft.ops) {
      if (!IsUpdate(item)) continue;
      for (UpdateRange& update : item.updates) edit(context, update);
    }
  };
}

DraftEdit OnRankOne(DraftEdit edit) {
  return [edit = std::move(edit)](const PlanContext& context, PlanDraft& draft) {
    if (context.rank.value == 1) edit(context, draft);
  };
}

void SwapReductions(const PlanContext&, PlanDraft& draft) {
  const size_t first = Find(draft, IsReduction);
  const size_t second = Find(draft, IsReduction, first + 1);
  Move(draft, second, first);
}

void SendLessThanOthers(const PlanContext& context, PlanDraft& draft) {
  DraftOp& reduction = draft.ops[Find(draft, IsReduction)];
  --reduction.op.elements;
  --reduction.op.send.range.count;
  --reduction.op.recv.range.count;
  AccessOperands(reduction, context.rank);
}

// On rank 1, in the first step, unit 0 does not stay unsharded as its unit says.
EngineParts ReleaseResidentUnit(const RunDescription& run, EngineParts parts) {
  RunDescription resharded = run;
  resharded.model.units[0].reshard_after_forward = true;
  parts.plan = [plan = std::move(parts.plan), resharded](const RunDescription& asked,
                                                         const Placement& placement, Rank rank,
                                                         int64_t step) {
    return plan(rank.value == 1 && step == 0 ? resharded : asked, placement, rank, step);
  };
  return parts;
}

// The unit that backward needs next is asked for behind the one that it needs later.
void PrefetchInWrongOrder(const PlanContext&, PlanDraft& draft) {
  const auto gathers = [](int32_t unit) {
    return [unit](const DraftOp& op) {
      return IsUnshard(op) && op.op.phase == Phase::kBackward && op.op.unit == unit;
    };
  };
  Move(draft, Find(draft, gathers(1)), Find(draft, gathers(2)));
  DeriveWaits(draft);
}

// Computation waits for every reduction that was issued before it.
void SerialiseCompute(const PlanContext&, PlanDraft& draft) {
  int32_t reduction = -1;
  for (DraftOp& item : draft.ops) {
    if (IsReduction(item)) reduction = item.id;
    if (IsKind(item, OpKind::kBackward) && reduction >= 0) item.waits.push_back(reduction);
  }
}

// One counter serves all tensors: that of the last one with a gradient, which alone advances.
void CountInLastTensor(const PlanContext&, PlanDraft& draft) {
  int32_t last = -1;
  for (const DraftOp& item : draft.ops) {
    if (IsUpdate(item) && !item.updates.empty()) last = item.updates.back().tensor;
  }
  bool first = true;
  for (DraftOp& item : draft.ops) {
    if (!IsUpdate(item)) continue;
    for (UpdateRange& update : item.updates) {
      update.counter_of = last;
      update.advance = first ? 1 : 0;
      first = false;
    }
  }
}

void DropTails(const PlanContext&, UpdateRange& update) {
  constexpr int64_t kLanes = 4;
  update.count -= update.count % kLanes;
  for (BufferRange* range :
       {&update.parameter, &update.gradient, &update.exp_avg, &update.exp_avg_sq}) {
    range->range.count = update.count;
  }
}

void ReduceAlone(const PlanContext& context, PlanDraft& draft) {
  for (DraftOp& item : draft.ops) {
    if (IsReduction(item)) item.op.group = {context.rank.value, 1, 1};
  }
}

// Each micro-batch's sum is added to itself: the group's buffer is the rank's own.
void AddBufferToItself(const PlanContext& context, PlanDraft& draft) {
  for (size_t at = 0; at < draft.ops.size(); ++at) {
    const DraftOp& item = draft.ops[at];
    const bool first =
        IsReduction(item) && item.op.recv.buffer == draft.frame.homes[item.op.set].gradient;
    if (!first && !IsKind(item, OpKind::kAccumulate)) continue;
    DraftOp twice = item;
    twice.op.kind = OpKind::kAccumulate;
    twice.op.collective = CollectiveKind::kBarrier;
    twice.op.purpose = Purpose::kNone;
    twice.op.send = twice.op.recv = item.op.recv;
    twice.accesses.clear();
    twice.waits.clear();
    AccessOperands(twice, context.rank);
    Insert(draft, ++at, twice);
  }
  DeriveWaits(draft);
}

// Gradients are divided by a scale that the loss never had, and those of the step before are
// still there when the next ones come.
void DivideByUnusedLossScale(const PlanContext& context, PlanDraft& draft) {
  constexpr float kLossScale = 65536;
  for (DraftOp& item : draft.ops) {
    if (IsKind(item, OpKind::kScale)) item.op.scale /= kLossScale;
  }
  if (context.step == 0) return;
  for (const SetHome& home : draft.frame.homes) {
    EraseIf(draft, [&](const DraftOp& op) {
      return IsKind(op, OpKind::kRelease) && HasAccess(op, home.gradient, AccessKind::kFree);
    });
    for (DraftOp& item : draft.ops) {
      if (!HasAccess(item, home.gradient, AccessKind::kAllocate)) continue;
      for (PlanAccess& access : item.accesses) {
        // It adds to what is there.
        const bool gradient = access.buffer == home.gradient;
        if (gradient && access.kind == AccessKind::kAllocate) access.kind = AccessKind::kRead;
      }
      for (SetUse& use : item.gradient_uses) use.accumulate = true;
    }
  }
  DeriveWaits(draft);
}

std::vector<Fault> OrderFaults() {
  return {
      {.row = "K1",
       .wrong = "Rank 1 walks its buckets in another order, so the ranks meet in different "
                "reductions.",
       .run = "model=probe:4,6;mode=zero1_allgather;world_size=2;bucket_cap_bytes=4;steps=1",
       .killers = {kEngineError},
       .apply = EditPlans(OnRankOne(SwapReductions))},
      {.row = "K2",
       .wrong = "A unit that only rank 0 used is gathered and reduced by rank 0 only.",
       .run = "model=probe:4,6;mode=full_shard;world_size=2;usage=1@rank:0;steps=1",
       .killers = {kEngineError},
       .apply = EditPlans(OnRankOne([](const PlanContext&, PlanDraft& draft) {
         EraseIf(draft, [](const DraftOp& op) {
           return IsKind(op, OpKind::kCollective) && op.op.unit == 1;
         });
       }))},
      {.row = "K4",
       .wrong = "Rank 1 releases a unit that should stay resident and gathers it again, alone.",
       .run = "model=probe:4,6;units=0!,1;mode=full_shard;world_size=2;steps=2",
       .killers = {kEngineError},
       .apply = ReleaseResidentUnit},
      {.row = "K5",
       .wrong = "Rank 1 takes part in a sum with one element less.",
       .run = "model=probe:7;mode=zero1_allgather;world_size=2;steps=1",
       .killers = {kEngineError},
       .apply = EditPlans(OnRankOne(SendLessThanOthers))},
      {.row = "K8",
       .wrong = "Backward asks first for the unit that it needs second.",
       .run = "model=probe:4,5,6,7;mode=full_shard;prefetch=backward_post;world_size=2;steps=1",
       .killers = {"issue_order"},
       .apply = EditPlans(PrefetchInWrongOrder)},
      {.row = "K10",
       .wrong = "To mend a race, computation waits for every earlier reduction, and nothing "
                "overlaps any more.",
       .run = "model=probe:8,8,8,8;mode=zero2;world_size=2;bucket_cap_bytes=32;steps=1",
       .killers = {"overlap"},
       .apply = EditPlans(SerialiseCompute)},
  };
}

std::vector<Fault> OptimizerFaults() {
  return {
      {.row = "M1",
       .wrong = "A step without gradients, made to allocate the optimizer's state, leaves the "
                "counters at one.",
       .run = "model=probe:8;mode=full_shard;world_size=2;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(EachUpdate([](const PlanContext& context, UpdateRange& update) {
         if (context.step == 0 && update.advance > 0) ++update.advance;
       }))},
      {.row = "M4",
       .wrong = "One step counter serves all tensors, that of the last one with a gradient.",
       .run = "model=probe:4,6;mode=full_shard;world_size=2;usage=1@steps:even;steps=4",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(CountInLastTensor)},
      {.row = "M5",
       .wrong = "The counter of bias correction advances with every group of tensors that one "
                "step updates.",
       .run = "model=probe:4,4,4;mode=full_shard;world_size=1;steps=2",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(
           EachUpdate([](const PlanContext&, UpdateRange& update) { update.counter_of = 0; }))},
      {.row = "M10",
       .wrong = "A kernel of four lanes leaves out the elements behind the last multiple of four.",
       .run = "model=probe:1,15,17,33;mode=full_shard;world_size=1;steps=3",
       .killers = {"numeric_equivalence", "liveness", "provenance"},
       .apply = EditPlans(EachUpdate(DropTails))},
      {.row = "M11",
       .wrong = "Weights and biases of one flat buffer are updated with the first one's decay.",
       .run = "model=probe:4x4,4;units=0-1;mode=full_shard;world_size=2;learning_rate=0.1;"
              "groups=0@weight_decay:0.1,1@weight_decay:0;steps=3",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(EachUpdate(
           [](const PlanContext&, UpdateRange& update) { update.hyper_parameters_of = 0; }))},
  };
}

std::vector<Fault> GroupFaults() {
  return {
      {.row = "N5",
       .wrong = "Gradients are divided by a loss scale that was never applied, and pile up over "
                "the steps as nobody clears them.",
       .run = "model=probe:8;mode=replicated;world_size=2;steps=3",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(DivideByUnusedLossScale)},
      {.row = "P1",
       .wrong = "Gradients are reduced over a group of one rank, so each rank trains alone.",
       .run = "model=probe:8;mode=replicated;world_size=2;steps=1",
       .killers = {"collective_ledger", "numeric_equivalence", "provenance"},
       .apply = EditPlans(ReduceAlone)},
      {.row = "P2",
       .wrong = "In a group of one rank the reduction adds the buffer to itself, once for every "
                "micro-batch.",
       .run = "model=probe:8;mode=full_shard;world_size=1;num_micro_batches=4;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(AddBufferToItself)},
      {.row = "P4",
       .wrong = "The factor that goes with a reduction is lost where the group has one rank.",
       .run = "model=probe:6;mode=full_shard;world_size=1;num_micro_batches=2;"
              "scale_before_reduce=1;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans([](const PlanContext&, PlanDraft& draft) {
         EraseIf(draft, [](const DraftOp& op) { return IsKind(op, OpKind::kScale); });
       })},
      {.row = "Q5",
       .wrong = "Made before its group exists, the model is sharded over one rank: everyone "
                "holds all of it.",
       .run = "model=probe:6,4;mode=full_shard;world_size=2;steps=1",
       .killers = {"aggregate_factors", "collective_ledger", "provenance"},
       .apply =
           [](const RunDescription& run, EngineParts parts) {
             parts = PartsAs([](RunDescription& other) { other.sharding.world_size = {1}; })(
                 run, std::move(parts));
             return EditPlans([](const PlanContext& context, PlanDraft& draft) {
               for (DraftOp& item : draft.ops) {
                 if (IsKind(item, OpKind::kCollective)) item.op.group = {context.rank.value, 1, 1};
               }
             })(run, std::move(parts));
           }},
  };
}

}  // namespace

std::vector<Fault> StepFaults() {
  std::vector<Fault> faults = OrderFaults();
  for (Fault& fault : OptimizerFaults()) faults.push_back(std::move(fault));
  for (Fault& fault : GroupFaults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace shardproof
