// One process's view of one group of an MpiWorld: who has called what. For mpi_world.cc only.
#ifndef COLLECTIVES_MPI_MPI_GROUP_H_
#define COLLECTIVES_MPI_MPI_GROUP_H_

#include <mpi.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "collectives/mpi/mpi_transfer.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// Members are known by their index in the group. A member's n-th call has position n, from zero.
// Members' calls arrive in their order, so positions become complete in order; their transfers
// may end in another.
class MpiGroup {
 public:
  // `member` is this process.
  MpiGroup(MPI_Comm comm, int64_t message_bytes, Group group, int32_t member)
      : comm_(comm),
        message_bytes_(message_bytes),
        group_(group),
        member_(member),
        called_(group.count) {}

  const Group& group() const { return group_; }
  int32_t member() const { return member_; }

  // How many calls of `member` are known; its next has this position.
  int64_t called(int32_t member) const { return called_[member]; }

  // `member` has called this, at position called(member). Buffers matter for this process only.
  // `tag`: of its messages, see MpiTransfer.
  void Arrive(int32_t member, const CollectiveCall& call, int32_t tag);

  // Lets transfers go on, and begins those whose last member has arrived. An error is MPI's.
  absl::Status Advance();

  // The disagreement of the group, once what was called before it is done; or OK.
  const absl::Status& failure() const { return failure_; }

  // `position` has been called by this process.
  bool done(int64_t position) const {
    return position < first_ || meetings_[position - first_].done;
  }

  // Of a position that is not done: what this process called, who has not, and if all have, whose
  // data is awaited.
  const CollectiveCall& call(int64_t position) const {
    return meetings_[position - first_].calls[member_];
  }
  std::vector<Rank> NotArrived(int64_t position) const;
  std::vector<Rank> Awaited(int64_t position) const;

  // A collective whose data is on its way.
  bool moves() const;

  // Appends the group's lines of World::DescribePending.
  void DescribePending(std::string& text) const;

 private:
  // The members at one position.
  struct Meeting {
    std::vector<CollectiveCall> calls;  // [member]
    std::vector<int32_t> tags;          // [member]
    std::unique_ptr<MpiTransfer> transfer;
    int32_t arrived = 0;
    bool done = false;
  };

  absl::Status Advance(Meeting& meeting);

  const MPI_Comm comm_;
  const int64_t message_bytes_;
  const Group group_;
  const int32_t member_;
  std::vector<int64_t> called_;   // [member]
  std::deque<Meeting> meetings_;  // of the positions from first_ on
  int64_t first_ = 0;
  absl::Status failure_;
};

}  // namespace shardproof

#endif  // COLLECTIVES_MPI_MPI_GROUP_H_
