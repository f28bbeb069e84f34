#include "property_tests/faults/edit_equivalence.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/checks/happens_before.h"
#include "property_tests/faults/plan_draft.h"

namespace shardproof {
namespace {

std::string Key(const BufferRange& range) {
  return absl::StrCat(range.buffer, ":", range.range.first, "+", range.range.count, " ");
}

// Everything that an operation is, but for its place and its waits.
std::string Key(const StepPlan& plan, const Op& op) {
  std::string key = absl::StrCat(static_cast<int>(op.kind), " ", static_cast<int>(op.phase), " ",
                                 static_cast<int>(op.stream), " ", static_cast<int>(op.collective),
                                 " ", static_cast<int>(op.purpose), " ");
  absl::StrAppend(&key, static_cast<int>(op.dtype), " ", op.group.first, ",", op.group.stride, ",",
                  op.group.count, " ", op.root, " ", op.elements, " ");
  absl::StrAppend(&key, Key(op.send), Key(op.recv), op.scale, " ", op.micro_batch, " ", op.unit,
                  " ", op.bucket, " ");
  absl::StrAppend(&key, op.tensor, " ", op.set, " ", op.stage, "+", op.stage_count);
  for (const PlanAccess& access : plan.AccessesOf(op)) {
    absl::StrAppend(&key, " a", static_cast<int>(access.kind), Key({access.buffer, access.range}));
  }
  for (const UpdateRange& update : plan.UpdatesOf(op)) {
    absl::StrAppend(&key, " u", update.tensor, ",", update.count, ",", update.hyper_parameters_of,
                    ",", update.counter_of, ",", update.advance, " ");
    absl::StrAppend(&key, Key(update.parameter), Key(update.gradient), Key(update.exp_avg),
                    Key(update.exp_avg_sq));
  }
  for (const absl::Span<const SetUse> uses : {plan.ParameterUsesOf(op), plan.GradientUsesOf(op)}) {
    absl::StrAppend(&key, " s");
    for (const SetUse& use : uses) {
      absl::StrAppend(&key, " ", use.set, ",", use.buffer, ",", use.accumulate);
    }
  }
  return key;
}

// By operation of the edited plan, its place in the original one; empty with a difference.
std::vector<int32_t> MatchOps(const StepPlan& original, const StepPlan& edited,
                              std::string& difference) {
  std::map<std::string, std::vector<int32_t>> places;  // last first
  for (size_t op = original.ops.size(); op-- > 0;) {
    places[Key(original, original.ops[op])].push_back(static_cast<int32_t>(op));
  }
  std::vector<int32_t> match;
  for (size_t op = 0; op < edited.ops.size(); ++op) {
    std::vector<int32_t>& left = places[Key(edited, edited.ops[op])];
    if (left.empty()) {
      difference = absl::StrCat("operation ", op, ", ", Describe(edited.ops[op]),
                                ", is not one of the original plan");
      return {};
    }
    match.push_back(left.back());
    left.pop_back();
  }
  for (const auto& [key, left] : places) {
    if (left.empty()) continue;
    difference = absl::StrCat("operation ", left.back(), " of the original plan, ",
                              Describe(original.ops[left.back()]), ", is gone");
    return {};
  }
  return match;
}

std::string CompareLedgers(const StepPlan& original, const StepPlan& edited,
                           const std::vector<int32_t>& match) {
  // Places in the original order, by group: they must ascend.
  std::map<Group, int32_t> last;
  for (size_t op = 0; op < edited.ops.size(); ++op) {
    if (edited.ops[op].kind != OpKind::kCollective) continue;
    const auto [place, first] = last.try_emplace(edited.ops[op].group, match[op]);
    if (first) continue;
    if (match[op] < place->second) {
      return absl::StrCat("the group's collectives change their order at ",
                          Describe(original.ops[match[op]]));
    }
    place->second = match[op];
  }
  return "";
}

bool IsCounted(OpKind kind) {
  return kind == OpKind::kCollective || kind == OpKind::kForward || kind == OpKind::kBackward ||
         kind == OpKind::kOptimizerUpdate;
}

// By operation: the elements allocated after its allocations and before its frees, by buffer
// role. What is left at the end comes last.
std::vector<std::map<BufferRole, int64_t>> ByteCurve(const StepPlan& plan) {
  std::set<int32_t> live(plan.live_before.begin(), plan.live_before.end());
  std::map<BufferRole, int64_t> elements;
  for (int32_t buffer : live) elements[plan.buffers[buffer].role] += plan.buffers[buffer].elements;
  std::vector<std::map<BufferRole, int64_t>> curve;
  for (const Op& op : plan.ops) {
    for (const PlanAccess& access : plan.AccessesOf(op)) {
      if (access.kind != AccessKind::kAllocate || !live.insert(access.buffer).second) continue;
      elements[plan.buffers[access.buffer].role] += plan.buffers[access.buffer].elements;
    }
    curve.push_back(elements);
    for (const PlanAccess& access : plan.AccessesOf(op)) {
      if (access.kind != AccessKind::kFree || live.erase(access.buffer) == 0) continue;
      elements[plan.buffers[access.buffer].role] -= plan.buffers[access.buffer].elements;
    }
  }
  curve.push_back(elements);
  return curve;
}

std::string CompareBytes(const StepPlan& original, const StepPlan& edited,
                         const std::vector<int32_t>& match) {
  const auto before = ByteCurve(original);
  const auto after = ByteCurve(edited);
  if (before.back() != after.back()) return "other bytes are left at the end of the step";
  for (size_t op = 0; op < edited.ops.size(); ++op) {
    if (IsCounted(edited.ops[op].kind) && after[op] != before[match[op]]) {
      return absl::StrCat("other bytes are allocated at ", Describe(edited.ops[op]));
    }
  }
  return "";
}

// What HappensBefore needs of a plan.
RankEvents EventsOf(const StepPlan& plan) {
  RankEvents result;
  result.ranks = {plan.rank.value, 1, 1};
  result.waits = plan.waits;
  for (const Op& op : plan.ops) {
    Event event;
    event.kind = op.kind == OpKind::kCollective ? EventKind::kCollective : EventKind::kLocal;
    event.stream = op.stream;
    event.collective = op.collective;
    event.purpose = op.purpose;
    event.group = op.group;
    event.root = op.root;
    event.elements = op.elements;
    event.unit = op.unit;
    event.bucket = op.bucket;
    event.tensor = op.tensor;
    event.first_wait = static_cast<uint32_t>(op.first_wait);
    event.wait_count = static_cast<uint32_t>(op.wait_count);
    result.events.push_back(event);
  }
  return result;
}

std::vector<RankEvents> EventsOf(const std::vector<StepPlan>& plans) {
  std::vector<RankEvents> events;
  for (const StepPlan& plan : plans) events.push_back(EventsOf(plan));
  return events;
}

// Whether two operations have accesses of the same elements whose order matters.
bool Conflict(const StepPlan& plan, const Op& a, const Op& b) {
  for (const PlanAccess& x : plan.AccessesOf(a)) {
    for (const PlanAccess& y : plan.AccessesOf(b)) {
      if (x.buffer != y.buffer || !x.range.Overlaps(y.range)) continue;
      if (x.kind != AccessKind::kRead || y.kind != AccessKind::kRead) return true;
    }
  }
  return false;
}

bool Has(const StepPlan& plan, const Op& op, AccessKind kind) {
  for (const PlanAccess& access : plan.AccessesOf(op)) {
    if (access.kind == kind) return true;
  }
  return false;
}

std::string CompareOrder(const StepPlan& edited, int32_t entry, const std::vector<int32_t>& match,
                         const HappensBefore& before, const HappensBefore& after) {
  const int32_t ops = static_cast<int32_t>(edited.ops.size());
  for (int32_t b = 0; b < ops; ++b) {
    for (int32_t a = 0; a < b; ++a) {
      const Op& earlier = edited.ops[a];
      const Op& later = edited.ops[b];
      // Freed memory may be what is allocated next.
      const bool reuse =
          Has(edited, earlier, AccessKind::kFree) && Has(edited, later, AccessKind::kAllocate);
      if (reuse && !after.Before(entry, a, b)) {
        return absl::StrCat(Describe(later), " allocates without waiting for ", Describe(earlier));
      }
      if (!Conflict(edited, earlier, later)) continue;
      const bool was = before.Before(entry, match[a], match[b]);
      const bool was_reverse = before.Before(entry, match[b], match[a]);
      if (was == after.Before(entry, a, b) && was_reverse == after.Before(entry, b, a)) continue;
      return absl::StrCat(Describe(earlier), " and ", Describe(later),
                          " conflict and are ordered otherwise");
    }
  }
  return "";
}

}  // namespace

Equivalence EquivalentPlans(const std::vector<StepPlan>& original,
                            const std::vector<StepPlan>& edited) {
  const auto differ = [](size_t rank, const std::string& what) {
    return Equivalence{false, absl::StrCat("rank ", rank, ": ", what)};
  };
  std::vector<std::vector<int32_t>> matches;
  for (size_t rank = 0; rank < edited.size(); ++rank) {
    std::string difference;
    if (original[rank].live_before != edited[rank].live_before) {
      return differ(rank, "other buffers are live before the step");
    }
    matches.push_back(MatchOps(original[rank], edited[rank], difference));
    if (difference.empty()) {
      difference = CompareLedgers(original[rank], edited[rank], matches[rank]);
    }
    if (difference.empty()) difference = CompareBytes(original[rank], edited[rank], matches[rank]);
    if (!difference.empty()) return differ(rank, difference);
  }
  const std::vector<RankEvents> events_before = EventsOf(original);
  const std::vector<RankEvents> events_after = EventsOf(edited);
  HappensBefore before;
  HappensBefore after;
  before.Build(events_before);
  before.Refine();
  after.Build(events_after);
  after.Refine();
  if (after.mismatch().found) {
    return differ(after.mismatch().entry, "collectives of the ranks do not match");
  }
  for (size_t rank = 0; rank < edited.size(); ++rank) {
    const std::string difference =
        CompareOrder(edited[rank], static_cast<int32_t>(rank), matches[rank], before, after);
    if (!difference.empty()) return differ(rank, difference);
  }
  return {true, ""};
}

}  // namespace shardproof
