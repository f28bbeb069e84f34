// Measured bandwidths: copies on a device, and a collective of all ranks.
#ifndef TRAINER_BENCH_CUDA_BANDWIDTH_H_
#define TRAINER_BENCH_CUDA_BANDWIDTH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/device_world.h"
#include "trainer/bench/step_traffic.h"

namespace shardproof {

// Copies `bytes` from one buffer of the device to another, `samples` times: GB/s of each, counting
// what is read and what is written. ResourceExhausted as MakeCudaFloor.
absl::StatusOr<std::vector<double>> CopyBandwidthOf(int device, int64_t bytes, int32_t samples);

// `call` among all its members, which `world`'s ranks are: GB/s of bus bytes
// (collectives/traffic_model.h). A sample is several calls one after the other on a stream of their
// own; each is of the slowest local rank. All processes of the job call this at about the same
// time. `call` has bus bytes. After an error of one rank the world is
// aborted; the first such error is returned.
absl::StatusOr<std::vector<double>> BusBandwidthOf(const TypicalCollective& call,
                                                   DeviceWorld& world, int32_t samples,
                                                   absl::Duration timeout);

}  // namespace shardproof

#endif  // TRAINER_BENCH_CUDA_BANDWIDTH_H_
