// For tests: a world whose ranks are played by several engines, each on a thread of its own, as
// processes would.
#ifndef TRAINER_ENGINES_SPLIT_WORLD_H_
#define TRAINER_ENGINES_SPLIT_WORLD_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/forwarding_communicator.h"
#include "collectives/simulated/simulated_world.h"
#include "collectives/world.h"

namespace shardproof {

// One call at a time.
class Locked : public ForwardingCommunicator {
 public:
  Locked(Communicator* inner, std::mutex* mutex) : ForwardingCommunicator(inner), mutex_(mutex) {}
  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    const std::lock_guard<std::mutex> lock(*mutex_);
    return inner().Start(call);
  }
  absl::StatusOr<bool> Poll(CollectiveHandle handle) override {
    const std::lock_guard<std::mutex> lock(*mutex_);
    return inner().Poll(handle);
  }
  absl::Status Wait(CollectiveHandle handle, absl::Duration timeout) override {
    const std::lock_guard<std::mutex> lock(*mutex_);
    return inner().Wait(handle, timeout);
  }

 private:
  std::mutex* const mutex_;
};

struct Meeting {
  explicit Meeting(int32_t ranks) : world(*SimulatedWorld::Create(WorldSize{ranks})) {}
  std::unique_ptr<SimulatedWorld> world;
  std::mutex mutex;
};

// Some ranks' view of a meeting.
class PartOfWorld : public World {
 public:
  PartOfWorld(Meeting& meeting, std::vector<Rank> ranks, absl::Duration patience)
      : meeting_(meeting), ranks_(std::move(ranks)), patience_(patience) {}
  WorldSize size() const override { return meeting_.world->size(); }
  std::vector<Rank> local_ranks() const override { return ranks_; }
  absl::StatusOr<Communicator*> communicator(Rank rank, Group group) override {
    const std::lock_guard<std::mutex> lock(meeting_.mutex);
    const absl::StatusOr<Communicator*> inner = meeting_.world->communicator(rank, group);
    if (!inner.ok()) return inner.status();
    ends_.push_back(std::make_unique<Locked>(*inner, &meeting_.mutex));
    return ends_.back().get();
  }
  std::string DescribePending() const override { return meeting_.world->DescribePending(); }
  absl::Duration patience() const override { return patience_; }

 private:
  Meeting& meeting_;
  const std::vector<Rank> ranks_;
  const absl::Duration patience_;
  std::vector<std::unique_ptr<Locked>> ends_;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_SPLIT_WORLD_H_
