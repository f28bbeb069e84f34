// World: how the ranks that run in this process meet all ranks of the job.
//
// In the simulated world every rank is here. With a process a rank one is, and its collectives
// end when other processes have done their part.
#ifndef COLLECTIVES_WORLD_H_
#define COLLECTIVES_WORLD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

class World {
 public:
  virtual ~World() = default;
  virtual WorldSize size() const = 0;

  // The ranks that run in this process, ascending.
  virtual std::vector<Rank> local_ranks() const = 0;

  // The end of `group` that belongs to `rank`, a local one. The world owns it; equal arguments
  // give the same pointer. InvalidArgument for a group that leaves the world or a rank that is
  // outside the group or not local.
  virtual absl::StatusOr<Communicator*> communicator(Rank rank, Group group) = 0;

  // Which ranks wait in which collectives, and who has not arrived, as far as this process
  // knows. "nothing is pending" if so. For messages about deadlocks.
  virtual std::string DescribePending() const = 0;

  // How long a collective that no local rank can help along may still be ended by ranks
  // elsewhere. Zero where all ranks are local: nobody else can.
  virtual absl::Duration patience() const = 0;
};

}  // namespace shardproof

#endif  // COLLECTIVES_WORLD_H_
