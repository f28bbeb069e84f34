// A DeviceWorld whose ranks all share one GPU: for tests, and for worlds of more ranks than there
// are GPUs. It is not made for speed.
//
// Sums add in rank order, each partial sum rounded, so that a run has the bits of any other backend
// that does. All ranks are in this process, each with a thread of its own.
//
// Start is a meeting of the members' threads: it returns when all have started the collective, or
// with DeadlineExceeded after the timeout that was given to Connect. So members must start their
// collectives in one order over all their groups. The last to arrive finds a disagreement and
// enqueues the work. An error of a group stays: every later call of its members returns it.
//
// Handles are positions of the group's order. Calls of one group share that order, whichever
// Connect its communicators are from.
#ifndef COLLECTIVES_SIMULATED_SHARED_GPU_WORLD_H_
#define COLLECTIVES_SIMULATED_SHARED_GPU_WORLD_H_

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/device_world.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// `device` is a CUDA ordinal. InvalidArgument for a size below 1 or above 512, or a device that
// there is not; it names how many there are. Unavailable where CUDA finds none at all.
absl::StatusOr<std::unique_ptr<DeviceWorld>> MakeSharedGpuWorld(WorldSize size, int device);

}  // namespace shardproof

#endif  // COLLECTIVES_SIMULATED_SHARED_GPU_WORLD_H_
