// CUDA streams, events and graphs that are destroyed with their owner.
//
// A failure to destroy has nobody to tell; a device in that state fails every later call.
#ifndef TRAINER_BENCH_CUDA_HANDLES_H_
#define TRAINER_BENCH_CUDA_HANDLES_H_

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/statusor.h"
#include "trainer/engines/cuda/cuda_status.h"

namespace shardproof {

struct DestroyCuda {
  void operator()(CUstream_st* stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
  void operator()(CUevent_st* event) const { static_cast<void>(cudaEventDestroy(event)); }
  void operator()(CUgraph_st* graph) const { static_cast<void>(cudaGraphDestroy(graph)); }
  void operator()(CUgraphExec_st* graph) const { static_cast<void>(cudaGraphExecDestroy(graph)); }
};
using OwnedStream = std::unique_ptr<CUstream_st, DestroyCuda>;
using OwnedEvent = std::unique_ptr<CUevent_st, DestroyCuda>;
using OwnedGraph = std::unique_ptr<CUgraph_st, DestroyCuda>;
using OwnedGraphExec = std::unique_ptr<CUgraphExec_st, DestroyCuda>;

// On the current device; the stream does not synchronize with the default one.
inline absl::StatusOr<OwnedStream> MakeStream() {
  cudaStream_t stream = nullptr;
  SHARDPROOF_CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return OwnedStream(stream);
}

// With timing.
inline absl::StatusOr<OwnedEvent> MakeTimedEvent() {
  cudaEvent_t event = nullptr;
  SHARDPROOF_CUDA_OK(cudaEventCreate(&event));
  return OwnedEvent(event);
}

// Waits for `end`: milliseconds since `start`.
inline absl::StatusOr<double> MsBetween(const OwnedEvent& start, const OwnedEvent& end) {
  float ms = 0;
  SHARDPROOF_CUDA_OK(cudaEventSynchronize(end.get()));
  SHARDPROOF_CUDA_OK(cudaEventElapsedTime(&ms, start.get(), end.get()));
  return static_cast<double>(ms);
}

}  // namespace shardproof

#endif  // TRAINER_BENCH_CUDA_HANDLES_H_
