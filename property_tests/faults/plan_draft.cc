#include "property_tests/faults/plan_draft.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace shardproof {
namespace {

template <typename T>
std::vector<T> Copy(absl::Span<const T> span) {
  return {span.begin(), span.end()};
}

// Appends `items` to a pool and says where they lie.
template <typename T>
void Append(const std::vector<T>& items, std::vector<T>& pool, int32_t& first, int32_t& count) {
  first = static_cast<int32_t>(pool.size());
  count = static_cast<int32_t>(items.size());
  pool.insert(pool.end(), items.begin(), items.end());
}

void SortByKind(std::vector<PlanAccess>& accesses) {
  std::stable_sort(accesses.begin(), accesses.end(),
                   [](const PlanAccess& a, const PlanAccess& b) { return a.kind < b.kind; });
}

absl::string_view KindName(OpKind kind) {
  switch (kind) {
    case OpKind::kCollective:
      return "collective";
    case OpKind::kForward:
      return "forward";
    case OpKind::kBackward:
      return "backward";
    case OpKind::kReshard:
      return "reshard";
    case OpKind::kRelease:
      return "release";
    case OpKind::kScale:
      return "scale";
    case OpKind::kScaleBy:
      return "scale_by";
    case OpKind::kAccumulate:
      return "accumulate";
    case OpKind::kCopy:
      return "copy";
    case OpKind::kLoss:
      return "loss";
    case OpKind::kNorm:
      return "norm";
    case OpKind::kClipCoefficient:
      return "clip_coefficient";
    case OpKind::kOptimizerUpdate:
      return "optimizer_update";
  }
  return "operation";
}

}  // namespace

PlanDraft Draft(const StepPlan& plan) {
  PlanDraft draft;
  draft.frame.rank = plan.rank;
  draft.frame.buffers = plan.buffers;
  draft.frame.live_before = plan.live_before;
  draft.frame.homes = plan.homes;
  draft.frame.scalar_buffer = plan.scalar_buffer;
  draft.frame.norm_buffer = plan.norm_buffer;
  draft.frame.coefficient_buffer = plan.coefficient_buffer;
  draft.frame.activations = plan.activations;
  draft.frame.activation_gradients = plan.activation_gradients;
  draft.ops.reserve(plan.ops.size() + 4);
  for (const Op& op : plan.ops) {
    DraftOp item;
    item.id = draft.next_id++;
    item.op = op;
    item.waits = Copy(plan.WaitsOf(op));
    item.accesses = Copy(plan.AccessesOf(op));
    item.updates = Copy(plan.UpdatesOf(op));
    item.parameter_uses = Copy(plan.ParameterUsesOf(op));
    item.gradient_uses = Copy(plan.GradientUsesOf(op));
    draft.ops.push_back(std::move(item));
  }
  return draft;
}

StepPlan Build(const PlanDraft& draft) {
  StepPlan plan = draft.frame;
  std::vector<int32_t> place(draft.next_id, -1);
  for (size_t at = 0; at < draft.ops.size(); ++at) {
    const DraftOp& item = draft.ops[at];
    Op op = item.op;
    std::vector<int32_t> waits;
    for (int32_t id : item.waits) {
      if (place[id] >= 0) waits.push_back(place[id]);
    }
    std::sort(waits.begin(), waits.end());
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    Append(waits, plan.waits, op.first_wait, op.wait_count);
    Append(item.accesses, plan.accesses, op.first_access, op.access_count);
    Append(item.updates, plan.updates, op.first_update, op.update_count);
    Append(item.parameter_uses, plan.parameter_uses, op.first_parameter_use,
           op.parameter_use_count);
    Append(item.gradient_uses, plan.gradient_uses, op.first_gradient_use, op.gradient_use_count);
    place[item.id] = static_cast<int32_t>(at);
    plan.ops.push_back(op);
  }
  return plan;
}

void Erase(PlanDraft& draft, size_t at) {
  const DraftOp erased = draft.ops[at];
  int32_t before = -1;
  for (size_t i = 0; i < at; ++i) {
    if (draft.ops[i].op.stream == erased.op.stream) before = draft.ops[i].id;
  }
  draft.ops.erase(draft.ops.begin() + static_cast<int64_t>(at));
  bool waits_moved = false;
  for (size_t i = at; i < draft.ops.size(); ++i) {
    std::vector<int32_t>& waits = draft.ops[i].waits;
    if (before >= 0) std::replace(waits.begin(), waits.end(), erased.id, before);
    if (waits_moved || draft.ops[i].op.stream != erased.op.stream) continue;
    waits.insert(waits.end(), erased.waits.begin(), erased.waits.end());
    waits_moved = true;
  }
}

