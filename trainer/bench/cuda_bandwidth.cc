#include "trainer/bench/cuda_bandwidth.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "collectives/traffic_model.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/bench/cuda_handles.h"
#include "trainer/bench/on_each_rank.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/engines/cuda/device_memory.h"

namespace shardproof {
namespace {

constexpr int32_t kWarmUps = 3;
constexpr int32_t kCallsOfASample = 4;  // what starts them costs little beside so many

double GbPerS(int64_t bytes, double ms) { return static_cast<double>(bytes) / (ms * 1e6); }

// One rank's side of the collective, on the rank's own thread.
class BusRank {
 public:
  BusRank(const TypicalCollective& call, DeviceWorld& world, Rank rank, absl::Duration timeout)
      : call_(call), world_(world), rank_(rank), timeout_(timeout) {}

  absl::Status Measure(int32_t samples) {
    SHARDPROOF_RETURN_IF_ERROR(Prepare());
    const int64_t bus_bytes = BusBytes(
        call_.kind, PayloadBytes(call_.kind, call_.dtype, call_.elements), call_.group.count);
    for (int32_t sample = -kWarmUps; sample < samples; ++sample) {
      SHARDPROOF_ASSIGN_OR_RETURN(const double ms, CallsMs());
      if (sample >= 0) gb_per_s_.push_back(GbPerS(bus_bytes * kCallsOfASample, ms));
    }
    return absl::OkStatus();
  }

  const std::vector<double>& gb_per_s() const { return gb_per_s_; }

 private:
  absl::Status Prepare() {
    SHARDPROOF_CUDA_OK(cudaSetDevice(world_.device(rank_)));
    SHARDPROOF_ASSIGN_OR_RETURN(stream_, MakeStream());
    SHARDPROOF_ASSIGN_OR_RETURN(start_, MakeTimedEvent());
    SHARDPROOF_ASSIGN_OR_RETURN(end_, MakeTimedEvent());
    const int64_t bytes = PayloadBytes(call_.kind, call_.dtype, call_.elements);
    SHARDPROOF_ASSIGN_OR_RETURN(send_, DeviceMemory::Allocate(bytes, "the bus measurement"));
    SHARDPROOF_ASSIGN_OR_RETURN(recv_, DeviceMemory::Allocate(bytes, "the bus measurement"));
    SHARDPROOF_CUDA_OK(cudaMemsetAsync(send_.data(), 0, static_cast<size_t>(bytes), stream_.get()));
    SHARDPROOF_ASSIGN_OR_RETURN(communicator_,
                                world_.Connect(rank_, call_.group, stream_.get(), timeout_));
    return absl::OkStatus();
  }

  absl::StatusOr<double> CallsMs() {
    CollectiveCall call;
    call.kind = call_.kind;
    call.dtype = call_.dtype;
    call.elements = call_.elements;
    call.send = send_.data();
    call.recv = recv_.data();
    call.root = call_.group.member(0);
    CollectiveHandle last;
    SHARDPROOF_CUDA_OK(cudaEventRecord(start_.get(), stream_.get()));
    for (int32_t i = 0; i < kCallsOfASample; ++i) {
      SHARDPROOF_ASSIGN_OR_RETURN(last, communicator_->Start(call));
    }
    SHARDPROOF_CUDA_OK(cudaEventRecord(end_.get(), stream_.get()));
    SHARDPROOF_RETURN_IF_ERROR(communicator_->Wait(last, timeout_));
    return MsBetween(start_, end_);
  }

  const TypicalCollective& call_;
  DeviceWorld& world_;
  const Rank rank_;
  const absl::Duration timeout_;
  OwnedStream stream_;
  OwnedEvent start_;
  OwnedEvent end_;
  DeviceMemory send_;
  DeviceMemory recv_;
  std::unique_ptr<Communicator> communicator_;  // after the stream and buffers: destroyed first
  std::vector<double> gb_per_s_;
};

}  // namespace

absl::StatusOr<std::vector<double>> CopyBandwidthOf(int device, int64_t bytes, int32_t samples) {
  SHARDPROOF_CUDA_OK(cudaSetDevice(device));
  SHARDPROOF_ASSIGN_OR_RETURN(const OwnedStream stream, MakeStream());
  SHARDPROOF_ASSIGN_OR_RETURN(const OwnedEvent start, MakeTimedEvent());
  SHARDPROOF_ASSIGN_OR_RETURN(const OwnedEvent end, MakeTimedEvent());
  SHARDPROOF_ASSIGN_OR_RETURN(const DeviceMemory from,
                              DeviceMemory::Allocate(bytes, "the copy measurement"));
  SHARDPROOF_ASSIGN_OR_RETURN(const DeviceMemory to,
                              DeviceMemory::Allocate(bytes, "the copy measurement"));
  SHARDPROOF_CUDA_OK(cudaMemsetAsync(from.data(), 1, static_cast<size_t>(bytes), stream.get()));
  std::vector<double> gb_per_s;
  for (int32_t sample = -kWarmUps; sample < samples; ++sample) {
    SHARDPROOF_CUDA_OK(cudaEventRecord(start.get(), stream.get()));
    SHARDPROOF_CUDA_OK(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(bytes),
                                       cudaMemcpyDeviceToDevice, stream.get()));
    SHARDPROOF_CUDA_OK(cudaEventRecord(end.get(), stream.get()));
    SHARDPROOF_ASSIGN_OR_RETURN(const double ms, MsBetween(start, end));
    if (sample >= 0) gb_per_s.push_back(GbPerS(2 * bytes, ms));
  }
  return gb_per_s;
}

absl::StatusOr<std::vector<double>> BusBandwidthOf(const TypicalCollective& call,
                                                   DeviceWorld& world, int32_t samples,
                                                   absl::Duration timeout) {
  std::vector<std::unique_ptr<BusRank>> ranks;
  for (Rank rank : world.local_ranks()) {
    ranks.push_back(std::make_unique<BusRank>(call, world, rank, timeout));
  }
  SHARDPROOF_RETURN_IF_ERROR(OnEachRank(world, [&](int i) { return ranks[i]->Measure(samples); }));
  std::vector<double> slowest = ranks.front()->gb_per_s();
  for (const std::unique_ptr<BusRank>& rank : ranks) {
    for (size_t i = 0; i < slowest.size(); ++i) {
      slowest[i] = std::min(slowest[i], rank->gb_per_s()[i]);
    }
  }
  return slowest;
}

}  // namespace shardproof
