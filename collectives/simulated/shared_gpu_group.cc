#include "collectives/simulated/shared_gpu_group.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/device_status.h"
#include "collectives/simulated/shared_gpu_kernels.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

SharedGpuGroup::SharedGpuGroup(Group group, int device, cudaStream_t stream)
    : group_(group),
      device_(device),
      stream_(stream),
      connecting_(group.count),
      starting_(group.count),
      calls_(group.count),
      streams_(group.count),
      ready_events_(group.count) {}

SharedGpuGroup::~SharedGpuGroup() {
  for (cudaEvent_t event : ready_events_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

// True for the last.
bool SharedGpuGroup::Arrive(Meeting& meeting, int32_t member) {
  meeting.here[member] = true;
  return ++meeting.arrived == group_.count;
}

void SharedGpuGroup::Hold(Meeting& meeting) {
  std::fill(meeting.here.begin(), meeting.here.end(), false);
  meeting.arrived = 0;
  ++meeting.held;
  changed_.notify_all();
}

// False if the time ran out. A failure of the group ends the wait as well.
bool SharedGpuGroup::WaitForOthers(Meeting& meeting, int64_t held_before, absl::Duration timeout,
                                   std::unique_lock<std::mutex>& lock) {
  const auto bounded = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
  return changed_.wait_for(lock, bounded,
                           [&] { return meeting.held != held_before || !failure_.ok(); });
}

std::vector<Rank> SharedGpuGroup::Missing(const Meeting& meeting) const {
  std::vector<Rank> missing;
  for (int32_t member = 0; member < group_.count; ++member) {
    if (!meeting.here[member]) missing.push_back(group_.member(member));
  }
  return missing;
}

absl::Status SharedGpuGroup::Connect(int32_t member, absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  const int64_t held_before = connecting_.held;
  if (Arrive(connecting_, member)) {
    Hold(connecting_);
    return absl::OkStatus();
  }
  if (WaitForOthers(connecting_, held_before, timeout, lock)) {
    return connecting_.held != held_before ? absl::OkStatus() : failure_;
  }
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("rank ", group_.member(member).value, " waited ", absl::FormatDuration(timeout),
                   " to connect the group of ", DescribeRanks(group_),
                   "; not arrived: ", DescribeRanks(Missing(connecting_))));
  // It may come again: the others go on waiting.
  connecting_.here[member] = false;
  --connecting_.arrived;
  return late;
}

absl::StatusOr<int64_t> SharedGpuGroup::Start(int32_t member, const CollectiveCall& call,
                                              cudaStream_t stream, absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  SHARDPROOF_RETURN_IF_ERROR(
      ValidateCall(group_, group_.member(member), call, "a world on one GPU"));
  failure_ = Post(member, call, stream);
  if (!failure_.ok()) {
    changed_.notify_all();
    return failure_;
  }
  const int64_t position = starting_.held;
  if (Arrive(starting_, member)) {
    failure_ = CarryOut();
    Hold(starting_);
  } else if (!WaitForOthers(starting_, position, timeout, lock)) {
    // The others could only wait for a call that this rank has given up.
    failure_ = absl::DeadlineExceededError(absl::StrCat(
        "rank ", group_.member(member).value, " waited ", absl::FormatDuration(timeout), " for ",
        DescribeCall(call), ", position ", position, " of the group of ", DescribeRanks(group_),
        "; not arrived: ", DescribeRanks(Missing(starting_))));
    changed_.notify_all();
  }
  if (!failure_.ok()) return failure_;
  return position;
}

absl::Status SharedGpuGroup::Post(int32_t member, const CollectiveCall& call, cudaStream_t stream) {
  SHARDPROOF_DEVICE_OK(cudaSetDevice(device_));
  cudaEvent_t& ready = ready_events_[member];
  if (ready == nullptr) {
    SHARDPROOF_DEVICE_OK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  }
  SHARDPROOF_DEVICE_OK(cudaEventRecord(ready, stream));
  calls_[member] = call;
  streams_[member] = stream;
  return absl::OkStatus();
}

// All members are here and wait, so their streams may be used from this thread.
absl::Status SharedGpuGroup::CarryOut() {
  SHARDPROOF_RETURN_IF_ERROR(CheckAgreement(group_, starting_.held, calls_));
  for (cudaEvent_t ready : ready_events_) {
    SHARDPROOF_DEVICE_OK(cudaStreamWaitEvent(stream_, ready, 0));
  }
  SHARDPROOF_RETURN_IF_ERROR(Enqueue());
  SHARDPROOF_RETURN_IF_ERROR(carried_out_.Add(calls_[0], starting_.held, stream_));
  for (cudaStream_t stream : streams_) {
    SHARDPROOF_DEVICE_OK(cudaStreamWaitEvent(stream, carried_out_.last_event(), 0));
  }
  return absl::OkStatus();
}

absl::Status SharedGpuGroup::Enqueue() {
  const CollectiveCall& call = calls_[0];
  SharedGpuBuffers buffers;
  buffers.members = group_.count;
  buffers.elements = call.elements;
  for (int32_t member = 0; member < group_.count; ++member) {
    buffers.send[member] = calls_[member].send;
    buffers.recv[member] = calls_[member].recv;
  }
  const bool float64 = call.dtype == Dtype::kFloat64;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      SHARDPROOF_DEVICE_OK(AllReduceInRankOrder(buffers, float64, stream_));
      return absl::OkStatus();
    case CollectiveKind::kReduceScatter:
      SHARDPROOF_DEVICE_OK(ReduceScatterInRankOrder(buffers, float64, stream_));
      return absl::OkStatus();
    case CollectiveKind::kAllGather:
      SHARDPROOF_DEVICE_OK(AllGatherOnDevice(buffers, float64, stream_));
      return absl::OkStatus();
    case CollectiveKind::kBroadcast:
      buffers.root = (call.root.value - group_.first) / group_.stride;
      SHARDPROOF_DEVICE_OK(BroadcastOnDevice(buffers, float64, stream_));
      return absl::OkStatus();
    case CollectiveKind::kBarrier:
      return absl::OkStatus();
  }
  return absl::InternalError("a kind of collective that CollectiveKind does not name");
}

absl::StatusOr<bool> SharedGpuGroup::Poll(int64_t position) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  return carried_out_.Done(position);
}

std::string SharedGpuGroup::Describe(int64_t position) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const DeviceCalls::Started* const started = carried_out_.started(position);
  return absl::StrCat(started == nullptr ? "a collective" : DescribeCall(started->call),
                      ", position ", position, " of the group of ", DescribeRanks(group_));
}

void SharedGpuGroup::Fail(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_ = why;
  changed_.notify_all();
}

}  // namespace shardproof
