// What collective_ledger, issue_order and peak_memory share: which events are items of the
// mode's step, how an event and an expected item are the same item, and how to name one.
// Private to the checks.
#ifndef INVARIANTS_CHECKS_ISSUED_ITEMS_H_
#define INVARIANTS_CHECKS_ISSUED_ITEMS_H_

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "invariants/closed_forms/closed_forms.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Whether the collective is the mode's own: the first four purposes.
inline bool IsOfMode(Purpose purpose) { return purpose <= Purpose::kGatherParameters; }

// Whether the closed form's sequence says when a collective of this purpose is issued: those of
// the mode, and the clip norm.
inline bool IsInSequence(Purpose purpose) {
  return IsOfMode(purpose) || purpose == Purpose::kClipNorm;
}

// Whether the event is of a kind that the closed form's sequence lists.
inline bool IsItem(const Event& event) {
  return event.kind == EventKind::kCompute || event.kind == EventKind::kOptimizer ||
         (event.kind == EventKind::kCollective && IsInSequence(event.purpose));
}

// Says which item of the step this is, and nothing of how it was carried out (elements,
// dtype, group). Fields that do not tell items of a kind apart are left at their defaults:
// what a trainer writes there is nobody's rule.
struct ItemKey {
  EventKind kind = EventKind::kCompute;
  Phase phase = Phase::kForward;
  CollectiveKind collective = CollectiveKind::kBarrier;
  Purpose purpose = Purpose::kNone;
  int32_t micro_batch = -1;  // forward and backward only
  int32_t set = -1;          // unit or bucket, as the mode has; broadcast: tensor
  int32_t root = -1;         // broadcast only
  int32_t stage = -1;        // compute only
  int32_t stage_count = 0;
  auto operator<=>(const ItemKey&) const = default;
};

// `Item` is Event or ExpectedItem, whose fields mean the same.
template <typename Item>
ItemKey KeyOf(Mode mode, const Item& item) {
  ItemKey key;
  key.kind = item.kind;
  key.phase = item.phase;
  if (item.phase != Phase::kOptimizer) key.micro_batch = item.micro_batch;
  if (item.kind == EventKind::kCompute) {
    key.stage = item.stage;
    key.stage_count = item.stage_count;
    return key;
  }
  key.set = ShardsUnits(mode) ? item.unit : item.bucket;
  if (item.kind == EventKind::kOptimizer) {
    if (mode == Mode::kZero1Broadcast) key.set = -1;  // one update in all
    return key;
  }
  key.collective = item.collective;
  key.purpose = item.purpose;
  if (item.purpose == Purpose::kClipNorm) key.set = -1;  // of no unit or bucket
  if (item.collective == CollectiveKind::kBroadcast) {
    key.set = item.tensor;
    key.root = item.root;
  }
  return key;
}

// The keys of a sequence, in order.
std::vector<ItemKey> KeysOf(Mode mode, const std::vector<ExpectedItem>& sequence);

// "all-gather of layers.3 in backward", "backward of layers.6", "update of bucket 2"; with
// several micro-batches the micro-batch is named too.
std::string ItemText(const RunDescription& run, const ItemKey& key);

// The name of the unit or bucket of a key, for Violation::unit, and of its tensor.
std::string ItemUnit(const RunDescription& run, const ItemKey& key);
std::string ItemTensor(const RunDescription& run, const ItemKey& key);

// "all-gather"; the name of the kind in sentences.
absl::string_view KindText(CollectiveKind kind);

// Group::Contains for groups of unknown origin, whose stride may be 0.
bool StandsFor(const Group& ranks, Rank rank);

// Marks which ranks of a step were shown. A check that was not shown every rank must not
// pass: the fault may sit on the others.
class RankCoverage {
 public:
  void Begin(int32_t world_size) { shown_.assign(world_size, 0); }
  void Clear() { shown_.assign(shown_.size(), 0); }
  // -1 when every member is a rank of the run that was not shown before; else a member that
  // is not (0 for one below 0), and the group must not be used to index by rank.
  int32_t Add(const Group& ranks);
  // The lowest rank that was not shown; -1 when all were.
  int32_t Missing() const;

 private:
  std::vector<uint8_t> shown_;
};

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_ISSUED_ITEMS_H_
