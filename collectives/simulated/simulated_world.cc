#include "collectives/simulated/simulated_world.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/simulated/simulated_group.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

struct SimulatedWorld::GroupEntry {
  explicit GroupEntry(SimulatedWorld* world, Group group) : meeting_point(group) {
    communicators.reserve(group.count);
    for (int32_t member = 0; member < group.count; ++member) {
      communicators.emplace_back(world, &meeting_point, member);
    }
  }

  SimulatedGroup meeting_point;
  std::vector<SimulatedCommunicator> communicators;  // [member], never resized
};

SimulatedWorld::SimulatedWorld(WorldSize size) : size_(size) {}
SimulatedWorld::~SimulatedWorld() = default;

absl::StatusOr<std::unique_ptr<SimulatedWorld>> SimulatedWorld::Create(WorldSize size) {
  if (size.value < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a world of ", size.value, " ranks: there must be at least one"));
  }
  return std::unique_ptr<SimulatedWorld>(new SimulatedWorld(size));
}

std::vector<Rank> SimulatedWorld::local_ranks() const {
  std::vector<Rank> ranks;
  for (int32_t rank = 0; rank < size_.value; ++rank) ranks.push_back(Rank{rank});
  return ranks;
}

absl::StatusOr<Communicator*> SimulatedWorld::communicator(Rank rank, Group group) {
  SHARDPROOF_RETURN_IF_ERROR(ValidateMembership(size_, rank, group));
  const int32_t member = (rank.value - group.first) / group.stride;
  for (const auto& entry : groups_) {
    if (entry->meeting_point.group() == group) return &entry->communicators[member];
  }
  groups_.push_back(std::make_unique<GroupEntry>(this, group));
  return &groups_.back()->communicators[member];
}

std::string SimulatedWorld::DescribePending() const {
  std::string text;
  for (const auto& entry : groups_) entry->meeting_point.DescribePending(text);
  if (text.empty()) return "nothing is pending";
  text.pop_back();  // The last line's end.
  return text;
}

Rank SimulatedCommunicator::rank() const { return group_->group().member(member_); }

Group SimulatedCommunicator::group() const { return group_->group(); }

absl::StatusOr<CollectiveHandle> SimulatedCommunicator::Start(const CollectiveCall& call) {
  SHARDPROOF_ASSIGN_OR_RETURN(const int64_t position, group_->Start(member_, call));
  return CollectiveHandle{position};
}

absl::StatusOr<bool> SimulatedCommunicator::Poll(CollectiveHandle handle) {
  if (!group_->failure().ok()) return group_->failure();
  if (handle.id < 0 || handle.id >= group_->started(member_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle ", handle.id, " on rank ", rank().value, ", which has started ",
                     group_->started(member_), " calls on the group of ", DescribeRanks(group())));
  }
  return handle.id < group_->done();
}

absl::Status SimulatedCommunicator::Wait(CollectiveHandle handle, absl::Duration timeout) {
  SHARDPROOF_ASSIGN_OR_RETURN(const bool done, Poll(handle));
  if (world_->waiter() != nullptr && timeout > absl::ZeroDuration()) {
    return world_->waiter()->Block(*this, handle);
  }
  if (done) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", rank().value, " waits for ", DescribeCall(handle),
                   "; not arrived: ", DescribeRanks(NotArrived(handle))));
}

std::string SimulatedCommunicator::DescribeCall(CollectiveHandle handle) const {
  return absl::StrCat(shardproof::DescribeCall(group_->call(handle.id, member_)), ", position ",
                      handle.id, " of the group of ", DescribeRanks(group()));
}

std::vector<Rank> SimulatedCommunicator::NotArrived(CollectiveHandle handle) const {
  return group_->NotArrived(handle.id);
}

}  // namespace shardproof
