#include "collectives/mpi/mpi_requests.h"

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/mpi/mpi_status.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

absl::Status MpiRequests::Send(const void* bytes, int64_t count, Rank to, int tag) {
  const char* const from = static_cast<const char*>(bytes);
  for (int64_t first = 0; first < count; first += message_bytes_) {
    const int size = static_cast<int>(std::min(message_bytes_, count - first));
    MPI_Request request;
    SHARDPROOF_RETURN_IF_MPI_ERROR(
        MPI_Isend(from + first, size, MPI_BYTE, to.value, tag, comm_, &request));
    requests_.push_back(request);
    peers_.push_back(to);
  }
  return absl::OkStatus();
}

absl::Status MpiRequests::Receive(void* bytes, int64_t count, Rank from, int tag) {
  char* const to = static_cast<char*>(bytes);
  for (int64_t first = 0; first < count; first += message_bytes_) {
    const int size = static_cast<int>(std::min(message_bytes_, count - first));
    MPI_Request request;
    SHARDPROOF_RETURN_IF_MPI_ERROR(
        MPI_Irecv(to + first, size, MPI_BYTE, from.value, tag, comm_, &request));
    requests_.push_back(request);
    peers_.push_back(from);
  }
  return absl::OkStatus();
}

// Any MPI_Test lets all requests progress, so the first that has not ended answers for all.
absl::StatusOr<bool> MpiRequests::Test() {
  for (; ended_ < requests_.size(); ++ended_) {
    int ended = 0;
    SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Test(&requests_[ended_], &ended, MPI_STATUS_IGNORE));
    if (!ended) return false;
  }
  requests_.clear();
  peers_.clear();
  ended_ = 0;
  return true;
}

std::vector<Rank> MpiRequests::Awaited() {
  std::vector<Rank> ranks;
  for (size_t i = ended_; i < requests_.size(); ++i) {
    int ended = 0;
    // One that fails has not ended; the next Test returns its error.
    MPI_Request_get_status(requests_[i], &ended, MPI_STATUS_IGNORE);
    if (!ended) ranks.push_back(peers_[i]);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace shardproof
