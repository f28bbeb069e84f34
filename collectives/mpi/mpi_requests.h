// The messages of one phase of a collective, under way at once.
#ifndef COLLECTIVES_MPI_MPI_REQUESTS_H_
#define COLLECTIVES_MPI_MPI_REQUESTS_H_

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// Buffers belong to the caller and stay untouched until Test says true. A long buffer travels as
// several messages of at most `message_bytes`, so that no count leaves the range of int; both
// sides cut alike. The destructor abandons what is under way: MPI keeps its own record of it, and
// the buffers must then outlive MPI, or the process must end.
class MpiRequests {
 public:
  // 1 <= message_bytes < 2^31.
  MpiRequests(MPI_Comm comm, int64_t message_bytes) : comm_(comm), message_bytes_(message_bytes) {}
  MpiRequests(const MpiRequests&) = delete;
  MpiRequests& operator=(const MpiRequests&) = delete;

  // No bytes, no message.
  absl::Status Send(const void* bytes, int64_t count, Rank to, int tag);
  absl::Status Receive(void* bytes, int64_t count, Rank from, int tag);

  // True once all have ended. Never blocks.
  absl::StatusOr<bool> Test();

  // The other sides of what has not ended, ascending.
  std::vector<Rank> Awaited();

 private:
  const MPI_Comm comm_;
  const int64_t message_bytes_;
  std::vector<MPI_Request> requests_;
  std::vector<Rank> peers_;  // of requests_
  size_t ended_ = 0;         // so many, from the front, are known to have ended
};

}  // namespace shardproof

#endif  // COLLECTIVES_MPI_MPI_REQUESTS_H_
