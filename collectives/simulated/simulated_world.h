// SimulatedWorld: N ranks in one process, without threads, sockets or waiting.
//
//   SHARDPROOF_ASSIGN_OR_RETURN(auto world, SimulatedWorld::Create(WorldSize{4}));
//   SHARDPROOF_ASSIGN_OR_RETURN(Communicator* rank2,
//                               world->communicator(Rank{2}, Group{0, 1, 4}));
//
// The caller plays all the ranks, in any order. Start posts a call and returns; the Start of
// the last member to arrive at a position of its group's order carries the collective out,
// before it returns. From then on every member's Poll says true.
//
// Order: members add in rank order, ((g0 + g1) + g2) + ..., each partial sum rounded to the
// dtype, whatever the order of arrival. So the bits depend on the values alone.
//
// Buffers: the caller's, as communicator.h says, including its in-place forms. Buffers of
// different ranks must not overlap, except that several may send from the same memory if no
// rank receives there. Nothing is kept once the collective is done.
//
// Dtypes: float32 and float64; any other is InvalidArgument. A barrier has no dtype.
//
// Handles: the position of the call in its group's order on that rank. They stay valid after
// they were seen done.
//
// Wait: a handle that is not done cannot become done while the only thread waits, so Wait
// returns DeadlineExceeded at once and names the ranks that have not arrived. Under RunRanks
// (rank_threads.h) it lets the other ranks run.
//
// Disagreement: when members' kind, dtype, elements or root differ at one position, the Start
// of the last to arrive returns FailedPrecondition, and so does everything the members of the
// group do afterwards. Dtype and elements of a barrier, and the root of anything but a
// broadcast, mean nothing and are not compared. Other groups are not affected.
//
// Threads: not thread-safe; one thread at a time. Two worlds are independent of each other.
#ifndef COLLECTIVES_SIMULATED_SIMULATED_WORLD_H_
#define COLLECTIVES_SIMULATED_SIMULATED_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/world.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

class SimulatedCommunicator;
class SimulatedGroup;

// How Wait passes the time of a rank that has a thread of its own; RunRanks installs one.
class Waiter {
 public:
  virtual ~Waiter() = default;

  // Called on the thread of the rank that waits, also when `handle` is done already. OK once
  // it is done; otherwise why it never will be.
  virtual absl::Status Block(SimulatedCommunicator& communicator, CollectiveHandle handle) = 0;
};

class SimulatedWorld final : public World {
 public:
  // InvalidArgument for a size < 1.
  static absl::StatusOr<std::unique_ptr<SimulatedWorld>> Create(WorldSize size);
  ~SimulatedWorld() override;
  SimulatedWorld(const SimulatedWorld&) = delete;
  SimulatedWorld& operator=(const SimulatedWorld&) = delete;

  WorldSize size() const override { return size_; }
  std::vector<Rank> local_ranks() const override;  // all

  // The end of `group` that belongs to `rank`. The world owns it; equal arguments give the
  // same pointer, equal groups share one order of calls. Looks the group up: ask once, not
  // per call. InvalidArgument for a group that leaves the world or a rank outside the group.
  absl::StatusOr<Communicator*> communicator(Rank rank, Group group) override;

  // One line per collective that was started by some members and not by all: which ranks wait
  // in it, what they called, and who has not arrived. Also the disagreement of a group that
  // has one. "nothing is pending" if so. For messages about deadlocks.
  std::string DescribePending() const override;

  // Zero: there is nobody elsewhere.
  absl::Duration patience() const override { return absl::ZeroDuration(); }

  // For RunRanks. While a waiter is set, Wait calls it.
  void set_waiter(std::shared_ptr<Waiter> waiter) { waiter_ = std::move(waiter); }
  Waiter* waiter() const { return waiter_.get(); }

 private:
  struct GroupEntry;

  explicit SimulatedWorld(WorldSize size);

  const WorldSize size_;
  std::vector<std::unique_ptr<GroupEntry>> groups_;  // in order of first use
  std::shared_ptr<Waiter> waiter_;
};

// What SimulatedWorld::communicator returns a pointer to.
class SimulatedCommunicator final : public Communicator {
 public:
  // `group` and `world` outlive the communicator: the world owns all three.
  SimulatedCommunicator(SimulatedWorld* world, SimulatedGroup* group, int32_t member)
      : world_(world), group_(group), member_(member) {}

  Rank rank() const override;
  Group group() const override;
  bool adds_in_rank_order() const override { return true; }
  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override;
  absl::StatusOr<bool> Poll(CollectiveHandle handle) override;
  absl::Status Wait(CollectiveHandle handle, absl::Duration timeout) override;

  // "all_reduce of 12 float32 (label 3), position 5 of the group of ranks 0, 1, 2": what this
  // rank called. `handle` is not done.
  std::string DescribeCall(CollectiveHandle handle) const;

  // The ranks that have not started the call of `handle`, in order; none once it is done.
  std::vector<Rank> NotArrived(CollectiveHandle handle) const;

 private:
  SimulatedWorld* world_;
  SimulatedGroup* group_;
  int32_t member_;
};

}  // namespace shardproof

#endif  // COLLECTIVES_SIMULATED_SIMULATED_WORLD_H_
