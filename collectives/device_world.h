// DeviceWorld: how the GPU ranks of this process meet all ranks of the job.
//
// Its communicators work on device memory and are bound to a CUDA stream. Start enqueues the
// collective there: what is enqueued on that stream later runs after it, what was enqueued
// earlier runs before. Poll and Wait ask whether the GPU has finished it. The rest is as
// collectives/communicator.h says.
//
// Each collective is issued alone, so that on NCCL calls equal kernels; a collective of a group
// of one rank, or of no elements, may have none.
#ifndef COLLECTIVES_DEVICE_WORLD_H_
#define COLLECTIVES_DEVICE_WORLD_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

struct CUstream_st;

namespace shardproof {

// cudaStream_t, without CUDA's headers.
using DeviceStream = CUstream_st*;

class DeviceWorld {
 public:
  virtual ~DeviceWorld() = default;
  virtual WorldSize size() const = 0;

  // The ranks that run in this process, ascending.
  virtual std::vector<Rank> local_ranks() const = 0;

  // The CUDA ordinal of a local rank's GPU.
  virtual int device(Rank rank) const = 0;

  // This rank's end of `group`, for collectives on `stream` of the rank's device. Called on the
  // rank's own thread, by all members of the group at about the same time; returns when all have
  // connected, or after `timeout` with DeadlineExceeded that names who has not. What is costly to
  // set up is kept for the next Connect of the same rank and group. The world outlives the
  // result, and the stream does too.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Connect(Rank rank, Group group,
                                                                DeviceStream stream,
                                                                absl::Duration timeout) = 0;

  // Ends every collective that is under way in this process, whoever waits for it: streams run on
  // with garbage, and later calls return `why`. The world is of no further use. Any thread.
  virtual void Abort(absl::Status why) = 0;
};

}  // namespace shardproof

#endif  // COLLECTIVES_DEVICE_WORLD_H_
