#include "property_tests/faults/plan_edits.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace shardproof {
namespace {

// Collects the edits of one operation.
class OpEditor {
 public:
  OpEditor(const RunDescription& run, const PlanDraft& draft, size_t at)
      : run_(run), draft_(draft), at_(at), item_(draft.ops[at]) {}

  std::vector<OpEdit> All() {
    Sequence();
    if (item_.op.kind == OpKind::kCollective) {
      Groups();
      Kinds();
    }
    Operands();
    Uses();
    Updates();
    Scales();
    Waits();
    Frees();
    return std::move(edits_);
  }

 private:
  const Op& op() const { return item_.op; }

  void Add(EditKind kind, std::string text, std::function<void(PlanDraft&)> apply) {
    edits_.push_back({kind, std::move(text), std::move(apply)});
  }
  // An edit of this operation alone.
  void AddLocal(EditKind kind, std::string text, std::function<void(DraftOp&)> apply) {
    Add(kind, std::move(text),
        [at = at_, apply = std::move(apply)](PlanDraft& draft) { apply(draft.ops[at]); });
  }
  // An edit of send or recv, which the accesses follow.
  void AddOperand(EditKind kind, std::string text, std::function<void(Op&)> apply) {
    AddLocal(kind, std::move(text),
             [apply = std::move(apply), rank = draft_.frame.rank](DraftOp& item) {
               apply(item.op);
               AccessOperands(item, rank);
             });
  }

  void Sequence() {
    Add(EditKind::kDrop, "drop", [at = at_](PlanDraft& draft) { Erase(draft, at); });
    Add(EditKind::kDuplicate, "duplicate", [at = at_](PlanDraft& draft) {
      const DraftOp again = draft.ops[at];
      Insert(draft, at + 1, again);
    });
    if (at_ + 1 == draft_.ops.size()) return;
    Add(EditKind::kSwap, "swap with the next",
        [at = at_](PlanDraft& draft) { Move(draft, at + 1, at); });
    size_t next = at_ + 1;
    while (next < draft_.ops.size() && draft_.ops[next].op.stream != op().stream) ++next;
    if (next == at_ + 1 || next == draft_.ops.size()) return;
    Add(EditKind::kSwap, "swap with the next of its stream",
        [at = at_, next](PlanDraft& draft) { std::swap(draft.ops[at], draft.ops[next]); });
  }

  void Groups() {
    const int32_t rank = draft_.frame.rank.value;
    const int32_t world = run_.sharding.world_size.value;
    if (world > 2 && world % 2 == 0) {
      const int32_t half = world / 2;
      Regroup("in a group of half the ranks", {rank < half ? 0 : half, 1, half});
    }
    if (world > 1) Regroup("in a group of one rank", {rank, 1, 1});
  }

  // The part that each rank gives or gets keeps its size.
  void Regroup(std::string text, Group group) {
    AddOperand(EditKind::kGroup, std::move(text), [group](Op& op) {
      const int64_t part = op.elements / op.group.count;
      if (op.collective == CollectiveKind::kAllGather) {
        op.recv.range.count = part * group.count;
        op.elements = op.recv.range.count;
      } else if (op.collective == CollectiveKind::kReduceScatter) {
        op.send.range.count = part * group.count;
        op.elements = op.send.range.count;
      } else if (op.collective == CollectiveKind::kBroadcast) {
        op.root = group.Contains(Rank{op.root}) ? op.root : group.first;
      }
      op.group = group;
    });
  }

  void Kinds() {
    const auto become = [](CollectiveKind kind, BufferRange Op::*whole) {
      return [kind, whole](Op& op) {
        op.collective = kind;
        op.send = op.recv = op.*whole;
        op.root = kind == CollectiveKind::kBroadcast ? op.group.first : -1;
      };
    };
    switch (op().collective) {
      case CollectiveKind::kAllReduce:
        AddOperand(EditKind::kKind, "as broadcast", become(CollectiveKind::kBroadcast, &Op::recv));
        if (op().elements % op().group.count == 0 && op().group.count > 1) {
          AddOperand(EditKind::kKind, "as reduce_scatter", [rank = draft_.frame.rank](Op& op) {
            op.collective = CollectiveKind::kReduceScatter;
            const int64_t part = op.elements / op.group.count;
            op.recv.range = {op.recv.range.first + rank.value * part, part};
          });
        }
        break;
      case CollectiveKind::kAllGather:
        AddOperand(EditKind::kKind, "as broadcast", become(CollectiveKind::kBroadcast, &Op::recv));
        AddOperand(EditKind::kKind, "as all_reduce", become(CollectiveKind::kAllReduce, &Op::recv));
        break;
      case CollectiveKind::kReduceScatter:
        AddOperand(EditKind::kKind, "as all_reduce", become(CollectiveKind::kAllReduce, &Op::send));
        AddOperand(EditKind::kKind, "as broadcast", become(CollectiveKind::kBroadcast, &Op::send));
        break;
      case CollectiveKind::kBroadcast:
        AddOperand(EditKind::kKind, "as all_reduce", become(CollectiveKind::kAllReduce, &Op::recv));
        break;
      case CollectiveKind::kBarrier:
        break;
    }
  }

