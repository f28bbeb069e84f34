#include "collectives/collective_calls.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr size_t kRanksDescribed = 8;

bool IsCutIntoParts(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
}

}  // namespace

absl::Status ValidateMembership(WorldSize size, Rank rank, const Group& group) {
  const int64_t last = group.first + (int64_t{group.count} - 1) * group.stride;
  if (group.first < 0 || group.stride < 1 || group.count < 1 || last >= size.value) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group (first ", group.first, ", stride ", group.stride, ", count ", group.count,
        ") is not a group of a world of ", size.value,
        " ranks: first >= 0, stride >= 1, count >= 1 and the last rank < ", size.value));
  }
  if (!group.Contains(rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.value, " is not one of ", DescribeRanks(group)));
  }
  return absl::OkStatus();
}

absl::Status ValidateCall(const Group& group, Rank rank, const CollectiveCall& call,
                          absl::string_view world) {
  if (call.kind == CollectiveKind::kBarrier) return absl::OkStatus();
  const auto refuse = [&](auto... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.value, ", ", DescribeCall(call), ": ", why...));
  };
  if (call.dtype != Dtype::kFloat32 && call.dtype != Dtype::kFloat64) {
    return refuse(world, " moves float32 and float64 only");
  }
  if (call.elements < 0) return refuse("elements must not be negative");
  if (IsCutIntoParts(call.kind) && call.elements % group.count != 0) {
    return refuse("elements must be a multiple of the group's ", group.count, " ranks");
  }
  const bool broadcast = call.kind == CollectiveKind::kBroadcast;
  if (broadcast && !group.Contains(call.root)) {
    return refuse("the root must be one of ", DescribeRanks(group));
  }
  if (call.elements == 0) return absl::OkStatus();
  if (call.recv == nullptr) return refuse("recv is null");
  const bool reads_send = !broadcast || call.root == rank;
  if (reads_send && call.send == nullptr) return refuse("send is null");
  return absl::OkStatus();
}

bool Agree(const CollectiveCall& a, const CollectiveCall& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == CollectiveKind::kBarrier) return true;
  if (a.dtype != b.dtype || a.elements != b.elements) return false;
  return a.kind != CollectiveKind::kBroadcast || a.root == b.root;
}

absl::Status CheckAgreement(const Group& group, int64_t position,
                            absl::Span<const CollectiveCall> calls) {
  const CollectiveCall& first = calls[0];
  for (int32_t member = 1; member < group.count; ++member) {
    if (Agree(first, calls[member])) continue;
    const auto agree = std::count_if(calls.begin(), calls.end(),
                                     [&](const auto& call) { return Agree(first, call); });
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks disagree at position ", position, " of the group of ", DescribeRanks(group),
        ": rank ", group.member(0).value, " called ", DescribeCall(first), ", rank ",
        group.member(member).value, " called ", DescribeCall(calls[member]), "; ", agree, " of ",
        group.count, " ranks called as rank ", group.member(0).value));
  }
  return absl::OkStatus();
}

std::string DescribeRanks(absl::Span<const Rank> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const bool all = ranks.size() <= kRanksDescribed;
  const size_t named = all ? ranks.size() : kRanksDescribed / 2;
  for (size_t i = 0; i < named; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i].value);
  }
  if (!all) absl::StrAppend(&text, ", ..., ", ranks.back().value, " (", ranks.size(), " ranks)");
  return text;
}

std::string DescribeRanks(const Group& group) {
  std::vector<Rank> ranks(group.count);
  for (int32_t member = 0; member < group.count; ++member) ranks[member] = group.member(member);
  return DescribeRanks(ranks);
}

std::string DescribeCall(const CollectiveCall& call) {
  std::string text(Name(call.kind));
  if (call.kind != CollectiveKind::kBarrier) {
    absl::StrAppend(&text, " of ", call.elements, " ", Name(call.dtype));
  }
  if (call.kind == CollectiveKind::kBroadcast) {
    absl::StrAppend(&text, " from rank ", call.root.value);
  }
  absl::StrAppend(&text, " (label ", call.label, ")");
  return text;
}

// Members that called the same share a phrase, so that one who called something else is seen.
std::string DescribeArrivals(const Group& group, int64_t position,
                             absl::Span<const std::pair<Rank, CollectiveCall>> arrived,
                             absl::Span<const Rank> missing) {
  std::vector<std::pair<std::string, std::vector<Rank>>> callers;
  for (const auto& [rank, call] : arrived) {
    const std::string called = DescribeCall(call);
    auto same = std::find_if(callers.begin(), callers.end(),
                             [&](const auto& entry) { return entry.first == called; });
    if (same == callers.end()) same = callers.insert(same, {called, {}});
    same->second.push_back(rank);
  }
  std::string text = absl::StrCat("group of ", DescribeRanks(group), ", position ", position, ":");
  for (const auto& [called, ranks] : callers) {
    absl::StrAppend(&text, " ", DescribeRanks(ranks),
                    ranks.size() == 1 ? " waits in " : " wait in ", called, ";");
  }
  if (!missing.empty()) absl::StrAppend(&text, " not arrived: ", DescribeRanks(missing));
  if (missing.empty()) absl::StrAppend(&text, " all have arrived");
  return text;
}

}  // namespace shardproof
