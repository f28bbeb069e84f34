// Classes G and H: padded and logical lengths mixed, empty shards, and the edges of buckets.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/forwarding_communicator.h"
#include "property_tests/faults/families.h"
#include "property_tests/faults/fault_tools.h"

namespace shardproof {
namespace {

bool IsScale(const DraftOp& op) { return IsKind(op, OpKind::kScale); }

// Puts what it gathered down by lengths without the `padding` elements at each part's end.
class GathersByLogicalStride : public ForwardingCommunicator {
 public:
  GathersByLogicalStride(Communicator* inner, int64_t padding)
      : ForwardingCommunicator(inner), padding_(padding) {}

  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    if (call.kind != CollectiveKind::kAllGather) return inner().Start(call);
    std::vector<float> gathered(call.elements);
    CollectiveCall aside = call;
    aside.recv = gathered.data();
    absl::StatusOr<CollectiveHandle> handle = inner().Start(aside);
    if (handle.ok()) pending_[handle->id] = {call, std::move(gathered)};
    return handle;
  }

  absl::StatusOr<bool> Poll(CollectiveHandle handle) override {
    absl::StatusOr<bool> done = inner().Poll(handle);
    const auto found = pending_.find(handle.id);
    if (!done.ok() || !*done || found == pending_.end()) return done;
    const int64_t part = found->second.call.elements / inner().group().count;
    float* out = static_cast<float*>(found->second.call.recv);
    for (int32_t member = 0; member < inner().group().count; ++member) {
      std::copy_n(found->second.gathered.data() + member * part, part,
                  out + member * (part - padding_));
    }
    pending_.erase(found);
    return done;
  }

 private:
  struct Pending {
    CollectiveCall call;
    std::vector<float> gathered;
  };
  const int64_t padding_;
  std::map<int64_t, Pending> pending_;  // by handle
};

// Ranks from the third on take part in sums with zeros.
class SumsTwoRanks : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    if (call.kind != CollectiveKind::kAllReduce || rank().value < 2) return inner().Start(call);
    // Kept to the end of the run: the call may be carried out much later.
    zeros_.emplace_back(call.elements, 0.0f);
    CollectiveCall empty = call;
    empty.send = zeros_.back().data();
    return inner().Start(empty);
  }

 private:
  std::vector<std::vector<float>> zeros_;
};

DraftEdit WithoutReduction(std::function<bool(const PlanContext&, const TensorSet&)> test,
                           bool scaled) {
  return [test = std::move(test), scaled](const PlanContext& context, PlanDraft& draft) {
    EraseIf(draft, [&](const DraftOp& op) {
      if (!IsReduction(op) && (scaled || !IsScale(op))) return false;
      return test(context, context.placement.sets[op.op.set]);
    });
  };
}

// The map from a shard to tensors ends at the first tensor without elements.
void EndFragmentsAtEmptyTensor(const PlanContext& context, PlanDraft& draft) {
  const std::vector<TensorSpec>& tensors = context.run.model.tensors;
  int32_t empty = 0;
  while (Elements(tensors[empty]) > 0) ++empty;
  for (DraftOp& item : draft.ops) {
    if (!IsKind(item, OpKind::kOptimizerUpdate)) continue;
    item.updates.erase(
        std::remove_if(item.updates.begin(), item.updates.end(),
                       [empty](const UpdateRange& update) { return update.tensor > empty; }),
        item.updates.end());
  }
}

// A last tensor without elements opens a bucket of its own, and that is sent too.
void ReduceEmptyBucket(const PlanContext& context, PlanDraft& draft) {
  const size_t at = Find(draft, IsReduction);
  DraftOp empty = draft.ops[at];
  empty.op.elements = 0;
  empty.op.send.range = empty.op.recv.range = {0, 0};
  empty.accesses.clear();
  AccessOperands(empty, context.rank);
  Insert(draft, at, empty);
}

void FlushPlaceholder(const PlanContext& context, PlanDraft& draft) {
  const size_t at = Find(draft, IsReduction);
  const int64_t elements = draft.ops[at].op.elements;
  const int32_t placeholder =
      AddBuffer(draft, {.role = BufferRole::kWorkspace, .elements = elements});
  draft.frame.live_before.push_back(placeholder);
  draft.ops[at].op.send.buffer = placeholder;
  AccessOperands(draft.ops[at], context.rank);
}

