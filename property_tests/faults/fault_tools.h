// What faults are made of: edits of every plan, other plans, other layouts, decorators.
#ifndef PROPERTY_TESTS_FAULTS_FAULT_TOOLS_H_
#define PROPERTY_TESTS_FAULTS_FAULT_TOOLS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "property_tests/faults/fault.h"
#include "property_tests/faults/plan_draft.h"

namespace shardproof {

// Whose plan of which step is edited.
struct PlanContext {
  const RunDescription& run;
  const Placement& placement;
  Rank rank;
  int64_t step = 0;
};

using DraftEdit = std::function<void(const PlanContext& context, PlanDraft& draft)>;
using RunEdit = std::function<void(RunDescription& run)>;
using OpTest = std::function<bool(const DraftOp& op)>;

// Edits the plan of every rank and step.
PartsEdit EditPlans(DraftEdit edit);
// Plans as for another run, over this run's placement.
PartsEdit PlanAs(RunEdit edit);
// Placement and plans as for another run.
PartsEdit PartsAs(RunEdit edit);
// Edits the placement; the plans are made from what it becomes.
PartsEdit EditPlacement(std::function<void(const RunDescription& run, Placement& placement)> edit);
// Puts a decorator around the communicators of every rank.
PartsEdit Decorate(
    std::function<std::unique_ptr<Communicator>(const RunDescription& run, Communicator* inner)>
        decorate);

// --- operations of a draft ---

bool IsCollective(const DraftOp& op, CollectiveKind kind);
bool IsReduction(const DraftOp& op);  // of gradients
bool IsUnshard(const DraftOp& op);
bool IsKind(const DraftOp& op, OpKind kind);
bool HasAccess(const DraftOp& op, int32_t buffer, AccessKind kind);

// The place of the first operation from `from` on that passes; the number of operations if none.
size_t Find(const PlanDraft& draft, const OpTest& test, size_t from = 0);
// The place behind the last one that passes; 0 if none does.
size_t FindEnd(const PlanDraft& draft, const OpTest& test);

// Takes out what passes. Buffers that it allocated or freed are left alone, see Disable.
void EraseIf(PlanDraft& draft, const OpTest& test);
// The operation does nothing any more, but still frees what it freed.
void Disable(PlanDraft& draft, size_t at);
void RemoveAccesses(DraftOp& op, int32_t buffer, AccessKind kind);

// The transient full gradient of a set; -1: it has none.
int32_t UnreducedBuffer(const PlanDraft& draft, int32_t set);
// The transient full parameters of a set; -1: it has none.
int32_t UnshardedBuffer(const PlanDraft& draft, int32_t set);

// `to` = `from`.
DraftOp LocalCopy(Rank rank, const BufferRange& from, const BufferRange& to, StreamId stream);

// --- layouts ---

// `tensors` back to back behind `lead` elements of padding, cut every `shard_elements`, which
// must suffice.
FlatLayout LayoutWithShards(const RunDescription& run, const std::vector<int32_t>& tensors,
                            int32_t shards, int64_t shard_elements, int64_t lead);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_FAULT_TOOLS_H_
