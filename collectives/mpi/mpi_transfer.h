// The data of one collective over MPI, once all members have called it and agree.
#ifndef COLLECTIVES_MPI_MPI_TRANSFER_H_
#define COLLECTIVES_MPI_MPI_TRANSFER_H_

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/mpi/mpi_requests.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// How, for a group of n members:
//   broadcast       the root sends all elements to every other member
//   all_gather      each sends its part to every other
//   reduce_scatter  each sends part p to member p, which adds what it has received in rank order
//   all_reduce      reduce-scatter of n parts that differ by at most an element, then all-gather
// A member holds (n - 1) * min(message_bytes, its part) bytes of others' data to be added, and
// nothing else.
class MpiTransfer {
 public:
  // `call` has elements and is no barrier. Member m sends with tags[m] and tags[m] + 1, which
  // nothing else under way from m has. `message_bytes`: a multiple of 8, below 2^31.
  MpiTransfer(MPI_Comm comm, int64_t message_bytes, const Group& group, int32_t member,
              const CollectiveCall& call, std::vector<int32_t> tags);

  // Does what can be done now; the first call begins. True once this member's part is over: its
  // receive buffer is complete and its send buffer has been read.
  absl::StatusOr<bool> Advance();

  // The ranks whose data, or whose reading of ours, is awaited at the moment.
  std::vector<Rank> Awaited();

 private:
  enum class Phase { kBegin, kAdd, kSendParts, kExchange };

  ElementRange Part(int32_t member) const;
  const char* send(int64_t element) const;
  char* recv(int64_t element) const;
  template <typename Function>
  absl::Status ForEachOther(Function function) const;

  absl::Status Begin();
  absl::Status BeginBroadcast();
  absl::Status BeginGather();
  absl::Status BeginReduction();
  absl::Status ReceiveChunk();
  void AddChunk();
  template <typename T>
  void AddChunkOf();
  ElementRange Chunk() const;
  std::byte* received(int32_t other) const;

  const Group group_;
  const int32_t member_;
  const CollectiveCall call_;
  const std::vector<int32_t> tags_;
  const int64_t element_bytes_;
  const int64_t chunk_elements_;

  Phase phase_ = Phase::kBegin;
  MpiRequests parts_;     // the others' parts, sent to be added there
  MpiRequests exchange_;  // everything else
  int64_t added_ = 0;     // elements of this member's part
  // A chunk of every other member, in rank order, each of them chunk_stride_ bytes.
  std::unique_ptr<std::byte[]> received_;
  int64_t chunk_stride_ = 0;
};

}  // namespace shardproof

#endif  // COLLECTIVES_MPI_MPI_TRANSFER_H_
