#include "collectives/launch/job_board.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr size_t kNamedRanks = 64;

const char* IsOrAre(absl::Span<const Rank> ranks) { return ranks.size() == 1 ? " is" : " are"; }

// Map keys compare with std::string_view, which is another type than absl::string_view.
std::string KeyOf(absl::string_view key) { return std::string(key); }

}  // namespace

std::string RanksText(absl::Span<const Rank> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kNamedRanks; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i].value);
  }
  if (ranks.size() > kNamedRanks) {
    absl::StrAppend(&text, " and ", ranks.size() - kNamedRanks, " more");
  }
  return text;
}

void JobBoard::Set(absl::string_view key, absl::string_view value) {
  values_[KeyOf(key)].assign(value.data(), value.size());
}

const std::string* JobBoard::Find(absl::string_view key) const {
  const auto found = values_.find(KeyOf(key));
  return found == values_.end() ? nullptr : &found->second;
}

void JobBoard::MarkGone(Rank rank) { gone_.insert(rank.value); }

std::vector<Rank> JobBoard::gone() const {
  std::vector<Rank> ranks;
  for (const int32_t rank : gone_) ranks.push_back(Rank{rank});
  return ranks;
}

std::optional<absl::StatusOr<std::string>> JobBoard::TryAwait(Rank asker, absl::string_view key,
                                                              absl::string_view who_sets_it) const {
  if (const std::string* const value = Find(key)) return *value;
  for (const int32_t rank : gone_) {
    if (who_sets_it != absl::StrCat("rank ", rank)) continue;
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " is gone, its process ended, before it set \"", key, "\""));
  }
  const bool asker_is_gone = gone_.count(asker.value) != 0;
  if (!asker_is_gone && static_cast<int32_t>(gone_.size()) == world_size_.value - 1 &&
      world_size_.value > 1) {
    return absl::UnavailableError(absl::StrCat(RanksText(gone()), IsOrAre(gone()),
                                               " gone, and nobody has set \"", key, "\", which ",
                                               who_sets_it, " sets"));
  }
  return std::nullopt;
}

absl::Status JobBoard::AwaitTimedOut(absl::string_view key, absl::string_view who_sets_it,
                                     absl::Duration timeout) const {
  std::string message = absl::StrCat("\"", key, "\", which ", who_sets_it,
                                     " sets, was not set within ", absl::FormatDuration(timeout));
  if (!gone_.empty()) absl::StrAppend(&message, "; ", RanksText(gone()), IsOrAre(gone()), " gone");
  return absl::DeadlineExceededError(message);
}

bool JobBoard::Give(Rank rank, int64_t sequence, std::string bytes) {
  if (sequence < sequence_) return false;
  gathers_[sequence][rank.value] = std::move(bytes);
  return true;
}

std::vector<Rank> JobBoard::NotGiven() const {
  const auto gather = gathers_.find(sequence_);
  std::vector<Rank> ranks;
  for (int32_t rank = 0; rank < world_size_.value; ++rank) {
    if (gather == gathers_.end() || gather->second.count(rank) == 0) ranks.push_back(Rank{rank});
  }
  return ranks;
}

void JobBoard::EndGather() {
  gathers_.erase(sequence_);
  ++sequence_;
}

std::optional<absl::StatusOr<std::vector<std::string>>> JobBoard::TryGather() {
  const std::vector<Rank> missing = NotGiven();
  if (missing.empty()) {
    std::vector<std::string> result;
    for (auto& [rank, bytes] : gathers_[sequence_]) result.push_back(std::move(bytes));
    EndGather();
    return result;
  }
  std::vector<Rank> lost;
  for (const Rank rank : missing) {
    if (gone_.count(rank.value) != 0) lost.push_back(rank);
  }
  if (lost.empty()) return std::nullopt;
  const absl::Status status = absl::UnavailableError(
      absl::StrCat(RanksText(lost), IsOrAre(lost), " gone and gave nothing to gather ", sequence_));
  EndGather();
  return status;
}

absl::Status JobBoard::GatherTimedOut(absl::Duration timeout) {
  const absl::Status status = absl::DeadlineExceededError(
      absl::StrCat(RanksText(NotGiven()), " gave nothing to gather ", sequence_, " within ",
                   absl::FormatDuration(timeout)));
  EndGather();
  return status;
}

}  // namespace shardproof
