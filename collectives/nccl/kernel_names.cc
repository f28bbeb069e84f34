#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/nccl/kernel_witness.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// Of plain kernels from 2.19 on and before, and of kernels over symmetric memory.
constexpr absl::string_view kPrefixes[] = {"ncclDevKernel_", "ncclKernel_", "ncclSymDevKernel_",
                                           "ncclSymkDevKernel_"};

constexpr std::pair<absl::string_view, CollectiveKind> kNames[] = {
    {"AllReduce_", CollectiveKind::kAllReduce},
    {"AllGather_", CollectiveKind::kAllGather},
    {"ReduceScatter_", CollectiveKind::kReduceScatter},
    {"Broadcast_", CollectiveKind::kBroadcast},
};

// A kernel's name starts the text, follows its return type, or, mangled, its length.
bool MayStartName(absl::string_view text, size_t at) {
  if (at == 0) return true;
  const char before = text[at - 1];
  return before == ' ' || before == ':' || (before >= '0' && before <= '9');
}

}  // namespace

std::optional<CollectiveKind> CollectiveKindOfKernel(absl::string_view name) {
  for (const absl::string_view prefix : kPrefixes) {
    const size_t at = name.find(prefix);
    if (at == absl::string_view::npos || !MayStartName(name, at)) continue;
    const absl::string_view rest = name.substr(at + prefix.size());
    for (const auto& [collective, kind] : kNames) {
      if (absl::StartsWith(rest, collective)) return kind;
    }
  }
  return std::nullopt;
}

std::map<int32_t, KernelCounts> CountCollectiveKernels(absl::Span<const KernelRecord> records) {
  std::map<int32_t, KernelCounts> counts;
  for (const KernelRecord& record : records) {
    const std::optional<CollectiveKind> kind = CollectiveKindOfKernel(record.name);
    if (kind.has_value()) ++counts[record.device].counts[static_cast<size_t>(*kind)];
  }
  return counts;
}

}  // namespace shardproof