// Nobody knows the owner, so every rank receives every sum and keeps its part.
void AllReduceInsteadOfReduce(const PlanContext& context, PlanDraft& draft) {
  for (size_t at = 0; at < draft.ops.size(); ++at) {
    if (!IsReduction(draft.ops[at])) continue;
    DraftOp& item = draft.ops[at];
    const BufferRange home = item.op.recv;
    DraftOp keep =
        LocalCopy(context.rank,
                  {item.op.send.buffer, {context.rank.value * home.range.count, home.range.count}},
                  home, item.op.stream);
    for (const PlanAccess& access : item.accesses) {
      if (access.kind == AccessKind::kAllocate) {
        keep.accesses.insert(keep.accesses.begin(), access);
      }
    }
    item.accesses.clear();
    item.op.collective = CollectiveKind::kAllReduce;
    item.op.recv = item.op.send;
    AccessOperands(item, context.rank);
    Insert(draft, ++at, keep);
  }
  DeriveWaits(draft);
}

// The set's tensors behind `lead` elements of padding, in shards of `shard_elements`.
void Relayout(const RunDescription& run, TensorSet& set, int64_t shard_elements, int64_t lead) {
  set.layout = LayoutWithShards(run, set.tensors, set.layout.shards, shard_elements, lead);
}

// After the first bucket was sent its count of elements stays, so every tensor fills a bucket.
void OneTensorABucket(const RunDescription& run, Placement& placement) {
  const Placement planned = placement;
  placement.sets.resize(1);
  for (size_t index = 1; index < planned.sets.size(); ++index) {
    for (int32_t tensor : planned.sets[index].tensors) {
      TensorSet set = planned.sets[index];
      set.tensors = {tensor};
      set.tensor_elements = set.trainable_elements = Elements(run.model.tensors[tensor]);
      const int32_t shards = set.layout.shards;
      set.layout = MakeLayout(run.model, set.tensors, run.sharding.layout, shards,
                              DtypeBytes(Dtype::kFloat32));
      set.bucket = static_cast<int32_t>(placement.sets.size());
      placement.parameter_set[tensor] = placement.gradient_set[tensor] =
          placement.moment_set[tensor] = set.bucket;
      placement.gradient_offset[tensor] = placement.moment_offset[tensor] = 0;
      placement.sets.push_back(set);
    }
  }
}

std::vector<Fault> PaddingFaults() {
  return {
      {.row = "G1",
       .wrong = "The gathered buffer is sized by padded lengths and filled by logical ones, so "
                "that one part's padding lands on the next one's elements.",
       .run = "model=mlp:4,3:bias;mode=full_shard;layout=rows;world_size=2;micro_batch_size=2;"
              "steps=1",
       .killers = {"numeric_equivalence"},
       .apply = Decorate([](const RunDescription&, Communicator* inner) {
         return std::make_unique<GathersByLogicalStride>(inner, /*padding=*/1);
       })},
      {.row = "G4",
       .wrong = "A bucket that a special tensor opens begins at an offset that the ranks do not "
                "divide.",
       .run = "model=probe:10,4,8;mode=zero1_allgather;world_size=4;bucket_cap_bytes=4;steps=1",
       .killers = {"aggregate_factors", "padding"},
       .apply = EditPlacement([](const RunDescription& run, Placement& placement) {
         Relayout(run, placement.sets[0], /*shard_elements=*/3, /*lead=*/2);
       })},
      {.row = "G14",
       .wrong = "Lengths are rounded up for two ranks, and the third one's shard is padding.",
       .run = "model=probe:7;mode=zero1_allgather;world_size=3;steps=1",
       .killers = {"aggregate_factors", "padding"},
       .apply = EditPlacement([](const RunDescription& run, Placement& placement) {
         Relayout(run, placement.sets[0], /*shard_elements=*/4, /*lead=*/0);
       })},
      {.row = "G16",
       .wrong = "Sets of very few elements take a path of their own, which does not divide.",
       .run = "model=probe:2x2,6x6;mode=zero2;world_size=2;bucket_cap_bytes=4;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans([](const PlanContext& context, PlanDraft& draft) {
         EraseIf(draft, [&](const DraftOp& op) {
           return IsScale(op) && context.placement.sets[op.op.set].tensor_elements <= 4;
         });
       })},
  };
}

