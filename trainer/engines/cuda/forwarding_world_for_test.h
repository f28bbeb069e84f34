// Worlds that do something of their own to the streams of an inner one.
#ifndef TRAINER_ENGINES_CUDA_FORWARDING_WORLD_FOR_TEST_H_
#define TRAINER_ENGINES_CUDA_FORWARDING_WORLD_FOR_TEST_H_

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_world.h"
#include "collectives/forwarding_communicator.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"
#include "trainer/engines/cuda/cuda_status.h"

namespace shardproof {

class ForwardingWorld : public DeviceWorld {
 public:
  explicit ForwardingWorld(std::unique_ptr<DeviceWorld> inner) : inner_(std::move(inner)) {}

  WorldSize size() const override { return inner_->size(); }
  std::vector<Rank> local_ranks() const override { return inner_->local_ranks(); }
  int device(Rank rank) const override { return inner_->device(rank); }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(Rank rank, Group group, DeviceStream stream,
                                                        absl::Duration timeout) override {
    return inner_->Connect(rank, group, stream, timeout);
  }
  void Abort(absl::Status why) override { inner_->Abort(std::move(why)); }

 private:
  const std::unique_ptr<DeviceWorld> inner_;
};

// Calls before() and after() around every Start, and owns the communicator that it forwards to.
class AroundStart : public ForwardingCommunicator {
 public:
  explicit AroundStart(std::unique_ptr<Communicator> inner)
      : ForwardingCommunicator(inner.get()), owned_(std::move(inner)) {}

  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    SHARDPROOF_RETURN_IF_ERROR(Before());
    SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, inner().Start(call));
    SHARDPROOF_RETURN_IF_ERROR(After());
    return handle;
  }

 protected:
  virtual absl::Status Before() { return absl::OkStatus(); }
  virtual absl::Status After() { return absl::OkStatus(); }

 private:
  const std::unique_ptr<Communicator> owned_;
};

// Holds streams up for a millisecond or two, at random: before and after each collective, on the
// stream that it is on and on all others that the rank connects on. What runs too early for want
// of a wait then does.
class DelayingWorld : public ForwardingWorld {
 public:
  DelayingWorld(std::unique_ptr<DeviceWorld> inner, uint32_t seed)
      : ForwardingWorld(std::move(inner)), seed_(seed) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Connect(Rank rank, Group group, DeviceStream stream,
                                                        absl::Duration timeout) override {
    SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> inner,
                                ForwardingWorld::Connect(rank, group, stream, timeout));
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Delays>& delays = delays_[rank.value];
    if (delays == nullptr) {
      delays = std::make_unique<Delays>();
      delays->random.seed(seed_ + static_cast<uint32_t>(rank.value));
    }
    delays->streams.insert(stream);
    return std::make_unique<Delayed>(std::move(inner), *delays);
  }

 private:
  // Of one rank, used by its thread.
  struct Delays {
    std::set<cudaStream_t> streams;
    std::mt19937 random;

    absl::Status DelaySome() {
      for (const cudaStream_t stream : streams) {
        const uint32_t milliseconds = random() % 3;
        if (milliseconds == 0) continue;
        void* const argument = reinterpret_cast<void*>(uintptr_t{milliseconds});
        SHARDPROOF_CUDA_OK(cudaLaunchHostFunc(stream, Sleep, argument));
      }
      return absl::OkStatus();
    }
    static void CUDART_CB Sleep(void* milliseconds) {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(reinterpret_cast<uintptr_t>(milliseconds)));
    }
  };

  class Delayed : public AroundStart {
   public:
    Delayed(std::unique_ptr<Communicator> inner, Delays& delays)
        : AroundStart(std::move(inner)), delays_(delays) {}

   private:
    absl::Status Before() override { return delays_.DelaySome(); }
    absl::Status After() override { return delays_.DelaySome(); }
    Delays& delays_;
  };

  const uint32_t seed_;
  std::mutex mutex_;
  std::map<int32_t, std::unique_ptr<Delays>> delays_;  // by rank
};

// One rank's streams stop at its first collective until the world is aborted: what a peer that
// never comes does to the GPUs that wait for it.
class StuckWorld : public ForwardingWorld {
 public:
  StuckWorld(std::unique_ptr<DeviceWorld> inner, Rank stuck)
      : ForwardingWorld(std::move(inner)), stuck_(stuck) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Connect(Rank rank, Group group, DeviceStream stream,
                                                        absl::Duration timeout) override {
    SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> inner,
                                ForwardingWorld::Connect(rank, group, stream, timeout));
    if (rank != stuck_) return inner;
    return std::make_unique<Stuck>(std::move(inner), *this, stream);
  }

  // As NCCL's: streams come free first, whatever a thread may hold.
  void Abort(absl::Status why) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      aborted_ = true;
    }
    changed_.notify_all();
    ForwardingWorld::Abort(std::move(why));
  }

 private:
  class Stuck : public AroundStart {
   public:
    Stuck(std::unique_ptr<Communicator> inner, StuckWorld& world, cudaStream_t stream)
        : AroundStart(std::move(inner)), world_(world), stream_(stream) {}

   private:
    absl::Status Before() override {
      SHARDPROOF_CUDA_OK(cudaLaunchHostFunc(stream_, AwaitAbort, &world_));
      return absl::OkStatus();
    }
    StuckWorld& world_;
    const cudaStream_t stream_;
  };

  static void CUDART_CB AwaitAbort(void* world) {
    StuckWorld& self = *static_cast<StuckWorld*>(world);
    std::unique_lock<std::mutex> lock(self.mutex_);
    self.changed_.wait(lock, [&] { return self.aborted_; });
  }

  const Rank stuck_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_FORWARDING_WORLD_FOR_TEST_H_
