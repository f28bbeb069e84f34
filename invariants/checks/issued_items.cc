#include "invariants/checks/issued_items.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "invariants/checks/describe.h"

namespace shardproof {
namespace {

// The stages a compute item covers, by name where the model has them.
std::string StagesText(const ModelDescription& model, const ItemKey& key) {
  const auto name = [&](int64_t stage) {
    const bool known = stage >= 0 && stage < static_cast<int64_t>(model.stages.size());
    return known ? model.stages[stage].name : absl::StrCat("stage ", stage);
  };
  if (key.stage_count <= 1) return name(key.stage);
  return absl::StrCat(name(key.stage), " to ", name(int64_t{key.stage} + key.stage_count - 1));
}

}  // namespace

std::vector<ItemKey> KeysOf(Mode mode, const std::vector<ExpectedItem>& sequence) {
  std::vector<ItemKey> keys;
  keys.reserve(sequence.size());
  for (const ExpectedItem& item : sequence) keys.push_back(KeyOf(mode, item));
  return keys;
}

absl::string_view KindText(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "?";
}

std::string ItemUnit(const RunDescription& run, const ItemKey& key) {
  if (key.kind == EventKind::kCompute) return StagesText(run.model, key);
  if (key.collective == CollectiveKind::kBroadcast || key.set < 0) return "";
  return ShardsUnits(run.sharding.mode) ? UnitName(run.model, key.set)
                                        : absl::StrCat("bucket ", key.set);
}

std::string ItemTensor(const RunDescription& run, const ItemKey& key) {
  if (key.collective != CollectiveKind::kBroadcast) return "";
  return TensorName(run.model, key.set);
}

std::string ItemText(const RunDescription& run, const ItemKey& key) {
  std::string text;
  switch (key.kind) {
    case EventKind::kCompute:
      text = absl::StrCat(Name(key.phase), " of ", StagesText(run.model, key));
      break;
    case EventKind::kOptimizer:
      text = "update";
      break;
    default:
      text = std::string(KindText(key.collective));
  }
  const std::string set = absl::StrCat(ItemTensor(run, key), ItemUnit(run, key));
  if (key.kind != EventKind::kCompute && !set.empty()) absl::StrAppend(&text, " of ", set);
  if (key.purpose == Purpose::kClipNorm) absl::StrAppend(&text, " of the clip norm");
  if (key.root >= 0) absl::StrAppend(&text, " from rank ", key.root);
  if (key.kind == EventKind::kCollective) absl::StrAppend(&text, " in ", Name(key.phase));
  if (run.data.num_micro_batches > 1 && key.micro_batch >= 0) {
    absl::StrAppend(&text, ", micro-batch ", key.micro_batch);
  }
  return text;
}

bool StandsFor(const Group& ranks, Rank rank) {
  return ranks.first == rank.value || (ranks.stride >= 1 && ranks.Contains(rank));
}

int32_t RankCoverage::Add(const Group& ranks) {
  if (ranks.count < 1) return std::max(ranks.first, 0);
  int32_t first_bad = -1;
  for (int64_t i = 0; i < ranks.count; ++i) {
    const int64_t rank = ranks.first + i * ranks.stride;
    const bool known = rank >= 0 && rank < static_cast<int64_t>(shown_.size());
    if (!known || shown_[rank]) {
      if (first_bad < 0) first_bad = std::max(static_cast<int32_t>(rank), 0);
      if (!known) break;  // a wild count would loop for long
      continue;
    }
    shown_[rank] = 1;
  }
  return first_bad;
}

int32_t RankCoverage::Missing() const {
  for (size_t r = 0; r < shown_.size(); ++r) {
    if (!shown_[r]) return static_cast<int32_t>(r);
  }
  return -1;
}

}  // namespace shardproof
