// The job of ranks that mpirun started: how they find each other's Job over MPI.
#ifndef COLLECTIVES_MPI_MPI_LAUNCH_H_
#define COLLECTIVES_MPI_MPI_LAUNCH_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/job.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/world.h"

namespace shardproof {

// As JoinTorchrunJob, under mpirun. `world` is MPI's, see mpi_ranks.h. Rank 0 serves at a port
// that the system chooses, on the loopback interface if all ranks are on this machine; address and
// a random secret reach the others by a broadcast in the group of all ranks, so all ranks call
// this at the same place among their collectives of that group. The world is not used after the
// return. Each of broadcast and connection waits at most `timeout`.
//
// InvalidArgument for an environment of another launcher or of another rank than the world's. If
// rank 0 cannot serve, Unavailable on the others, with its reason. Else the errors of JoinJob and
// of Communicator::Wait.
absl::StatusOr<std::unique_ptr<Job>> JoinMpirunJob(World& world,
                                                   const LaunchEnvironment& environment,
                                                   absl::Duration timeout);

}  // namespace shardproof

#endif  // COLLECTIVES_MPI_MPI_LAUNCH_H_
