// DeviceWorlds over NCCL, a GPU a rank.
//
// Each collective of a group of more than one rank, and of any elements, is one NCCL call by
// itself, so that calls equal kernels. One-rank groups and empty calls have none; where the
// collective moves data between two buffers of the rank, that is a copy on the stream. A barrier is
// an all-reduce of one element of its own, and so a kernel too. The order of sums is NCCL's:
// adds_in_rank_order is true of one-rank groups only.
//
// No wait is without a bound. Communicators of NCCL are nonblocking, and kept for the world's life
// by rank and group, so that one engine after another reuses them: calls on a rank's stream wait
// for those before, so a group that two streams of a rank use must be used in one order. Start
// returns when NCCL has enqueued its kernel. That waits for other ranks only in the first
// collectives of a group, which NCCL connects then; at most for the timeout given to Connect.
// Abort ends that wait too, and that of Connect.
//
// The bound has its price: NCCL enqueues each call of a nonblocking communicator on a thread that
// it starts for that call, and Start polls until that has ended. So every call costs the host a
// thread's start and end, tens of microseconds, beside what NCCL needs to enqueue it; a step of
// many small collectives may be bound by that, and a blocking communicator's would not.
//
// What goes wrong is found where somebody asks: Start, Poll and Wait return an error that names the
// rank, the collective and its position, with who has not arrived or who called something else
// (collectives/roll_call.h). In one process a disagreement is found by the second of two ranks to
// start; between processes only once the collective hangs. The others ask rank 0's process who is
// missing; where that has ended the error names it at once, and where it is stopped 10 s later. The
// caller then Aborts the world.
//
// NCCL's environment variables hold, NCCL_NVLS_ENABLE among them: nothing here overrides one.
#ifndef COLLECTIVES_NCCL_NCCL_WORLD_H_
#define COLLECTIVES_NCCL_NCCL_WORLD_H_

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/device_world.h"
#include "collectives/launch/job.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// All ranks are threads of this process, rank r on GPU r. Errors: those of CheckGpuRequirements
// (requirements.h); InvalidArgument for a size below 1.
absl::StatusOr<std::unique_ptr<DeviceWorld>> MakeNcclWorld(WorldSize size);

// One rank a process: this one's is job.rank(), on the GPU with CUDA ordinal `device` (its local
// rank, usually). `job` outlives the world. Not collective; connecting is.
absl::StatusOr<std::unique_ptr<DeviceWorld>> MakeNcclWorld(Job& job, int device);

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_NCCL_WORLD_H_
