// Work of the ranks of this process that meet each other on the way, each on a thread of its own.
#ifndef TRAINER_BENCH_ON_EACH_RANK_H_
#define TRAINER_BENCH_ON_EACH_RANK_H_

#include <functional>

#include "absl/status/status.h"
#include "collectives/device_world.h"

namespace shardproof {

// Calls work(i) for each i-th local rank, and returns when all have returned. The first to fail
// aborts the world, so that none waits for it, and its error is returned: those that the others
// have then only follow from it.
absl::Status OnEachRank(DeviceWorld& world, const std::function<absl::Status(int)>& work);

}  // namespace shardproof

#endif  // TRAINER_BENCH_ON_EACH_RANK_H_
