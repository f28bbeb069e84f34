// The cuda engine: executes the plans of this process's ranks on GPUs.
//
// Each rank has a thread, a device (DeviceWorld says which; ranks may share one) and a stream for
// each StreamId. Operations are enqueued in issue order on their streams, waits become events, and
// the host waits for nothing inside a step but, at its end, for the step; and, where it is some
// hundred launches ahead of the GPU, for it to catch up, as CUDA would make it do a little later.
// Two ranks of one process or of two behave alike.
//
// Arithmetic. float32. Matrix products go to cuBLAS (TF32 only if asked) or to kernels of our own,
// by shape alone; a layer's bits do not depend on addresses. The updates are ApplyUpdate's
// (trainer/optimizer/optimizer.h), bit for bit. The order of sums over ranks is the
// communicator's: StepObservation::any_order says so unless it adds in rank order or the model is
// a probe, whose sums are exact.
//
// Memory. All buffers of a rank lie in one arena (arena.h), laid out from the plan: what is kept
// between steps first, then what lives within a step, which also uses what the step has freed of
// the first part. Poison as the cpu engine writes it
// (CudaOptions::poison), but memory is shared: freed memory is poisoned until its next owner
// allocates it.
//
// Parameter versions of accesses are unknown (-1): version_replay.h fills them in.
#ifndef TRAINER_ENGINES_CUDA_CUDA_ENGINE_H_
#define TRAINER_ENGINES_CUDA_CUDA_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/device_world.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/engine.h"
#include "trainer/engines/engine_parts.h"

namespace shardproof {

struct CudaOptions {
  bool tf32 = false;   // matrix products may round their inputs to TF32
  bool poison = true;  // fill what is allocated and freed with NaNs; costs bandwidth
  absl::Duration timeout = absl::Seconds(120);  // of connecting, and of a step
};

// Of one rank, in bytes.
struct DeviceMemoryFigures {
  Rank rank;
  int64_t arena_steady = 0;  // of the arena: what is kept between steps
  int64_t arena_total = 0;   // of the arena
  int64_t plan_peak = 0;     // the most that the plan has alive at once
  int64_t workspace = 0;     // beside the arena: cuBLAS, tensors that a layout has scattered
  // What the driver said the device had less after each of two allocations than before: the
  // kept part of the arena, which is given back, and then all of it. -1 for ranks that share a
  // device, and where the figure cannot be that of the allocation: another program changed the
  // device's memory meanwhile, or a small arena fitted into memory that CUDA had already.
  int64_t driver_steady = -1;
  int64_t driver_peak = -1;
};

class CudaEngine : public Engine {
 public:
  // Shows the local ranks only, with values.
  absl::StatusOr<const StepObservation*> Step() override = 0;

  // A training step that nobody looks at. By local rank: milliseconds from the first operation to
  // the end of the last, by events on the device.
  virtual absl::StatusOr<std::vector<double>> TimedStep() = 0;

  // By local rank.
  virtual std::vector<DeviceMemoryFigures> memory() const = 0;
};

// Executes `parts`, which PlannedParts made for `run`, or an edit of them, on the world's local
// ranks. `run` and `world` outlive the engine; run.sharding.world_size is the world's.
// Decorators of communicators see device memory, and Start only enqueues: one that computes on the
// host with what a call points to has no place here. A group that a rank uses on two streams has
// two communicators, each decorated.
//
// Errors: as MakeCpuEngine for what cannot be planned or computed. ResourceExhausted that names
// the rank, the bytes asked for, those free on the device, and what the mode needs. Unavailable
// where this build has no CUDA.
//
// A step that does not end within the timeout is DeadlineExceeded that names the rank, the first
// operation that has not ended, and which ranks have not arrived at the collective that it waits
// for; the world is then aborted. A rank's thread that has not returned a few seconds after the
// timeout, since CUDA holds it inside of a call, is named in such an error with the operation that
// it is at. Step and the destructor return in any case, some seconds after the timeout; if a thread
// does not return even when the world is aborted, it is left behind with all that it uses: `run`
// and `world` must then never be destroyed, and the process should end.
absl::StatusOr<std::unique_ptr<CudaEngine>> MakeCudaEngine(const RunDescription& run,
                                                           EngineParts parts, DeviceWorld& world,
                                                           const CudaOptions& options);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_CUDA_ENGINE_H_
