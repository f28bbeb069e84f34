#include "collectives/nccl/nccl_connection.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/device_calls.h"
#include "collectives/device_status.h"
#include "collectives/nccl/nccl_status.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr absl::Duration kFinalizeTimeout = absl::Seconds(5);
// No use of a communicator takes this long, unless CUDA holds it inside of a launch.
constexpr absl::Duration kLaunchTimeout = absl::Seconds(1);

bool LockWithin(absl::Duration timeout, std::unique_lock<std::mutex>& lock) {
  return *PollUntil(timeout, [&]() -> absl::StatusOr<bool> { return lock.try_lock(); });
}

}  // namespace

absl::Status NcclConnection::Connect(const ncclUniqueId& id, absl::Duration timeout) {
  SHARDPROOF_DEVICE_OK(cudaSetDevice(device_));
  SHARDPROOF_DEVICE_OK(cudaMalloc(&barrier_element_, sizeof(float)));
  SHARDPROOF_DEVICE_OK(cudaMemset(barrier_element_, 0, sizeof(float)));
  // Streams that do not block would not wait for it.
  SHARDPROOF_DEVICE_OK(cudaStreamSynchronize(nullptr));
  SHARDPROOF_RETURN_IF_ERROR(Init(id));
  const absl::Status ready = AwaitProgress("ncclCommInitRankConfig", timeout);
  SHARDPROOF_RETURN_IF_ERROR(aborted());
  if (!absl::IsDeadlineExceeded(ready)) return ready;
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", rank_.value, " waited ", absl::FormatDuration(timeout),
                   " for NCCL to connect the group of ", DescribeRanks(group_),
                   ", all of whom had come to connect: ", ready.message()));
}

absl::Status NcclConnection::Init(const ncclUniqueId& id) {
  // Everything else, NVLink SHARP included, stays as the environment has it.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const int member = (rank_.value - group_.first) / group_.stride;
  const std::lock_guard<std::mutex> lock(mutex_);
  // After an abort nobody would end the communicator that is made here.
  if (!failure_.ok()) return failure_;
  failure_ = NcclStatus(ncclCommInitRankConfig(&comm_, group_.count, id, member, &config), nullptr,
                        "ncclCommInitRankConfig");
  return failure_;
}

NcclConnection::~NcclConnection() {
  // Errors of a destructor have nobody to go to.
  Finalize();
  const bool finalized =
      failure_.ok() && comm_ != nullptr && AwaitProgress("ncclCommFinalize", kFinalizeTimeout).ok();
  if (finalized) {
    static_cast<void>(ncclCommDestroy(comm_));
  } else {
    Abort(absl::CancelledError("the connection has ended"));
  }
  if (barrier_element_ != nullptr) cudaFree(barrier_element_);
}

void NcclConnection::Finalize() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr || !failure_.ok()) return;
  static_cast<void>(cudaSetDevice(device_));
  failure_ = NcclStatus(ncclCommFinalize(comm_), comm_, "ncclCommFinalize");
}

absl::Status NcclConnection::Enqueue(const CollectiveCall& call, cudaStream_t stream,
                                     absl::Duration timeout) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (aborted_in_launch_.load()) return absl::CancelledError("aborted while CUDA held a launch");
    const ncclResult_t result = Issue(call, stream);
    failure_ = NcclStatus(result, comm_, absl::StrCat("NCCL's ", Name(call.kind)));
    if (!failure_.ok() || result == ncclSuccess) return failure_;
  }
  return AwaitProgress("an NCCL call", timeout);
}

// The one NCCL call of a collective: not in a group with others, so that each has its own kernel.
ncclResult_t NcclConnection::Issue(const CollectiveCall& call, cudaStream_t stream) {
  const ncclDataType_t type = call.dtype == Dtype::kFloat64 ? ncclFloat64 : ncclFloat32;
  const size_t elements = static_cast<size_t>(call.elements);
  const size_t part = elements / static_cast<size_t>(group_.count);
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return ncclAllReduce(call.send, call.recv, elements, type, ncclSum, comm_, stream);
    case CollectiveKind::kAllGather:
      return ncclAllGather(call.send, call.recv, part, type, comm_, stream);
    case CollectiveKind::kReduceScatter:
      return ncclReduceScatter(call.send, call.recv, part, type, ncclSum, comm_, stream);
    case CollectiveKind::kBroadcast: {
      const int root = (call.root.value - group_.first) / group_.stride;
      return ncclBroadcast(call.send, call.recv, elements, type, root, comm_, stream);
    }
    case CollectiveKind::kBarrier:
      return ncclAllReduce(barrier_element_, barrier_element_, 1, ncclFloat32, ncclSum, comm_,
                           stream);
  }
  return ncclInvalidArgument;
}

// A nonblocking communicator takes no further call until the last one is no longer in progress.
absl::Status NcclConnection::AwaitProgress(const char* call, absl::Duration timeout) {
  const absl::StatusOr<bool> settled = PollUntil(timeout, [&] { return Settled(call); });
  if (!settled.ok()) return settled.status();
  if (*settled) return absl::OkStatus();
  return Fail(absl::DeadlineExceededError(absl::StrCat(
      "rank ", rank_.value, ": ", call, " was in progress for ", absl::FormatDuration(timeout))));
}

absl::StatusOr<bool> NcclConnection::Settled(const char* call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (aborted_in_launch_.load()) return absl::CancelledError("aborted while CUDA held a launch");
  if (comm_ == nullptr) return true;
  ncclResult_t state = ncclSuccess;
  failure_ = NcclStatus(ncclCommGetAsyncError(comm_, &state), comm_, "ncclCommGetAsyncError");
  if (failure_.ok()) failure_ = NcclStatus(state, comm_, call);
  if (!failure_.ok()) return failure_;
  return state != ncclInProgress;
}

absl::Status NcclConnection::Health() {
  return Settled("NCCL, after its calls were enqueued").status();
}

absl::Status NcclConnection::Fail(absl::Status why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) failure_ = std::move(why);
  return failure_;
}

absl::Status NcclConnection::aborted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

void NcclConnection::Abort(const absl::Status& why) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (!LockWithin(kLaunchTimeout, lock)) {
    // CUDA holds a call inside of a launch, since the launch queue is full of what waits for a
    // collective that does not end; only an abort ends it. Nobody else changes comm_ meanwhile.
    aborted_in_launch_.store(true);
    static_cast<void>(ncclCommAbort(comm_));
    if (!LockWithin(kLaunchTimeout, lock)) return;
    comm_ = nullptr;
  }
  if (aborted_.ok()) aborted_ = why;
  failure_ = aborted_;
  if (comm_ == nullptr) return;
  // What it returns changes nothing: there is no milder way left.
  static_cast<void>(ncclCommAbort(std::exchange(comm_, nullptr)));
}

}  // namespace shardproof
