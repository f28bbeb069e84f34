// The meeting point of one group of a SimulatedWorld. For simulated_world.cc only.
#ifndef COLLECTIVES_SIMULATED_SIMULATED_GROUP_H_
#define COLLECTIVES_SIMULATED_SIMULATED_GROUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "collectives/simulated/move_buffers.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// Members are known by their index in the group. A member's n-th call has position n, from
// zero. A position is done once every member has started it, and every member starts its
// calls in order, so positions are done in order: the first `done()` of them.
class SimulatedGroup {
 public:
  // `group` lies in the world and has a stride >= 1.
  explicit SimulatedGroup(Group group);

  const Group& group() const { return group_; }
  int64_t done() const { return done_; }
  int64_t started(int32_t member) const { return started_[member]; }

  // The disagreement of the group, or OK.
  const absl::Status& failure() const { return failure_; }

  // Posts a call and carries the collective out if `member` is the last to arrive. Returns the
  // call's position; the errors of Communicator::Start.
  absl::StatusOr<int64_t> Start(int32_t member, const CollectiveCall& call);

  // What `member` called at `position`: started by it and not done.
  const CollectiveCall& call(int64_t position, int32_t member) const {
    return calls_[Slot(position) * group_.count + member];
  }

  // The members that have not started `position`.
  std::vector<Rank> NotArrived(int64_t position) const;

  // Appends the group's lines of SimulatedWorld::DescribePending.
  void DescribePending(std::string& text) const;

 private:
  int64_t Slot(int64_t position) const { return position & (capacity_ - 1); }
  void GrowRing();
  absl::Status Finish(int64_t position);
  void DescribePosition(int64_t position, std::string& text) const;

  const Group group_;
  int64_t done_ = 0;
  // A ring of the positions that are not done, a power of two long. It grows to the farthest
  // that one member ran ahead of another; after that no call allocates.
  int64_t capacity_;
  std::vector<CollectiveCall> calls_;  // [slot][member]
  std::vector<int32_t> arrived_;       // [slot], members that have started it
  std::vector<int64_t> started_;       // [member], calls so far
  InputPointers inputs_;
  absl::Status failure_;
};

}  // namespace shardproof

#endif  // COLLECTIVES_SIMULATED_SIMULATED_GROUP_H_
