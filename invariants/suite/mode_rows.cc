#include "invariants/suite/mode_rows.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

constexpr Prefetch kFullShardPrefetches[] = {Prefetch::kBackwardPre, Prefetch::kBackwardPost,
                                             Prefetch::kNone};

std::vector<ModeRow> RowsOf(Mode mode) {
  if (mode != Mode::kFullShard) return {{mode, Prefetch::kNotApplicable}};
  std::vector<ModeRow> rows;
  for (Prefetch prefetch : kFullShardPrefetches) rows.push_back({mode, prefetch});
  return rows;
}

std::vector<Mode> ModesOfAlias(absl::string_view alias) {
  if (alias == "all") {
    return {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather,
            Mode::kZero2,      Mode::kShardGradOp,    Mode::kFullShard};
  }
  if (alias == "ddp") return {Mode::kReplicated};
  if (alias == "zero1") return {Mode::kZero1Broadcast, Mode::kZero1AllGather};
  if (alias == "zero3") return {Mode::kFullShard};
  if (alias == "fsdp") return {Mode::kShardGradOp, Mode::kFullShard};
  return {};
}

absl::Status UnknownMode(absl::string_view entry) {
  return absl::InvalidArgumentError(absl::StrCat(
      "mode '", entry,
      "' is unknown; accepted: all, replicated, zero1_broadcast, zero1_allgather, zero2, "
      "shard_grad_op, full_shard, full_shard/backward_pre, full_shard/backward_post, "
      "full_shard/none, and the aliases ddp, zero1, zero3, fsdp"));
}

absl::StatusOr<std::vector<ModeRow>> ParseEntry(absl::string_view entry) {
  std::vector<ModeRow> rows;
  for (Mode mode : ModesOfAlias(entry)) {
    for (const ModeRow& row : RowsOf(mode)) rows.push_back(row);
  }
  if (!rows.empty()) return rows;
  const size_t slash = entry.find('/');
  const absl::StatusOr<Mode> mode = ParseMode(entry.substr(0, slash));
  if (!mode.ok()) return UnknownMode(entry);
  rows = RowsOf(*mode);
  if (slash == absl::string_view::npos) return rows;
  for (const ModeRow& row : rows) {
    if (row.prefetch != Prefetch::kNotApplicable && Name(row.prefetch) == entry.substr(slash + 1)) {
      return std::vector<ModeRow>{row};
    }
  }
  return UnknownMode(entry);
}

}  // namespace

std::vector<ModeRow> AllModeRows() {
  std::vector<ModeRow> rows;
  for (Mode mode : ModesOfAlias("all")) {
    for (const ModeRow& row : RowsOf(mode)) rows.push_back(row);
  }
  return rows;
}

absl::StatusOr<std::vector<ModeRow>> ParseModeRows(absl::string_view text) {
  std::vector<ModeRow> rows;
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<ModeRow> more, ParseEntry(entry));
    for (const ModeRow& row : more) {
      if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    }
  }
  return rows;
}

void ApplyModeRow(const ModeRow& row, LayoutKind layout, ShardingDescription& sharding) {
  sharding.mode = row.mode;
  sharding.prefetch = row.prefetch;
  sharding.layout = row.mode == Mode::kReplicated       ? LayoutKind::kFlat
                    : row.mode == Mode::kZero1Broadcast ? LayoutKind::kOwner
                                                        : layout;
}

}  // namespace shardproof