int32_t Insert(PlanDraft& draft, size_t at, DraftOp op) {
  op.id = draft.next_id++;
  draft.ops.insert(draft.ops.begin() + static_cast<int64_t>(at), std::move(op));
  return draft.next_id - 1;
}

void Move(PlanDraft& draft, size_t from, size_t to) {
  DraftOp op = std::move(draft.ops[from]);
  draft.ops.erase(draft.ops.begin() + static_cast<int64_t>(from));
  const size_t place = to > from ? to - 1 : to;
  draft.ops.insert(draft.ops.begin() + static_cast<int64_t>(place), std::move(op));
}

void DeriveWaits(PlanDraft& draft) {
  using Last = std::array<int32_t, kStreams>;  // places; -1: nothing
  struct Uses {
    Last read = {-1, -1};
    Last write = {-1, -1};
  };
  std::vector<Uses> uses(draft.frame.buffers.size());
  Last freed = {-1, -1};
  Last waited = {-1, -1};
  for (size_t at = 0; at < draft.ops.size(); ++at) {
    DraftOp& item = draft.ops[at];
    const int own = static_cast<int>(item.op.stream);
    const int other = 1 - own;
    int32_t wait = -1;
    for (const PlanAccess& access : item.accesses) {
      wait = std::max(wait, uses[access.buffer].write[other]);
      if (access.kind != AccessKind::kRead) wait = std::max(wait, uses[access.buffer].read[other]);
      if (access.kind == AccessKind::kAllocate) wait = std::max(wait, freed[other]);
    }
    item.waits.clear();
    if (wait > waited[own]) {
      waited[own] = wait;
      item.waits.push_back(draft.ops[wait].id);
    }
    for (const PlanAccess& access : item.accesses) {
      Uses& use = uses[access.buffer];
      (access.kind == AccessKind::kRead ? use.read : use.write)[own] = static_cast<int32_t>(at);
      if (access.kind == AccessKind::kFree) freed[own] = static_cast<int32_t>(at);
    }
  }
}

int32_t AddBuffer(PlanDraft& draft, const BufferSpec& spec) {
  draft.frame.buffers.push_back(spec);
  return static_cast<int32_t>(draft.frame.buffers.size()) - 1;
}

void ReplaceBuffer(DraftOp& op, int32_t from, int32_t to) {
  const auto replace = [&](int32_t& buffer) {
    if (buffer == from) buffer = to;
  };
  replace(op.op.send.buffer);
  replace(op.op.recv.buffer);
  for (PlanAccess& access : op.accesses) replace(access.buffer);
  for (UpdateRange& update : op.updates) {
    replace(update.parameter.buffer);
    replace(update.gradient.buffer);
    replace(update.exp_avg.buffer);
    replace(update.exp_avg_sq.buffer);
  }
  for (SetUse& use : op.parameter_uses) replace(use.buffer);
  for (SetUse& use : op.gradient_uses) replace(use.buffer);
}

void AccessOperands(DraftOp& item, Rank rank) {
  const Op& op = item.op;
  std::vector<PlanAccess>& accesses = item.accesses;
  accesses.erase(std::remove_if(accesses.begin(), accesses.end(),
                                [](const PlanAccess& access) {
                                  return access.kind == AccessKind::kRead ||
                                         access.kind == AccessKind::kWrite;
                                }),
                 accesses.end());
  const auto add = [&](const BufferRange& range, AccessKind kind) {
    if (range.buffer >= 0) accesses.push_back({range.buffer, kind, range.range});
  };
  const bool broadcast =
      op.kind == OpKind::kCollective && op.collective == CollectiveKind::kBroadcast;
  const bool root = broadcast && op.root == rank.value;
  if (!broadcast || root) add(op.send, AccessKind::kRead);
  if (op.kind == OpKind::kScale || op.kind == OpKind::kScaleBy || op.kind == OpKind::kAccumulate) {
    add(op.recv, AccessKind::kRead);
  }
  if (!root) add(op.recv, AccessKind::kWrite);
  SortByKind(accesses);
}

std::string Describe(const Op& op) {
  std::string text(op.kind == OpKind::kCollective ? Name(op.collective) : KindName(op.kind));
  if (op.unit >= 0) absl::StrAppend(&text, " unit ", op.unit);
  if (op.bucket >= 0) absl::StrAppend(&text, " bucket ", op.bucket);
  if (op.tensor >= 0) absl::StrAppend(&text, " tensor ", op.tensor);
  if (op.micro_batch >= 0) absl::StrAppend(&text, " micro_batch ", op.micro_batch);
  return text;
}

}  // namespace shardproof
