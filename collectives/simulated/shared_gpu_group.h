// The meeting point of one group of a world whose ranks share a GPU. For shared_gpu_world.cc only.
#ifndef COLLECTIVES_SIMULATED_SHARED_GPU_GROUP_H_
#define COLLECTIVES_SIMULATED_SHARED_GPU_GROUP_H_

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_calls.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// Members are known by their index in the group; each has one thread at a time. `Connect` and
// `Start` wait for the other members, at most for the timeout.
class SharedGpuGroup {
 public:
  // `stream` carries out the collectives of all groups; it and its device are the world's.
  SharedGpuGroup(Group group, int device, cudaStream_t stream);
  ~SharedGpuGroup();

  const Group& group() const { return group_; }

  absl::Status Connect(int32_t member, absl::Duration timeout);

  // The position of the call; the errors of Communicator::Start and those of shared_gpu_world.h.
  absl::StatusOr<int64_t> Start(int32_t member, const CollectiveCall& call, cudaStream_t stream,
                                absl::Duration timeout);

  absl::StatusOr<bool> Poll(int64_t position);

  // "all_reduce of 4 float32 (label 3), position 5 of the group of ranks 0, 1".
  std::string Describe(int64_t position);

  // Frees everybody who waits here; `why` is what the group's calls return from now on.
  void Fail(const absl::Status& why);

 private:
  // One meeting at a time: nobody arrives at the next before it has left this one.
  struct Meeting {
    explicit Meeting(int32_t members) : here(members) {}
    std::vector<bool> here;
    int32_t arrived = 0;
    int64_t held = 0;  // how many meetings were complete before
  };

  bool Arrive(Meeting& meeting, int32_t member);
  bool WaitForOthers(Meeting& meeting, int64_t held_before, absl::Duration timeout,
                     std::unique_lock<std::mutex>& lock);
  void Hold(Meeting& meeting);
  std::vector<Rank> Missing(const Meeting& meeting) const;
  absl::Status Post(int32_t member, const CollectiveCall& call, cudaStream_t stream);
  absl::Status CarryOut();
  absl::Status Enqueue();

  const Group group_;
  const int device_;
  const cudaStream_t stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Meeting connecting_, starting_;
  std::vector<CollectiveCall> calls_;      // [member], of the meeting
  std::vector<cudaStream_t> streams_;      // [member], of the meeting
  std::vector<cudaEvent_t> ready_events_;  // [member], null before its first call
  DeviceCalls carried_out_;
  absl::Status failure_;
};

}  // namespace shardproof

#endif  // COLLECTIVES_SIMULATED_SHARED_GPU_GROUP_H_
