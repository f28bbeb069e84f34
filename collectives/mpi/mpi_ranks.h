// Ranks in processes of their own, started by OpenMPI's mpirun: what programs use. In a build
// without OpenMPI the same functions say so.
#ifndef COLLECTIVES_MPI_MPI_RANKS_H_
#define COLLECTIVES_MPI_MPI_RANKS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/world.h"

namespace shardproof {

// Equal on all ranks.
struct MpiOptions {
  // World::patience(), and how long Create and the destructor wait for the other ranks.
  absl::Duration timeout = absl::Seconds(60);

  // The longest message, a positive multiple of 8 below 2^31: longer buffers travel as several.
  // Reductions hold as much of each other member's data. Tests cut short buffers with it.
  int64_t message_bytes = int64_t{4} << 20;
};

class MpiRanks : public World {
 public:
  // Ends every process of the job, also those that are stopped, and this one; mpirun then has
  // `exit_code` (1 to 255). First `why` goes to stderr, in a line "rank 2 ends the job: ...". For
  // programs whose collectives have failed: nothing else ends a rank that waits or is stopped.
  // Does not return.
  virtual void Abort(const absl::Status& why, int exit_code) = 0;
};

// Starts MPI, once a process, and meets the other ranks; see mpi_world.h. Unavailable in a build
// without OpenMPI.
absl::StatusOr<std::unique_ptr<MpiRanks>> CreateMpiRanks(const MpiOptions& options);

}  // namespace shardproof

#endif  // COLLECTIVES_MPI_MPI_RANKS_H_
