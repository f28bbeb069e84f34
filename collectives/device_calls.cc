#include "collectives/device_calls.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_status.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

constexpr absl::Duration kSpin = absl::Microseconds(200);
constexpr absl::Duration kNap = absl::Microseconds(50);

}  // namespace

// Errors of a destructor have nobody to go to; an event that is pending is freed once it is over.
DeviceCalls::~DeviceCalls() {
  for (const Entry& entry : calls_) cudaEventDestroy(entry.done);
  for (cudaEvent_t event : unused_) cudaEventDestroy(event);
}

absl::Status DeviceCalls::Add(const CollectiveCall& call, int64_t position, cudaStream_t stream) {
  SHARDPROOF_RETURN_IF_ERROR(ForgetDone());
  cudaEvent_t event = nullptr;
  if (unused_.empty()) {
    SHARDPROOF_DEVICE_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  } else {
    event = unused_.back();
    unused_.pop_back();
  }
  const absl::Status recorded =
      DeviceStatus(cudaEventRecord(event, stream), "cudaEventRecord(event, stream)");
  if (!recorded.ok()) {
    unused_.push_back(event);
    return recorded;
  }
  calls_.push_back({{call, position}, event});
  return absl::OkStatus();
}

absl::StatusOr<bool> DeviceCalls::Done(int64_t number) {
  if (number < 0 || number >= count()) {
    return absl::InvalidArgumentError(absl::StrCat("handle ", number, ": ", count(),
                                                   " calls were started, so handles are 0 to ",
                                                   count() - 1));
  }
  SHARDPROOF_RETURN_IF_ERROR(ForgetDone());
  return number < first_;
}

const DeviceCalls::Started* DeviceCalls::started(int64_t number) const {
  return number < first_ || number >= count() ? nullptr : &calls_[number - first_].started;
}

absl::Status DeviceCalls::ForgetDone() {
  while (!calls_.empty()) {
    const cudaError_t state = cudaEventQuery(calls_.front().done);
    if (state == cudaErrorNotReady) return absl::OkStatus();
    SHARDPROOF_RETURN_IF_ERROR(DeviceStatus(state, "cudaEventQuery(done)"));
    unused_.push_back(calls_.front().done);
    calls_.pop_front();
    ++first_;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> PollUntil(absl::Duration timeout,
                               const std::function<absl::StatusOr<bool>()>& poll) {
  const absl::Time start = absl::Now();
  while (true) {
    SHARDPROOF_ASSIGN_OR_RETURN(const bool done, poll());
    if (done) return true;
    const absl::Duration waited = absl::Now() - start;
    if (waited >= timeout) return false;
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(kNap);
    }
  }
}

}  // namespace shardproof
