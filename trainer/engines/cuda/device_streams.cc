#include "trainer/engines/cuda/device_streams.h"

#include "invariants/run_description/status_macros.h"

namespace shardproof {

// What fails to be destroyed has nobody to tell.
DeviceStreams::~DeviceStreams() {
  for (cudaEvent_t event : {begin_, end_, tail_, finished_}) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) static_cast<void>(cudaStreamDestroy(stream));
  }
}

absl::Status DeviceStreams::Create() {
  int lowest = 0;
  int highest = 0;
  SHARDPROOF_CUDA_OK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  for (int i = 0; i < kStreams; ++i) {
    const int priority = static_cast<StreamId>(i) == StreamId::kCommunication ? highest : lowest;
    SHARDPROOF_CUDA_OK(cudaStreamCreateWithPriority(&streams_[i], cudaStreamNonBlocking, priority));
  }
  SHARDPROOF_CUDA_OK(cudaEventCreate(&begin_));
  SHARDPROOF_CUDA_OK(cudaEventCreate(&end_));
  SHARDPROOF_CUDA_OK(cudaEventCreateWithFlags(&tail_, cudaEventDisableTiming));
  SHARDPROOF_CUDA_OK(cudaEventCreateWithFlags(&finished_, cudaEventDisableTiming));
  return absl::OkStatus();
}

absl::Status DeviceStreams::Begin() {
  SHARDPROOF_CUDA_OK(cudaEventRecord(begin_, compute()));
  for (cudaStream_t stream : streams_) {
    if (stream != compute()) SHARDPROOF_CUDA_OK(cudaStreamWaitEvent(stream, begin_, 0));
  }
  return absl::OkStatus();
}

absl::Status DeviceStreams::End() {
  for (cudaStream_t stream : streams_) {
    if (stream == compute()) continue;
    SHARDPROOF_CUDA_OK(cudaEventRecord(tail_, stream));
    SHARDPROOF_CUDA_OK(cudaStreamWaitEvent(compute(), tail_, 0));
  }
  SHARDPROOF_CUDA_OK(cudaEventRecord(end_, compute()));
  return absl::OkStatus();
}

absl::Status DeviceStreams::Finish() {
  SHARDPROOF_CUDA_OK(cudaEventRecord(finished_, compute()));
  return absl::OkStatus();
}

absl::StatusOr<bool> DeviceStreams::Finished() const {
  const cudaError_t error = cudaEventQuery(finished_);
  if (error == cudaErrorNotReady) return false;
  SHARDPROOF_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery(finished_)"));
  return true;
}

absl::StatusOr<double> DeviceStreams::Milliseconds() const {
  float milliseconds = 0;
  SHARDPROOF_CUDA_OK(cudaEventElapsedTime(&milliseconds, begin_, end_));
  return static_cast<double>(milliseconds);
}

OperationEvents::~OperationEvents() {
  for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
}

absl::Status OperationEvents::Fit(const StepPlan& plan) {
  event_of_op_.assign(plan.ops.size(), -1);
  size_t used = 0;
  for (const Op& op : plan.ops) {
    for (const int32_t wait : plan.WaitsOf(op)) {
      if (plan.ops[wait].stream == op.stream || event_of_op_[wait] >= 0) continue;
      if (used == events_.size()) {
        cudaEvent_t event = nullptr;
        SHARDPROOF_CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        events_.push_back(event);
      }
      event_of_op_[wait] = static_cast<int32_t>(used++);
    }
  }
  return absl::OkStatus();
}

absl::Status OperationEvents::Record(int32_t op, cudaStream_t stream) {
  if (event_of_op_[op] < 0) return absl::OkStatus();
  SHARDPROOF_CUDA_OK(cudaEventRecord(events_[event_of_op_[op]], stream));
  return absl::OkStatus();
}

absl::Status OperationEvents::Wait(int32_t op, cudaStream_t stream) {
  if (event_of_op_[op] < 0) return absl::OkStatus();
  SHARDPROOF_CUDA_OK(cudaStreamWaitEvent(stream, events_[event_of_op_[op]], 0));
  return absl::OkStatus();
}

MarkEvents::~MarkEvents() {
  for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
}

absl::Status MarkEvents::Record(int32_t mark, cudaStream_t stream) {
  if (static_cast<size_t>(mark) == events_.size()) {
    cudaEvent_t event = nullptr;
    SHARDPROOF_CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    events_.push_back(event);
  }
  SHARDPROOF_CUDA_OK(cudaEventRecord(events_[mark], stream));
  return absl::OkStatus();
}

absl::StatusOr<bool> MarkEvents::Done(int32_t mark) const {
  const cudaError_t error = cudaEventQuery(events_[mark]);
  if (error == cudaErrorNotReady) return false;
  SHARDPROOF_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery(events_[mark])"));
  return true;
}

}  // namespace shardproof
