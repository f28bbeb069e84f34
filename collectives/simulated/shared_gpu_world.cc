#include "collectives/simulated/shared_gpu_world.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/device_calls.h"
#include "collectives/device_status.h"
#include "collectives/simulated/shared_gpu_group.h"
#include "collectives/simulated/shared_gpu_kernels.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

class SharedGpuCommunicator final : public Communicator {
 public:
  SharedGpuCommunicator(SharedGpuGroup* group, int32_t member, DeviceStream stream,
                        absl::Duration timeout)
      : group_(group), member_(member), stream_(stream), timeout_(timeout) {}

  Rank rank() const override { return group_->group().member(member_); }
  Group group() const override { return group_->group(); }
  bool adds_in_rank_order() const override { return true; }

  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    SHARDPROOF_ASSIGN_OR_RETURN(const int64_t position,
                                group_->Start(member_, call, stream_, timeout_));
    return CollectiveHandle{position};
  }

  absl::StatusOr<bool> Poll(CollectiveHandle handle) override { return group_->Poll(handle.id); }

  absl::Status Wait(CollectiveHandle handle, absl::Duration timeout) override {
    SHARDPROOF_ASSIGN_OR_RETURN(const bool done,
                                PollUntil(timeout, [&] { return group_->Poll(handle.id); }));
    if (done) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(
        "rank ", rank().value, " waited ", absl::FormatDuration(timeout), " for ",
        group_->Describe(handle.id), ": all ranks have arrived, the GPU has not finished"));
  }

 private:
  SharedGpuGroup* const group_;
  const int32_t member_;
  const DeviceStream stream_;
  const absl::Duration timeout_;
};

class SharedGpuWorld final : public DeviceWorld {
 public:
  SharedGpuWorld(WorldSize size, int device, cudaStream_t stream)
      : size_(size), device_(device), stream_(stream) {}

  ~SharedGpuWorld() override {
    groups_.clear();
    cudaStreamDestroy(stream_);
  }

  WorldSize size() const override { return size_; }
  int device(Rank) const override { return device_; }

  std::vector<Rank> local_ranks() const override {
    std::vector<Rank> ranks;
    for (int32_t rank = 0; rank < size_.value; ++rank) ranks.push_back(Rank{rank});
    return ranks;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Connect(Rank rank, Group group, DeviceStream stream,
                                                        absl::Duration timeout) override {
    SHARDPROOF_RETURN_IF_ERROR(ValidateMembership(size_, rank, group));
    SHARDPROOF_ASSIGN_OR_RETURN(SharedGpuGroup* const meeting_point, FindOrAdd(group));
    const int32_t member = (rank.value - group.first) / group.stride;
    SHARDPROOF_RETURN_IF_ERROR(meeting_point->Connect(member, timeout));
    return std::make_unique<SharedGpuCommunicator>(meeting_point, member, stream, timeout);
  }

  // Nothing is under way on the GPU that does not end by itself: only threads wait for others.
  void Abort(absl::Status why) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.ok()) return;
    aborted_ = std::move(why);
    for (const auto& group : groups_) group->Fail(aborted_);
  }

 private:
  absl::StatusOr<SharedGpuGroup*> FindOrAdd(Group group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.ok()) return aborted_;
    for (const auto& known : groups_) {
      if (known->group() == group) return known.get();
    }
    groups_.push_back(std::make_unique<SharedGpuGroup>(group, device_, stream_));
    return groups_.back().get();
  }

  const WorldSize size_;
  const int device_;
  const cudaStream_t stream_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<SharedGpuGroup>> groups_;  // in order of first use
  absl::Status aborted_;
};

absl::Status CheckDevice(int device) {
  int found = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  if (error != cudaSuccess || found == 0) {
    return absl::UnavailableError(absl::StrCat(
        "no NVIDIA driver or no GPU was found, a world on one GPU needs one; CUDA says: ",
        cudaGetErrorString(error)));
  }
  if (device >= 0 && device < found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("GPU ", device, ": this machine has ", found,
                                                 ", so 0 to ", found - 1, " are accepted"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWorld>> MakeSharedGpuWorld(WorldSize size, int device) {
  if (size.value < 1 || size.value > kSharedGpuMaxMembers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a world of ", size.value, " ranks on one GPU: 1 to ", kSharedGpuMaxMembers, " can be"));
  }
  SHARDPROOF_RETURN_IF_ERROR(CheckDevice(device));
  SHARDPROOF_DEVICE_OK(cudaSetDevice(device));
  cudaStream_t stream = nullptr;
  SHARDPROOF_DEVICE_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return std::make_unique<SharedGpuWorld>(size, device, stream);
}

}  // namespace shardproof
