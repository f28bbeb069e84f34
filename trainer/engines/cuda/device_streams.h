// The streams, events and pinned host memory of one rank, which free themselves.
#ifndef TRAINER_ENGINES_CUDA_DEVICE_STREAMS_H_
#define TRAINER_ENGINES_CUDA_DEVICE_STREAMS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "invariants/run_description/vocabulary.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/plan/step_plan.h"

namespace shardproof {

// A stream for each StreamId, and the events that frame a step on them.
class DeviceStreams {
 public:
  DeviceStreams() = default;
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;
  ~DeviceStreams();

  // On the current device. The communication stream gets the highest priority.
  absl::Status Create();
  cudaStream_t of(StreamId id) const { return streams_[static_cast<int>(id)]; }
  cudaStream_t compute() const { return of(StreamId::kCompute); }

  // Enqueues the step's first moment: all streams begin after it.
  absl::Status Begin();
  // Enqueues the step's last moment on the compute stream: all streams have ended before it.
  absl::Status End();
  // Enqueues the end of what the compute stream was given after End.
  absl::Status Finish();
  // Whether that has come. Does not wait.
  absl::StatusOr<bool> Finished() const;
  // From Begin to End, once finished.
  absl::StatusOr<double> Milliseconds() const;

 private:
  cudaStream_t streams_[kStreams] = {};
  cudaEvent_t begin_ = nullptr;  // timed
  cudaEvent_t end_ = nullptr;    // timed
  cudaEvent_t tail_ = nullptr;   // of the stream beside compute
  cudaEvent_t finished_ = nullptr;
};

// An event for each operation of a plan that an operation of another stream waits for.
class OperationEvents {
 public:
  OperationEvents() = default;
  OperationEvents(const OperationEvents&) = delete;
  OperationEvents& operator=(const OperationEvents&) = delete;
  ~OperationEvents();

  // Between steps: for this plan from now on.
  absl::Status Fit(const StepPlan& plan);
  // Enqueues the event, if the operation has one, behind it.
  absl::Status Record(int32_t op, cudaStream_t stream);
  // Makes `stream` wait for an operation that was enqueued on another one.
  absl::Status Wait(int32_t op, cudaStream_t stream);

 private:
  std::vector<cudaEvent_t> events_;   // reused from plan to plan
  std::vector<int32_t> event_of_op_;  // into events_; -1: none
};

// The events of LaunchWindow's marks.
class MarkEvents {
 public:
  MarkEvents() = default;
  MarkEvents(const MarkEvents&) = delete;
  MarkEvents& operator=(const MarkEvents&) = delete;
  ~MarkEvents();

  // Enqueues the mark; a number is at most the count of those before.
  absl::Status Record(int32_t mark, cudaStream_t stream);
  // Whether the stream has come to it. Does not wait.
  absl::StatusOr<bool> Done(int32_t mark) const;

 private:
  std::vector<cudaEvent_t> events_;  // by mark
};

// A value in pinned host memory, to which a stream can copy without making the host wait.
template <typename T>
class PinnedValue {
 public:
  PinnedValue() = default;
  PinnedValue(const PinnedValue&) = delete;
  PinnedValue& operator=(const PinnedValue&) = delete;
  ~PinnedValue() { static_cast<void>(cudaFreeHost(value_)); }

  absl::Status Create() {
    SHARDPROOF_CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&value_), sizeof(T)));
    *value_ = T();
    return absl::OkStatus();
  }
  T* get() const { return value_; }
  T* operator->() const { return value_; }

 private:
  T* value_ = nullptr;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_DEVICE_STREAMS_H_