  // A buffer that could be taken for this one: -1 if there is none.
  int32_t OtherBuffer(int32_t buffer, int64_t elements) const {
    const std::vector<BufferSpec>& buffers = draft_.frame.buffers;
    const int32_t count = static_cast<int32_t>(buffers.size());
    for (int32_t i = 1; buffer >= 0 && i < count; ++i) {
      const int32_t other = (buffer + i) % count;
      if (buffers[other].role == buffers[buffer].role &&
          buffers[other].dtype == buffers[buffer].dtype && buffers[other].elements >= elements) {
        return other;
      }
    }
    return -1;
  }

  // The range one element on, or back; the same if its buffer has no room.
  BufferRange Shifted(BufferRange range) const {
    if (range.buffer < 0) return range;
    if (range.range.end() < draft_.frame.buffers[range.buffer].elements) {
      ++range.range.first;
    } else if (range.range.first > 0) {
      --range.range.first;
    }
    return range;
  }

  void Operands() {
    const bool operands = op().kind == OpKind::kCollective || op().kind == OpKind::kScale ||
                          op().kind == OpKind::kScaleBy || op().kind == OpKind::kAccumulate ||
                          op().kind == OpKind::kCopy;
    if (!operands) return;
    if (op().send.buffer == op().recv.buffer) {
      InPlaceOperand();
    } else {
      Operand("send", &Op::send);
      Operand("recv", &Op::recv);
    }
    if (op().kind == OpKind::kCollective && op().collective == CollectiveKind::kBroadcast &&
        op().group.count > 1) {
      AddOperand(EditKind::kOperand, "from the next root", [](Op& op) {
        op.root = op.group.first +
                  (op.root - op.group.first + op.group.stride) % (op.group.count * op.group.stride);
      });
    }
  }

  void Operand(const std::string& name, BufferRange Op::*operand) {
    const BufferRange& range = op().*operand;
    if (range.buffer < 0) return;
    const int32_t other = OtherBuffer(range.buffer, range.range.end());
    if (other >= 0) {
      AddOperand(EditKind::kOperand, absl::StrCat(name, " in another buffer"),
                 [operand, other](Op& op) { (op.*operand).buffer = other; });
    }
    const BufferRange shifted = Shifted(range);
    if (shifted.range == range.range) return;
    AddOperand(EditKind::kOperand, absl::StrCat(name, " off by one"),
               [operand, shifted](Op& op) { op.*operand = shifted; });
  }

  void InPlaceOperand() {
    const BufferRange& all = op().recv;
    const int32_t other = OtherBuffer(all.buffer, all.range.end());
    if (other >= 0) {
      AddOperand(EditKind::kOperand, "in another buffer",
                 [other](Op& op) { op.send.buffer = op.recv.buffer = other; });
    }
    // A gather may not send a part of where it receives that is not its own.
    if (!(op().send.range == all.range)) return;
    const BufferRange shifted = Shifted(all);
    if (shifted.range == all.range) return;
    AddOperand(EditKind::kOperand, "off by one",
               [shifted](Op& op) { op.send = op.recv = shifted; });
  }

  // What computation reads and writes.
  void Uses() {
    for (size_t i = 0; i < item_.parameter_uses.size(); ++i) {
      const int32_t buffer = item_.parameter_uses[i].buffer;
      const int32_t other = OtherUse(buffer);
      if (other < 0) continue;
      AddLocal(EditKind::kOperand, absl::StrCat("parameters ", i, " of another set"),
               [this_buffer = buffer, other](DraftOp& item) {
                 ReplaceBuffer(item, this_buffer, other);
               });
    }
    for (size_t i = 0; i < item_.gradient_uses.size(); ++i) {
      const SetUse& use = item_.gradient_uses[i];
      const int32_t other = OtherUse(use.buffer);
      if (other >= 0) {
        AddLocal(
            EditKind::kOperand, absl::StrCat("gradients ", i, " of another set"),
            [buffer = use.buffer, other](DraftOp& item) { ReplaceBuffer(item, buffer, other); });
      }
      if (use.buffer < 0) continue;
      AddLocal(EditKind::kOperand,
               absl::StrCat("gradients ", i, use.accumulate ? " overwritten" : " added"),
               [i](DraftOp& item) { FlipAccumulate(item, i); });
    }
  }

