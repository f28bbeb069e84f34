// RankArena: the device memory of one rank's buffers, where its plans' arenas put them.
#ifndef TRAINER_ENGINES_CUDA_RANK_ARENA_H_
#define TRAINER_ENGINES_CUDA_RANK_ARENA_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "trainer/engines/cuda/arena.h"
#include "trainer/engines/cuda/device_memory.h"
#include "trainer/engines/rank_memory.h"
#include "trainer/plan/step_plan.h"

namespace shardproof {

// What the driver's free memory says of an allocation of `asked` bytes: `taken`, by which it fell,
// where that is the allocation, rounded up; -1 where it is not, since another program changed the
// device's memory in between, or the allocation was small enough for memory that CUDA had already.
int64_t DriverFigure(int64_t taken, int64_t asked);

class RankArena {
 public:
  // `need` with the figures of the largest of the arenas.
  static DeviceNeed NeedOf(DeviceNeed need, absl::Span<const Arena> arenas);
  // OutOfDeviceMemory where the current device has not enough for all of that now.
  static absl::Status CheckRoom(const DeviceNeed& need);

  // On the current device. Takes the memory that the largest of the arenas, one of each plan,
  // needs. `measured`: nobody else uses the device, so the driver's figures mean something; the
  // kept part is then allocated alone first, for its figure. ResourceExhausted as
  // OutOfDeviceMemory; `need` is NeedOf's.
  absl::Status Allocate(DeviceNeed need, KeptRegion kept, absl::Span<const Arena> arenas,
                        bool measured);
  // Of a plan with these buffers that runs next. It may need more memory than the plans before;
  // then what is kept moves. Between steps, with nothing under way on the device.
  absl::Status Use(const StepPlan& plan, Arena arena);

  // For the operation at hand: where buffers are, those that it allocates included once
  // Allocate was called for the access.
  absl::Span<float* const> buffers() const { return begin_; }
  float* data(const BufferRange& range) const {
    return range.buffer < 0 ? nullptr : begin_[range.buffer] + range.range.first;
  }
  // Places the buffer that access `access` of the plan allocates, and enqueues its poison.
  absl::Status Begin(int32_t access, int32_t buffer, bool poison, cudaStream_t stream);
  // Enqueues the poison of a whole buffer, at its present place.
  absl::Status Poison(shardproof::Poison kind, int32_t buffer, cudaStream_t stream);
  // A whole buffer's floats; a float64 is two.
  int64_t floats(int32_t buffer) const { return floats_[buffer]; }

  const Arena& arena() const { return arena_; }
  // What it and the workspace beside it need, of the plan that needs most so far.
  const DeviceNeed& need() const { return need_; }
  // Of all plans so far.
  int64_t total() const { return memory_.bytes(); }
  int64_t plan_peak() const { return plan_peak_; }
  int64_t driver_steady() const { return driver_steady_; }
  int64_t driver_peak() const { return driver_peak_; }

 private:
  absl::Status Measure(int64_t bytes, int64_t& taken);
  absl::StatusOr<DeviceMemory> Take(int64_t bytes) const;
  void PlaceBuffers();
  float* At(int64_t offset) const {
    return reinterpret_cast<float*>(static_cast<char*>(memory_.data()) + offset);
  }

  DeviceNeed need_;
  KeptRegion kept_;
  Arena arena_;  // of the plan in use
  DeviceMemory memory_;
  std::vector<float*> begin_;    // by buffer
  std::vector<int64_t> floats_;  // by buffer
  int64_t plan_peak_ = 0;
  int64_t driver_steady_ = -1;
  int64_t driver_peak_ = -1;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_RANK_ARENA_H_