std::vector<Fault> EmptyTensorFaults() {
  return {
      {.row = "G7",
       .wrong = "A tensor without elements inside a partition ends the map of its fragments, and "
                "what lies behind it is never updated.",
       .run = "model=probe:8,0,24;mode=zero1_allgather;world_size=2;steps=1",
       .killers = {"liveness", "numeric_equivalence", "provenance"},
       .apply = EditPlans(EndFragmentsAtEmptyTensor)},
      {.row = "G8",
       .wrong = "A last tensor without elements makes the reduction send an empty bucket.",
       .run = "model=probe:8,0;mode=zero2;world_size=2;steps=1",
       .killers = {"collective_ledger"},
       .apply = EditPlans(ReduceEmptyBucket)},
  };
}

std::vector<Fault> BucketSizeFaults() {
  return {
      {.row = "H1",
       .wrong = "A tensor of exactly the bucket's size is never reduced.",
       .run = "model=probe:5,16;mode=zero1_allgather;world_size=2;bucket_cap_bytes=64;steps=1",
       .killers = {"numeric_equivalence", "collective_ledger", "provenance"},
       .apply = EditPlans(WithoutReduction(
           [](const PlanContext& context, const TensorSet& set) {
             return set.tensor_elements * 4 == context.run.sharding.bucket_cap_bytes;
           },
           /*scaled=*/true))},
      {.row = "H2",
       .wrong = "The count of elements is not cleared when a bucket is sent, so every later "
                "bucket holds one tensor.",
       .run = "model=probe:4,4,4,4,4,4,4,4,4,4;mode=zero2;world_size=2;bucket_cap_bytes=64;"
              "steps=1",
       .killers = {"collective_ledger"},
       .apply = EditPlacement(OneTensorABucket)},
      {.row = "H4",
       .wrong = "A first tensor larger than the bucket makes the empty placeholder be sent in its "
                "place.",
       .run = "model=probe:3,32;mode=zero2;world_size=2;bucket_cap_bytes=32;steps=1",
       .killers = {"numeric_equivalence", "provenance"},
       .apply = EditPlans(FlushPlaceholder)},
  };
}

std::vector<Fault> BucketSendFaults() {
  return {
      {.row = "H7",
       .wrong = "The owner of a gradient is lost, so all ranks receive all of the sum with an "
                "all-reduce and keep their part.",
       .run = "model=probe:16;mode=zero2;world_size=4;steps=1",
       .killers = {"collective_ledger"},
       .apply = EditPlans(AllReduceInsteadOfReduce)},
      {.row = "H8",
       .wrong = "A tensor without a gradient never reports, so its bucket stays part-full and is "
                "never sent.",
       .run = "model=probe:4,4,4;mode=zero1_allgather;world_size=2;bucket_cap_bytes=32;"
              "usage=1@steps:never;steps=1",
       .killers = {"collective_ledger", "numeric_equivalence", "provenance"},
       .apply = EditPlans(WithoutReduction(
           [](const PlanContext& context, const TensorSet& set) {
             return std::any_of(set.tensors.begin(), set.tensors.end(), [&](int32_t tensor) {
               return !IsUsedInStep(context.run, tensor, context.step);
             });
           },
           /*scaled=*/false))},
      {.row = "H10",
       .wrong = "Sums contain the first two ranks only, which two ranks cannot show.",
       .run = "model=probe:6,5;mode=replicated;world_size=4;steps=1",
       .killers = {"numeric_equivalence"},
       .apply = Decorate([](const RunDescription&, Communicator* inner) {
         return std::make_unique<SumsTwoRanks>(inner);
       })},
  };
}

}  // namespace

std::vector<Fault> LayoutFaults() {
  std::vector<Fault> faults = PaddingFaults();
  for (Fault& fault : EmptyTensorFaults()) faults.push_back(std::move(fault));
  for (Fault& fault : BucketSizeFaults()) faults.push_back(std::move(fault));
  for (Fault& fault : BucketSendFaults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace shardproof
