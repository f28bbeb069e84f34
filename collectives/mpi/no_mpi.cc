// mpi_ranks.h in a build without OpenMPI.
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/mpi/mpi_ranks.h"

namespace shardproof {

absl::StatusOr<std::unique_ptr<MpiRanks>> CreateMpiRanks(const MpiOptions&) {
  return absl::UnavailableError(
      "this build has no MPI: install OpenMPI (Debian: libopenmpi-dev openmpi-bin) and build "
      "again");
}

}  // namespace shardproof