  // Only of the same size: accesses cover whole buffers.
  int32_t OtherUse(int32_t buffer) const {
    if (buffer < 0) return -1;
    const int64_t elements = draft_.frame.buffers[buffer].elements;
    const int32_t other = OtherBuffer(buffer, elements);
    return other >= 0 && draft_.frame.buffers[other].elements == elements ? other : -1;
  }

  static bool HasRead(const DraftOp& item, int32_t buffer) {
    return std::any_of(item.accesses.begin(), item.accesses.end(), [&](const PlanAccess& access) {
      return access.buffer == buffer && access.kind == AccessKind::kRead;
    });
  }

  static void FlipAccumulate(DraftOp& item, size_t i) {
    SetUse& use = item.gradient_uses[i];
    use.accumulate = !use.accumulate;
    std::vector<PlanAccess> accesses;
    for (const PlanAccess& access : item.accesses) {
      const bool read = access.buffer == use.buffer && access.kind == AccessKind::kRead;
      const bool write = access.buffer == use.buffer && access.kind == AccessKind::kWrite;
      if (read && !use.accumulate) continue;
      // The second use of a tied tensor has the read already.
      if (write && use.accumulate && !HasRead(item, use.buffer)) {
        accesses.push_back({access.buffer, AccessKind::kRead, access.range});
      }
      accesses.push_back(access);
    }
    std::stable_sort(accesses.begin(), accesses.end(),
                     [](const PlanAccess& a, const PlanAccess& b) { return a.kind < b.kind; });
    item.accesses = std::move(accesses);
  }

  void Updates() {
    for (size_t i = 0; i < item_.updates.size(); ++i) {
      const UpdateRange& update = item_.updates[i];
      AddLocal(EditKind::kOperand, absl::StrCat("without range ", i), [i](DraftOp& item) {
        item.updates.erase(item.updates.begin() + static_cast<int64_t>(i));
      });
      UpdateOperand(i, "gradient", &UpdateRange::gradient);
      UpdateOperand(i, "parameter", &UpdateRange::parameter);
      UpdateOperand(i, "exp_avg", &UpdateRange::exp_avg);
      UpdateOperand(i, "exp_avg_sq", &UpdateRange::exp_avg_sq);
      if (op().kind != OpKind::kOptimizerUpdate) continue;
      UpdateOperands(i, update);
      AddLocal(EditKind::kOperand,
               absl::StrCat("range ", i, update.advance > 0 ? " not counted" : " counted"),
               [i](DraftOp& item) { item.updates[i].advance = 1 - item.updates[i].advance; });
    }
  }

  // Another tensor's counter and hyper-parameters, where those are others.
  void UpdateOperands(size_t i, const UpdateRange& update) {
    const int32_t tensors = static_cast<int32_t>(run_.model.tensors.size());
    const int32_t other = (update.tensor + 1) % tensors;
    if (other == update.tensor) return;
    if (update.advance > 0) {
      AddLocal(EditKind::kOperand, absl::StrCat("range ", i, " by another counter"),
               [i, other](DraftOp& item) { item.updates[i].counter_of = other; });
    }
    if (run_.optimizer.groups.empty()) return;
    AddLocal(EditKind::kOperand, absl::StrCat("range ", i, " by other hyper-parameters"),
             [i, other](DraftOp& item) { item.updates[i].hyper_parameters_of = other; });
  }

  void UpdateOperand(size_t i, const std::string& name, BufferRange UpdateRange::*operand) {
    const BufferRange& range = item_.updates[i].*operand;
    if (range.buffer < 0) return;
    const int32_t other = OtherBuffer(range.buffer, range.range.end());
    if (other >= 0) {
      AddLocal(EditKind::kOperand, absl::StrCat(name, " of range ", i, " in another buffer"),
               [i, operand, other](DraftOp& item) {
                 const BufferRange from = item.updates[i].*operand;
                 (item.updates[i].*operand).buffer = other;
                 AlsoAccess(item, from, other);
               });
    }
    const BufferRange shifted = Shifted(range);
    if (shifted.range == range.range) return;
    AddLocal(EditKind::kOperand, absl::StrCat(name, " of range ", i, " off by one"),
             [i, operand, shifted](DraftOp& item) { item.updates[i].*operand = shifted; });
  }

