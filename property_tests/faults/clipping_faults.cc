// Class C: the set of gradients in a norm is not the set of logical parameters, each once.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/forwarding_communicator.h"
#include "property_tests/faults/families.h"
#include "property_tests/faults/fault_tools.h"

namespace shardproof {
namespace {

bool IsNorm(const DraftOp& op) { return IsKind(op, OpKind::kNorm); }
bool IsCoefficient(const DraftOp& op) { return IsKind(op, OpKind::kClipCoefficient); }

bool IsNormCall(const CollectiveCall& call) {
  return call.kind == CollectiveKind::kAllReduce && call.dtype == Dtype::kFloat64 &&
         call.elements == 1;
}

// Averages norms where squares have to be added: right only if all ranks have the same norm.
class AveragesNorms : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    if (!IsNormCall(call)) return inner().Start(call);
    norm_ = std::sqrt(*static_cast<const double*>(call.send));
    result_ = static_cast<double*>(call.recv);
    CollectiveCall of_norm = call;
    of_norm.send = &norm_;
    absl::StatusOr<CollectiveHandle> handle = inner().Start(of_norm);
    if (handle.ok()) pending_ = handle->id;
    return handle;
  }

  absl::StatusOr<bool> Poll(CollectiveHandle handle) override {
    absl::StatusOr<bool> done = inner().Poll(handle);
    if (done.ok() && *done && handle.id == pending_) {
      const double mean = *result_ / inner().group().count;
      *result_ = mean * mean;
      pending_ = -1;
    }
    return done;
  }

 private:
  double norm_ = 0;
  double* result_ = nullptr;
  int64_t pending_ = -1;
};

void SkipScalingOnRankOne(const PlanContext& context, PlanDraft& draft) {
  if (context.rank.value != 1) return;
  for (size_t at = draft.ops.size(); at-- > 0;) {
    if (IsKind(draft.ops[at], OpKind::kScaleBy)) Disable(draft, at);
  }
}

void SkipScaling(const PlanContext&, PlanDraft& draft) {
  for (size_t at = draft.ops.size(); at-- > 0;) {
    if (IsKind(draft.ops[at], OpKind::kScaleBy)) Disable(draft, at);
  }
}

// The whole local buffers outlive their reduction, and the norm is taken over them.
void NormOfUnreducedBuffers(const PlanContext& context, PlanDraft& draft) {
  for (size_t set = 0; set < draft.frame.homes.size(); ++set) {
    const int32_t full = UnreducedBuffer(draft, static_cast<int32_t>(set));
    if (full < 0) continue;
    const size_t release =
        Find(draft, [&](const DraftOp& op) { return HasAccess(op, full, AccessKind::kFree); });
    Move(draft, release, Find(draft, IsNorm) + 1);
  }
  DraftOp& norm = draft.ops[Find(draft, IsNorm)];
  norm.updates.clear();
  for (size_t index = 0; index < draft.frame.homes.size(); ++index) {
    const int32_t full = UnreducedBuffer(draft, static_cast<int32_t>(index));
    if (full < 0) continue;
    ReplaceBuffer(norm, draft.frame.homes[index].gradient, full);
    const FlatLayout& layout = context.placement.sets[index].layout;
    for (const Segment& segment : layout.segments) {
      if (segment.tensor < 0) continue;
      UpdateRange range;
      range.tensor = segment.tensor;
      range.count = segment.count;
      range.gradient = {full, {layout.offset(segment), segment.count}};
      norm.updates.push_back(range);
    }
    for (PlanAccess& access : norm.accesses) {
      if (access.buffer == full) access.range = {0, layout.padded_elements()};
    }
  }
  DeriveWaits(draft);
}

void AddReplicatedNorms(const PlanContext& context, PlanDraft& draft) {
  const size_t at = Find(draft, IsNorm);
  DraftOp sum;
  sum.op.kind = OpKind::kCollective;
  sum.op.phase = Phase::kOptimizer;
  sum.op.stream = StreamId::kCommunication;
  sum.op.collective = CollectiveKind::kAllReduce;
  sum.op.purpose = Purpose::kClipNorm;
  sum.op.dtype = Dtype::kFloat64;
  sum.op.group = {0, 1, context.run.sharding.world_size.value};
  sum.op.elements = 1;
  sum.op.send = sum.op.recv = draft.ops[at].op.recv;
  AccessOperands(sum, context.rank);
  Insert(draft, at + 1, sum);
  DeriveWaits(draft);
}

// The gradients are clipped rightly; what is returned afterwards is the norm of the own shard.
void ReturnPartialNorm(const PlanContext&, PlanDraft& draft) {
  const size_t coefficient = Find(draft, IsCoefficient);
  const DraftOp norm = draft.ops[Find(draft, IsNorm)];
  DraftOp returned = draft.ops[coefficient];
  const int32_t scratch = AddBuffer(draft, {.role = BufferRole::kWorkspace, .elements = 1});
  ReplaceBuffer(returned, draft.frame.coefficient_buffer, scratch);
  returned.accesses.push_back({scratch, AccessKind::kFree, {0, 1}});
  Insert(draft, coefficient + 1, returned);
  Insert(draft, coefficient + 1, norm);
  DeriveWaits(draft);
}

