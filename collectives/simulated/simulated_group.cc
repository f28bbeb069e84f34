#include "collectives/simulated/simulated_group.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "collectives/simulated/move_buffers.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// A trainer that prefetches has a few collectives in flight.
constexpr int64_t kInitialCapacity = 16;

// DescribePending is for one message: the first positions tell the story.
constexpr int64_t kPositionsDescribed = 8;

constexpr size_t kRanksDescribed = 8;

// Whether two members mean the same collective. What a kind does not use is not compared.
bool Agree(const CollectiveCall& a, const CollectiveCall& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == CollectiveKind::kBarrier) return true;
  if (a.dtype != b.dtype || a.elements != b.elements) return false;
  return a.kind != CollectiveKind::kBroadcast || a.root == b.root;
}

bool IsCutIntoParts(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
}

}  // namespace

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

SimulatedGroup::SimulatedGroup(Group group)
    : group_(group),
      capacity_(kInitialCapacity),
      calls_(kInitialCapacity * group.count),
      arrived_(kInitialCapacity),
      started_(group.count),
      inputs_(group.count) {}

absl::StatusOr<int64_t> SimulatedGroup::Start(int32_t member, const CollectiveCall& call) {
  if (!failure_.ok()) return failure_;
  SHARDPROOF_RETURN_IF_ERROR(Validate(member, call));
  const int64_t position = started_[member]++;
  if (position - done_ >= capacity_) GrowRing();
  calls_[Slot(position) * group_.count + member] = call;
  if (++arrived_[Slot(position)] == group_.count) SHARDPROOF_RETURN_IF_ERROR(Finish(position));
  return position;
}

// A call that is refused takes no position: the caller may correct it.
absl::Status SimulatedGroup::Validate(int32_t member, const CollectiveCall& call) const {
  if (call.kind == CollectiveKind::kBarrier) return absl::OkStatus();
  const Rank rank = group_.member(member);
  const auto refuse = [&](auto... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.value, ", ", DescribeCall(call), ": ", why...));
  };
  if (call.dtype != Dtype::kFloat32 && call.dtype != Dtype::kFloat64) {
    return refuse("the simulated world moves float32 and float64 only");
  }
  if (call.elements < 0) return refuse("elements must not be negative");
  if (IsCutIntoParts(call.kind) && call.elements % group_.count != 0) {
    return refuse("elements must be a multiple of the group's ", group_.count, " ranks");
  }
  const bool broadcast = call.kind == CollectiveKind::kBroadcast;
  if (broadcast && !group_.Contains(call.root)) {
    return refuse("the root must be one of ", DescribeRanks(group_));
  }
  if (call.elements == 0) return absl::OkStatus();
  if (call.recv == nullptr) return refuse("recv is null");
  const bool reads_send = !broadcast || call.root == rank;
  if (reads_send && call.send == nullptr) return refuse("send is null");
  return absl::OkStatus();
}

void SimulatedGroup::GrowRing() {
  const int64_t old_capacity = std::exchange(capacity_, capacity_ * 2);
  std::vector<CollectiveCall> calls(capacity_ * group_.count);
  std::vector<int32_t> arrived(capacity_);
  for (int64_t position = done_; position < done_ + old_capacity; ++position) {
    const int64_t old_slot = position & (old_capacity - 1);
    arrived[Slot(position)] = arrived_[old_slot];
    std::copy_n(&calls_[old_slot * group_.count], group_.count,
                &calls[Slot(position) * group_.count]);
  }
  calls_ = std::move(calls);
  arrived_ = std::move(arrived);
}

// Every member has started `position`, which is done_ then.
absl::Status SimulatedGroup::Finish(int64_t position) {
  const absl::Span<const CollectiveCall> calls(&calls_[Slot(position) * group_.count],
                                               group_.count);
  const CollectiveCall& first = calls[0];
  for (int32_t member = 1; member < group_.count; ++member) {
    if (Agree(first, calls[member])) continue;
    const auto agree = std::count_if(calls.begin(), calls.end(),
                                     [&](const auto& call) { return Agree(first, call); });
    failure_ = absl::FailedPreconditionError(absl::StrCat(
        "ranks disagree at position ", position, " of the group of ", DescribeRanks(group_),
        ": rank ", group_.member(0).value, " called ", DescribeCall(first), ", rank ",
        group_.member(member).value, " called ", DescribeCall(calls[member]), "; ", agree, " of ",
        group_.count, " ranks called as rank ", group_.member(0).value));
    return failure_;
  }
  const int32_t root = (first.root.value - group_.first) / group_.stride;
  MoveBuffers(calls, root, inputs_);
  arrived_[Slot(position)] = 0;
  ++done_;
  return absl::OkStatus();
}

std::vector<Rank> SimulatedGroup::NotArrived(int64_t position) const {
  std::vector<Rank> missing;
  for (int32_t member = 0; member < group_.count; ++member) {
    if (started_[member] <= position) missing.push_back(group_.member(member));
  }
  return missing;
}

void SimulatedGroup::DescribePending(std::string& text) const {
  if (!failure_.ok()) {
    absl::StrAppend(&text, failure_.message(), "\n");
    return;
  }
  const int64_t end = *std::max_element(started_.begin(), started_.end());
  const int64_t described_end = std::min(end, done_ + kPositionsDescribed);
  for (int64_t position = done_; position < described_end; ++position) {
    DescribePosition(position, text);
  }
  if (described_end < end) {
    absl::StrAppend(&text, "group of ", DescribeRanks(group_), ": and ", end - described_end,
                    " later positions\n");
  }
}

// Members that called the same share a phrase, so that one who called something else is seen.
void SimulatedGroup::DescribePosition(int64_t position, std::string& text) const {
  std::vector<std::pair<std::string, std::vector<Rank>>> callers;
  for (int32_t member = 0; member < group_.count; ++member) {
    if (started_[member] <= position) continue;
    const std::string called = DescribeCall(call(position, member));
    auto same = std::find_if(callers.begin(), callers.end(),
                             [&](const auto& entry) { return entry.first == called; });
    if (same == callers.end()) same = callers.insert(same, {called, {}});
    same->second.push_back(group_.member(member));
  }
  absl::StrAppend(&text, "group of ", DescribeRanks(group_), ", position ", position, ":");
  for (const auto& [called, ranks] : callers) {
    absl::StrAppend(&text, " ", DescribeRanks(ranks),
                    ranks.size() == 1 ? " waits in " : " wait in ", called, ";");
  }
  absl::StrAppend(&text, " not arrived: ", DescribeRanks(NotArrived(position)), "\n");
}

}  // namespace shardproof
