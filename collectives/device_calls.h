// DeviceCalls: collectives that were enqueued on a CUDA stream, and which of them the GPU has done.
#ifndef COLLECTIVES_DEVICE_CALLS_H_
#define COLLECTIVES_DEVICE_CALLS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"

namespace shardproof {

// Of one stream, so that they are done in the order in which they were added. Events are reused:
// no more exist than calls were ever under way. Not thread-safe. Add on the stream's device.
class DeviceCalls {
 public:
  DeviceCalls() = default;
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  // How many were added; the next one's number.
  int64_t count() const { return first_ + static_cast<int64_t>(calls_.size()); }

  // `call`, at `position` of its group's order, is what was enqueued on `stream` last.
  absl::Status Add(const CollectiveCall& call, int64_t position, cudaStream_t stream);

  // Whether the GPU has done call `number`. InvalidArgument if it was not added.
  absl::StatusOr<bool> Done(int64_t number);

  struct Started {
    CollectiveCall call;
    int64_t position;
  };
  // Call `number` as it was added; null once it was seen done.
  const Started* started(int64_t number) const;

  // Recorded behind the last call added; there is one.
  cudaEvent_t last_event() const { return calls_.back().done; }

 private:
  struct Entry {
    Started started;
    cudaEvent_t done;
  };

  absl::Status ForgetDone();

  int64_t first_ = 0;  // the number of calls_[0]: all before were seen done
  std::deque<Entry> calls_;
  std::vector<cudaEvent_t> unused_;
};

// Calls `poll` until it says true or fails; false if `timeout` passes first. Asks once at least.
// What ends within microseconds is seen at once, what takes longer within a tenth of a millisecond.
absl::StatusOr<bool> PollUntil(absl::Duration timeout,
                               const std::function<absl::StatusOr<bool>()>& poll);

}  // namespace shardproof

#endif  // COLLECTIVES_DEVICE_CALLS_H_
