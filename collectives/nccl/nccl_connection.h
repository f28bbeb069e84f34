// One rank's NCCL communicator of one group, never blocking. For nccl_world.cc only.
#ifndef COLLECTIVES_NCCL_NCCL_CONNECTION_H_
#define COLLECTIVES_NCCL_NCCL_CONNECTION_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// Used by the rank's thread, but for Abort. NCCL frees a communicator that is aborted, so every
// use of it holds the mutex; no use takes long, as NCCL never blocks.
class NcclConnection {
 public:
  // All members at the same time, each on its own thread, with the id that one of them has made.
  // DeadlineExceeded if NCCL has not connected them by then.
  static absl::StatusOr<std::unique_ptr<NcclConnection>> Make(Rank rank, const Group& group,
                                                              int device, const ncclUniqueId& id,
                                                              absl::Duration timeout);
  // For a group of one rank, which needs no communicator of NCCL: nothing may be enqueued on it.
  static std::unique_ptr<NcclConnection> MakeAlone(Rank rank, const Group& group, int device);

  // A communicator without errors is finalized, for a few seconds at most, and destroyed; any other
  // is aborted. NCCL lets ranks of one machine wait for each other there, and in Abort: all
  // connections of a process end at the same time, each on a thread of its own.
  ~NcclConnection();

  const Group& group() const { return group_; }

  // The position that the rank's next call has in the group's order.
  int64_t TakePosition() { return next_position_++; }

  // Enqueues a valid call as one NCCL call on `stream`: one kernel. A barrier is an all-reduce of
  // one element. Returns when it is enqueued; the first ones may wait for the other members, as
  // NCCL connects them then. DeadlineExceeded if that takes longer than `timeout`. After an error
  // the connection is of no further use.
  absl::Status Enqueue(const CollectiveCall& call, cudaStream_t stream, absl::Duration timeout);

  // What NCCL has met since, the error of an earlier call, or why it was aborted.
  absl::Status Health();

  // From now on everything returns `why`, and aborted() does. Any thread.
  void Abort(const absl::Status& why);
  absl::Status aborted();

 private:
  NcclConnection(Rank rank, const Group& group, int device)
      : rank_(rank), group_(group), device_(device) {}

  void Finalize();
  absl::Status Init(const ncclUniqueId& id, absl::Duration timeout);
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
};

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_NCCL_CONNECTION_H_
