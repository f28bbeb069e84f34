#include "trainer/bench/on_each_rank.h"

#include <mutex>
#include <thread>
#include <vector>

namespace shardproof {

absl::Status OnEachRank(DeviceWorld& world, const std::function<absl::Status(int)>& work) {
  std::mutex mutex;
  absl::Status cause;
  const auto run = [&](int i) {
    const absl::Status status = work(i);
    if (status.ok()) return;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!cause.ok()) return;
      cause = status;
    }
    world.Abort(status);
  };
  std::vector<std::thread> threads;
  const int ranks = static_cast<int>(world.local_ranks().size());
  for (int i = 0; i < ranks; ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
  return cause;
}

}  // namespace shardproof
