// Communicator: one rank's end of one process group.
//
// A collective is started with a CollectiveCall and ends when every member of the group has
// started the same one; calls of a group are matched by their order, as in NCCL. Start does
// not wait. A handle is polled, or waited for with a bound. Buffers belong to the caller and
// must stay untouched from Start until the handle is done.
//
// Buffers, for a group of n members and `elements` of the full buffer (i = member index):
//   all_reduce      send[elements] -> recv[elements], the sum; send may equal recv.
//   all_gather      send[elements / n] -> recv[elements]; member i's part at i * elements / n;
//                   send may be exactly that part of recv.
//   reduce_scatter  send[elements] -> recv[elements / n]: the sum of part i on member i; recv
//                   may be exactly that part of send.
//   broadcast       root's send[elements] -> everyone's recv[elements]; send is read on the
//                   root only and may equal recv.
//   barrier         no buffers.
// Reductions are sums. A backend that adds in rank order adds members 0, 1, ..., n - 1, each
// partial sum rounded to the dtype; it says so in adds_in_rank_order().
#ifndef COLLECTIVES_COMMUNICATOR_H_
#define COLLECTIVES_COMMUNICATOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  int64_t elements = 0;  // of the full buffer, see above
  const void* send = nullptr;
  void* recv = nullptr;
  Rank root;  // broadcast: a rank of the group (world numbering)
  // What the caller calls this collective in messages: an id, e.g. a unit or bucket.
  // Members may differ; it is never compared.
  int32_t label = -1;
};

// Names a started call of one communicator; valid until it was seen done.
struct CollectiveHandle {
  int64_t id = -1;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual Rank rank() const = 0;  // world numbering
  virtual Group group() const = 0;
  virtual bool adds_in_rank_order() const = 0;

  // InvalidArgument for a null buffer with elements > 0, elements < 0, elements that the
  // group size does not divide (all_gather, reduce_scatter), a root outside the group or an
  // unsupported dtype. A disagreement with another member is found when the last member
  // arrives: FailedPrecondition that names the ranks, what each called and its position in
  // the group's order; every member's later calls and polls return it.
  virtual absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) = 0;

  // True once the collective is done. Never blocks.
  virtual absl::StatusOr<bool> Poll(CollectiveHandle handle) = 0;

  // Until done. DeadlineExceeded names the collective and the ranks that did not arrive; so
  // does a backend that knows no other rank can still arrive, at once.
  virtual absl::Status Wait(CollectiveHandle handle, absl::Duration timeout) = 0;
};

}  // namespace shardproof

#endif  // COLLECTIVES_COMMUNICATOR_H_
