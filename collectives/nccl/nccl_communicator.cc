#include "collectives/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/device_calls.h"
#include "collectives/device_status.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

absl::StatusOr<CollectiveHandle> NcclCommunicator::Start(const CollectiveCall& call) {
  SHARDPROOF_RETURN_IF_ERROR(ValidateCall(group(), rank(), call, "the NCCL world"));
  SHARDPROOF_DEVICE_OK(cudaSetDevice(options_.device));
  SHARDPROOF_RETURN_IF_ERROR(connection_->aborted());
  const int64_t position = connection_->TakePosition();
  SHARDPROOF_RETURN_IF_ERROR(alone() ? CopyAlone(call) : EnqueueWithOthers(call, position));
  SHARDPROOF_RETURN_IF_ERROR(calls_.Add(call, position, options_.stream));
  return CollectiveHandle{calls_.count() - 1};
}

// Every collective of one rank gives it what it sent.
absl::Status NcclCommunicator::CopyAlone(const CollectiveCall& call) {
  if (call.kind == CollectiveKind::kBarrier || call.elements == 0 || call.send == call.recv) {
    return absl::OkStatus();
  }
  SHARDPROOF_DEVICE_OK(cudaMemcpyAsync(call.recv, call.send, call.elements * DtypeBytes(call.dtype),
                                       cudaMemcpyDeviceToDevice, options_.stream));
  return absl::OkStatus();
}

absl::Status NcclCommunicator::EnqueueWithOthers(const CollectiveCall& call, int64_t position) {
  // An empty call is answered as well: another member may have called it with elements.
  roll_call_->Answer(rank(), group(), position, call);
  if (const absl::Status health = connection_->Health(); !health.ok()) {
    return Explain(health, position);
  }
  SHARDPROOF_RETURN_IF_ERROR(roll_call_->Disagreement(group()));
  if (call.elements == 0 && call.kind != CollectiveKind::kBarrier) return absl::OkStatus();
  const absl::Status enqueued = connection_->Enqueue(call, options_.stream, options_.timeout);
  return enqueued.ok() ? enqueued : Explain(enqueued, position);
}

absl::StatusOr<bool> NcclCommunicator::Poll(CollectiveHandle handle) {
  SHARDPROOF_RETURN_IF_ERROR(connection_->aborted());
  SHARDPROOF_ASSIGN_OR_RETURN(const bool done, calls_.Done(handle.id));
  if (done || alone()) return done;
  SHARDPROOF_RETURN_IF_ERROR(roll_call_->Disagreement(group()));
  const absl::Status health = connection_->Health();
  if (!health.ok()) return Explain(health, calls_.started(handle.id)->position);
  return false;
}

absl::Status NcclCommunicator::Wait(CollectiveHandle handle, absl::Duration timeout) {
  SHARDPROOF_ASSIGN_OR_RETURN(const bool done, PollUntil(timeout, [&] { return Poll(handle); }));
  if (done) return absl::OkStatus();
  const absl::Status late =
      absl::DeadlineExceededError(absl::StrCat("not done after ", absl::FormatDuration(timeout)));
  const DeviceCalls::Started& started = *calls_.started(handle.id);
  if (!alone()) return Explain(late, started.position);
  return absl::DeadlineExceededError(absl::StrCat("rank ", rank().value, " waits for ",
                                                  DescribeCall(started.call), ": ", late.message(),
                                                  "; no other rank takes part"));
}

// What the roll call knows, and what was seen. A world that was aborted says why it was, no more.
absl::Status NcclCommunicator::Explain(const absl::Status& cause, int64_t position) {
  SHARDPROOF_RETURN_IF_ERROR(connection_->aborted());
  const absl::Status why = roll_call_->Explain(rank(), group(), position);
  const absl::StatusCode code = absl::IsFailedPrecondition(why) ? why.code() : cause.code();
  return absl::Status(code, absl::StrCat(why.message(), "; seen: ", cause.message()));
}

}  // namespace shardproof