  // As the buffer that it was meant to use.
  static void AlsoAccess(DraftOp& item, const BufferRange& meant, int32_t buffer) {
    const std::vector<PlanAccess> before = item.accesses;
    for (const PlanAccess& access : before) {
      if (access.buffer != meant.buffer || access.kind == AccessKind::kAllocate ||
          access.kind == AccessKind::kFree) {
        continue;
      }
      item.accesses.push_back({buffer, access.kind, meant.range});
    }
    std::stable_sort(item.accesses.begin(), item.accesses.end(),
                     [](const PlanAccess& a, const PlanAccess& b) { return a.kind < b.kind; });
  }

  void Scales() {
    if (op().kind != OpKind::kScale && op().kind != OpKind::kClipCoefficient) return;
    const float scale = op().scale;
    if (scale == 1.0f) return;
    AddLocal(EditKind::kScale, "scale 1", [](DraftOp& item) { item.op.scale = 1.0f; });
    AddLocal(EditKind::kScale, "scale squared",
             [](DraftOp& item) { item.op.scale *= item.op.scale; });
  }

  void Waits() {
    for (size_t i = 0; i < item_.waits.size(); ++i) {
      AddLocal(EditKind::kWait, absl::StrCat("without wait ", i), [i](DraftOp& item) {
        item.waits.erase(item.waits.begin() + static_cast<int64_t>(i));
      });
    }
  }

  void Frees() {
    int32_t frees = 0;
    for (size_t i = 0; i < item_.accesses.size(); ++i) {
      if (item_.accesses[i].kind != AccessKind::kFree) continue;
      AddLocal(EditKind::kFree, absl::StrCat("without free ", frees++), [i](DraftOp& item) {
        item.accesses.erase(item.accesses.begin() + static_cast<int64_t>(i));
      });
    }
  }

  const RunDescription& run_;
  const PlanDraft& draft_;
  const size_t at_;
  const DraftOp& item_;
  std::vector<OpEdit> edits_;
};

}  // namespace

absl::string_view Name(EditKind kind) {
  constexpr absl::string_view kNames[kEditKinds] = {"drop",    "duplicate", "swap", "group", "kind",
                                                    "operand", "scale",     "wait", "free"};
  return kNames[static_cast<int>(kind)];
}

std::vector<OpEdit> EditsOfOp(const RunDescription& run, const PlanDraft& draft, size_t at) {
  return OpEditor(run, draft, at).All();
}

std::vector<PlanEdit> EditsOfStep(const RunDescription& run, int64_t step) {
  const EngineParts parts = PlannedParts(run);
  const int32_t last = run.sharding.world_size.value - 1;
  const PlanDraft draft = Draft(parts.plan(run, parts.placement, Rank{last}, step));
  std::vector<PlanEdit> edits;
  for (size_t at = 0; at < draft.ops.size(); ++at) {
    for (OpEdit& edit : EditsOfOp(run, draft, at)) {
      const std::string name =
          absl::StrCat("op ", at, " ", Describe(draft.ops[at].op), ": ", edit.text);
      const int32_t op = static_cast<int32_t>(at);
      edits.push_back({edit.kind, op, -1, edit.text, absl::StrCat(name, ", all ranks")});
      if (last == 0) continue;
      edits.push_back({edit.kind, op, last, edit.text, absl::StrCat(name, ", rank ", last)});
    }
  }
  return edits;
}

PartsEdit ApplyEdit(const PlanEdit& edit, int64_t step) {
  return [edit, step](const RunDescription&, EngineParts parts) {
    parts.plan = [plan = std::move(parts.plan), edit, step](const RunDescription& run,
                                                            const Placement& placement, Rank rank,
                                                            int64_t of_step) {
      StepPlan planned = plan(run, placement, rank, of_step);
      if (of_step != step || (edit.rank >= 0 && edit.rank != rank.value)) return planned;
      PlanDraft draft = Draft(planned);
      if (edit.op >= static_cast<int32_t>(draft.ops.size())) return planned;
      for (const OpEdit& own : EditsOfOp(run, draft, edit.op)) {
        if (own.text != edit.text) continue;
        own.apply(draft);
        return Build(draft);
      }
      return planned;
    };
    parts.plan_varies_by_step = true;
    return parts;
  };
}

absl::StatusOr<PlanEdit> FindEdit(const RunDescription& run, int64_t step, absl::string_view name) {
  std::vector<PlanEdit> edits = EditsOfStep(run, step);
  for (PlanEdit& edit : edits) {
    if (edit.name == name) return std::move(edit);
  }
  return absl::NotFoundError(absl::StrCat("edit '", name, "' is unknown; the step has ",
                                          edits.size(), ", from '", edits.front().name, "' to '",
                                          edits.back().name, "'"));
}

}  // namespace shardproof
