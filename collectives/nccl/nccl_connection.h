// One rank's NCCL communicator of one group, never blocking. For nccl_world only.
#ifndef COLLECTIVES_NCCL_NCCL_CONNECTION_H_
#define COLLECTIVES_NCCL_NCCL_CONNECTION_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// Used by the rank's thread, but for Abort. NCCL frees a communicator that is aborted, so every
// use of it holds the mutex; no use takes long, as NCCL never blocks, unless CUDA does, inside of
// a launch: Abort then goes ahead without the mutex.
class NcclConnection {
 public:
  // Not connected: nothing may be enqueued. A group of one rank, which needs no communicator of
  // NCCL, stays so.
  NcclConnection(Rank rank, const Group& group, int device)
      : rank_(rank), group_(group), device_(device) {}
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  // A communicator without errors is finalized, for a few seconds at most, and destroyed; any other
  // is aborted. NCCL lets ranks of one machine wait for each other there, and in Abort: all
  // connections of a process end at the same time, each on a thread of its own.
  ~NcclConnection();

  const Group& group() const { return group_; }

  // Once, all members at the same time, each on its own thread, with the id that one of them has
  // made. DeadlineExceeded if NCCL has not connected them by then. After an error the connection
  // is of no further use.
  absl::Status Connect(const ncclUniqueId& id, absl::Duration timeout);

  // The position that the rank's next call has in the group's order.
  int64_t TakePosition() { return next_position_++; }

  // Enqueues a valid call as one NCCL call on `stream`: one kernel. A barrier is an all-reduce of
  // one element. Returns when it is enqueued; the first ones may wait for the other members, as
  // NCCL connects them then. DeadlineExceeded if that takes longer than `timeout`. After an error
  // the connection is of no further use.
  absl::Status Enqueue(const CollectiveCall& call, cudaStream_t stream, absl::Duration timeout);

  // What NCCL has met since, the error of an earlier call, or why it was aborted.
  absl::Status Health();

  // From now on everything returns `why`, and aborted() does; a Connect or Enqueue that waits
  // returns it too. Any thread.
  void Abort(const absl::Status& why);
  absl::Status aborted();

 private:
  void Finalize();
  absl::Status Init(const ncclUniqueId& id);
  ncclResult_t Issue(const CollectiveCall& call, cudaStream_t stream);
  absl::Status AwaitProgress(const char* call, absl::Duration timeout);
  absl::StatusOr<bool> Settled(const char* call);
  absl::Status Fail(absl::Status why);

  const Rank rank_;
  const Group group_;
  const int device_;
  int64_t next_position_ = 0;
  float* barrier_element_ = nullptr;  // on the device

  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // null after an abort
  absl::Status failure_;       // the first, or why it was aborted
  absl::Status aborted_;
  // Without the mutex: an abort that could not have it has freed comm_.
  std::atomic<bool> aborted_in_launch_ = false;
};

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_NCCL_CONNECTION_H_