void DropOwnedFromNorm(const PlanContext& context, PlanDraft& draft) {
  if (context.rank.value == 0) return;
  draft.ops[Find(draft, IsNorm)].updates.clear();
}

void CountTiedTwice(const PlanContext& context, PlanDraft& draft) {
  DraftOp& norm = draft.ops[Find(draft, IsNorm)];
  const std::vector<UpdateRange> once = norm.updates;
  for (const UpdateRange& range : once) {
    if (!context.run.model.tensors[range.tensor].aliases.empty()) norm.updates.push_back(range);
  }
}

void NormBeforeLastReduction(const PlanContext&, PlanDraft& draft) {
  Move(draft, Find(draft, IsNorm), FindEnd(draft, IsReduction) - 1);
  DeriveWaits(draft);
}

void AddInOtherOrder(const PlanContext&, PlanDraft& draft) {
  for (DraftOp& item : draft.ops) {
    if (IsNorm(item)) std::reverse(item.updates.begin(), item.updates.end());
  }
}

template <typename T>
PartsEdit DecorateWith() {
  return Decorate([](const RunDescription&, Communicator* inner) -> std::unique_ptr<Communicator> {
    return std::make_unique<T>(inner);
  });
}

std::vector<Fault> CoefficientFaults() {
  return {
      {.row = "C1",
       .wrong = "Rank 1 skips the multiplication by the clip coefficient, so its copy of the "
                "replicated weights moves further.",
       .run = "model=probe:6,4;mode=replicated;world_size=2;clip_grad_norm=0.1;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(SkipScalingOnRankOne)},
      {.row = "C11",
       .wrong = "The coefficient is computed, and no gradient is multiplied by it.",
       .run = "model=probe:5;mode=replicated;world_size=2;clip_grad_norm=0.01;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(SkipScaling)},
  };
}

std::vector<Fault> NormFaults() {
  return {
      {.row = "C2",
       .wrong = "The norm is taken over the whole local gradient buffers, of which only the own "
                "shard was reduced.",
       .run = "model=probe:16;mode=zero2;world_size=2;clip_grad_norm=0.1;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(NormOfUnreducedBuffers)},
      {.row = "C4",
       .wrong = "Squares of gradients that every rank holds whole are added over the ranks, so "
                "each counts once for every rank.",
       .run = "model=probe:8;mode=replicated;world_size=2;clip_grad_norm=0.1;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(AddReplicatedNorms)},
      {.row = "C5",
       .wrong = "The norm that is returned is that of the rank's own shards, as if it were the "
                "global one.",
       .run = "model=probe:9;mode=full_shard;world_size=2;clip_grad_norm=0.1;steps=1",
       .killers = {"numeric_equivalence"},
       .apply = EditPlans(ReturnPartialNorm)},
      {.row = "C7",
       .wrong = "Parameters that only rank 1 owns are left out of the norm as if they were copies "
                "of rank 0's.",
       .run = "model=probe:1,1;units=0-1;mode=full_shard;world_size=2;clip_grad_norm=0.1;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(DropOwnedFromNorm)},
      {.row = "C8",
       .wrong = "A tied weight enters the norm once for each of its names.",
       .run = "model=probe:8,3,8;ties=t2:t0;mode=full_shard;world_size=2;clip_grad_norm=0.1;"
              "steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(CountTiedTwice)},
      {.row = "C10",
       .wrong = "The ranks average the norms of what they own instead of adding the squares.",
       .run = "model=probe:5,3;mode=full_shard;world_size=2;clip_grad_norm=0.1;steps=1",
       .killers = {"numeric_equivalence"},
       .apply = DecorateWith<AveragesNorms>()},
      {.row = "C14",
       .wrong = "The norm reads the last bucket before its reduction has replaced the rank's own "
                "gradient there.",
       .run = "model=probe:8,8;mode=zero1_broadcast;world_size=2;bucket_cap_bytes=32;"
              "clip_grad_norm=0.1;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(NormBeforeLastReduction)},
  };
}

// What users took for a fault, or a trainer for an error.
std::vector<Fault> BenignNorms() {
  return {
      {.row = "C17",
       .wrong = "Nothing is: no tensor has a gradient in the first step, whose norm of zero is "
                "legal and must stop neither this step nor the next one.",
       .run = "model=probe:4;mode=zero2;world_size=2;usage=0@steps:odd;clip_grad_norm=0.1;steps=2",
       .killers = {},
       .apply = [](const RunDescription&, EngineParts parts) { return parts; },
       .benign = true},
      // Of class H, but about norms.
      {.row = "H11",
       .wrong = "The squares of a norm are added in another order, which may move the last bit "
                "and is no fault.",
       .run = "model=mlp:5,7,3:bias;mode=full_shard;world_size=4;clip_grad_norm=0.01;"
              "micro_batch_size=2;steps=3",
       .killers = {},
       .apply = EditPlans(AddInOtherOrder),
       .benign = true},
  };
}

}  // namespace

std::vector<Fault> ClippingFaults() {
  std::vector<Fault> faults = CoefficientFaults();
  for (Fault& fault : NormFaults()) faults.push_back(std::move(fault));
  for (Fault& fault : BenignNorms()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace shardproof
