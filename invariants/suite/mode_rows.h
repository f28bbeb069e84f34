// The rows of DESIGN's table of modes, and the names by which people ask for them.
#ifndef INVARIANTS_SUITE_MODE_ROWS_H_
#define INVARIANTS_SUITE_MODE_ROWS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

struct ModeRow {
  Mode mode = Mode::kReplicated;
  Prefetch prefetch = Prefetch::kNotApplicable;
  bool operator==(const ModeRow&) const = default;
};

// All eight: full_shard has one for each prefetch.
std::vector<ModeRow> AllModeRows();

// "all", or a comma-separated list of modes ("zero2"; "full_shard" means its three rows),
// rows ("full_shard/backward_post") and aliases: ddp = replicated, zero1 = both stage 1
// rows, zero3 = full_shard, fsdp = shard_grad_op and full_shard. Each row once, in the order
// of first mention. InvalidArgument names the entry and what is accepted.
absl::StatusOr<std::vector<ModeRow>> ParseModeRows(absl::string_view text);

// Sets mode and prefetch, and the layout: `layout` where the mode cuts tensors, owner for
// zero1_broadcast, flat for replicated, which cuts none.
void ApplyModeRow(const ModeRow& row, LayoutKind layout, ShardingDescription& sharding);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_MODE_ROWS_H_
