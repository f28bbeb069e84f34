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
#include "collectives/collective_calls.h"
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

}  // namespace

SimulatedGroup::SimulatedGroup(Group group)
    : group_(group),
      capacity_(kInitialCapacity),
      calls_(kInitialCapacity * group.count),
      arrived_(kInitialCapacity),
      started_(group.count),
      inputs_(group.count) {}

absl::StatusOr<int64_t> SimulatedGroup::Start(int32_t member, const CollectiveCall& call) {
  if (!failure_.ok()) return failure_;
  // A call that is refused takes no position: the caller may correct it.
  SHARDPROOF_RETURN_IF_ERROR(
      ValidateCall(group_, group_.member(member), call, "the simulated world"));
  const int64_t position = started_[member]++;
  if (position - done_ >= capacity_) GrowRing();
  calls_[Slot(position) * group_.count + member] = call;
  if (++arrived_[Slot(position)] == group_.count) SHARDPROOF_RETURN_IF_ERROR(Finish(position));
  return position;
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
  failure_ = CheckAgreement(group_, position, calls);
  SHARDPROOF_RETURN_IF_ERROR(failure_);
  const int32_t root = (calls[0].root.value - group_.first) / group_.stride;
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

void SimulatedGroup::DescribePosition(int64_t position, std::string& text) const {
  std::vector<std::pair<Rank, CollectiveCall>> arrived;
  for (int32_t member = 0; member < group_.count; ++member) {
    if (started_[member] <= position) continue;
    arrived.emplace_back(group_.member(member), call(position, member));
  }
  absl::StrAppend(&text, DescribeArrivals(group_, position, arrived, NotArrived(position)), "\n");
}

}  // namespace shardproof
