#include "property_tests/faults/fault_tools.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace shardproof {

PartsEdit EditPlans(DraftEdit edit) {
  return [edit = std::move(edit)](const RunDescription&, EngineParts parts) {
    parts.plan = [plan = std::move(parts.plan), edit](const RunDescription& run,
                                                      const Placement& placement, Rank rank,
                                                      int64_t step) {
      PlanDraft draft = Draft(plan(run, placement, rank, step));
      edit({run, placement, rank, step}, draft);
      return Build(draft);
    };
    // An edit may look at the step.
    parts.plan_varies_by_step = true;
    return parts;
  };
}

PartsEdit PlanAs(RunEdit edit) {
  return [edit = std::move(edit)](const RunDescription& run, EngineParts parts) {
    const auto other = std::make_shared<RunDescription>(run);
    edit(*other);
    parts.plan = [plan = std::move(parts.plan), other](
                     const RunDescription&, const Placement& placement, Rank rank, int64_t step) {
      return plan(*other, placement, rank, step);
    };
    return parts;
  };
}

PartsEdit PartsAs(RunEdit edit) {
  return [edit = std::move(edit)](const RunDescription& run, EngineParts) {
    const auto other = std::make_shared<RunDescription>(run);
    edit(*other);
    EngineParts parts = PlannedParts(*other);
    parts.plan = [plan = std::move(parts.plan), other](
                     const RunDescription&, const Placement& placement, Rank rank, int64_t step) {
      return plan(*other, placement, rank, step);
    };
    return parts;
  };
}

PartsEdit EditPlacement(std::function<void(const RunDescription& run, Placement& placement)> edit) {
  return [edit = std::move(edit)](const RunDescription& run, EngineParts parts) {
    edit(run, parts.placement);
    return parts;
  };
}

PartsEdit Decorate(
    std::function<std::unique_ptr<Communicator>(const RunDescription& run, Communicator* inner)>
        decorate) {
  return [decorate = std::move(decorate)](const RunDescription& run, EngineParts parts) {
    const auto copy = std::make_shared<RunDescription>(run);
    parts.decorate = [decorate, copy](Rank, Communicator* inner) { return decorate(*copy, inner); };
    return parts;
  };
}

bool IsCollective(const DraftOp& op, CollectiveKind kind) {
  return op.op.kind == OpKind::kCollective && op.op.collective == kind;
}

bool IsReduction(const DraftOp& op) {
  return op.op.kind == OpKind::kCollective && op.op.purpose == Purpose::kReduceGradients;
}

bool IsUnshard(const DraftOp& op) {
  return op.op.kind == OpKind::kCollective && op.op.purpose == Purpose::kUnshardParameters;
}

bool IsKind(const DraftOp& op, OpKind kind) { return op.op.kind == kind; }

bool HasAccess(const DraftOp& op, int32_t buffer, AccessKind kind) {
  return std::any_of(op.accesses.begin(), op.accesses.end(), [&](const PlanAccess& access) {
    return access.buffer == buffer && access.kind == kind;
  });
}

size_t Find(const PlanDraft& draft, const OpTest& test, size_t from) {
  while (from < draft.ops.size() && !test(draft.ops[from])) ++from;
  return from;
}

size_t FindEnd(const PlanDraft& draft, const OpTest& test) {
  size_t end = draft.ops.size();
  while (end > 0 && !test(draft.ops[end - 1])) --end;
  return end;
}

void EraseIf(PlanDraft& draft, const OpTest& test) {
  for (size_t at = draft.ops.size(); at-- > 0;) {
    if (test(draft.ops[at])) Erase(draft, at);
  }
}

void Disable(PlanDraft& draft, size_t at) {
  DraftOp& item = draft.ops[at];
  std::vector<PlanAccess> frees;
  for (const PlanAccess& access : item.accesses) {
    if (access.kind == AccessKind::kFree) frees.push_back(access);
  }
  if (frees.empty()) {
    Erase(draft, at);
    return;
  }
  Op release;
  release.kind = OpKind::kRelease;
  release.phase = item.op.phase;
  release.stream = item.op.stream;
  item.op = release;
  item.accesses = std::move(frees);
  item.updates.clear();
  item.parameter_uses.clear();
  item.gradient_uses.clear();
}

void RemoveAccesses(DraftOp& op, int32_t buffer, AccessKind kind) {
  op.accesses.erase(std::remove_if(op.accesses.begin(), op.accesses.end(),
                                   [&](const PlanAccess& access) {
                                     return access.buffer == buffer && access.kind == kind;
                                   }),
                    op.accesses.end());
}

namespace {

int32_t FullBuffer(const PlanDraft& draft, int32_t set, BufferRole role) {
  int32_t largest = -1;  // a temporary of the same role holds one shard only
  for (size_t buffer = 0; buffer < draft.frame.buffers.size(); ++buffer) {
    const BufferSpec& spec = draft.frame.buffers[buffer];
    if (spec.set != set || spec.role != role) continue;
    if (largest >= 0 && draft.frame.buffers[largest].elements >= spec.elements) continue;
    largest = static_cast<int32_t>(buffer);
  }
  return largest;
}

}  // namespace

int32_t UnreducedBuffer(const PlanDraft& draft, int32_t set) {
  return FullBuffer(draft, set, BufferRole::kUnreducedGradient);
}

int32_t UnshardedBuffer(const PlanDraft& draft, int32_t set) {
  return FullBuffer(draft, set, BufferRole::kUnshardedParameter);
}

DraftOp LocalCopy(Rank rank, const BufferRange& from, const BufferRange& to, StreamId stream) {
  DraftOp copy;
  copy.op.kind = OpKind::kCopy;
  copy.op.phase = Phase::kBackward;
  copy.op.stream = stream;
  copy.op.send = from;
  copy.op.recv = to;
  AccessOperands(copy, rank);
  return copy;
}

FlatLayout LayoutWithShards(const RunDescription& run, const std::vector<int32_t>& tensors,
                            int32_t shards, int64_t shard_elements, int64_t lead) {
  FlatLayout layout;
  layout.shards = shards;
  layout.shard_elements = shard_elements;
  int64_t position = 0;
  const auto add = [&](int32_t tensor, int64_t count) {
    for (int64_t first = 0; first < count;) {
      const int64_t room = shard_elements - position % shard_elements;
      const int64_t part = std::min(room, count - first);
      layout.segments.push_back({tensor, tensor < 0 ? 0 : first, part,
                                 static_cast<int32_t>(position / shard_elements),
                                 position % shard_elements});
      position += part;
      first += part;
    }
  };
  add(-1, lead);
  for (int32_t tensor : tensors) add(tensor, Elements(run.model.tensors[tensor]));
  add(-1, shards * shard_elements - position);
  for (int32_t rank = 0; rank <= shards; ++rank) {
    const auto begins = std::find_if(layout.segments.begin(), layout.segments.end(),
                                     [&](const Segment& segment) { return segment.rank >= rank; });
    layout.first_segment_of_rank.push_back(static_cast<int32_t>(begins - layout.segments.begin()));
  }
  return layout;
}

}  // namespace shardproof
