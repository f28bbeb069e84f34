// Arena: where each buffer of a rank lies in one piece of device memory, from its plans alone.
//
// What is kept between steps lies in [0, steady), in the same place in every step. Each other
// allocation of a buffer has a place of its own, there or in [steady, total): a buffer that a step
// allocates twice may lie elsewhere the second time, and kept memory that a step frees and
// allocates again (gradients) serves others in between. Two allocations may share bytes only where
// every operation that touches the one happens before every operation that touches the other: by
// the order of their streams and by waits, not by issue order, since streams run ahead of each
// other.
#ifndef TRAINER_ENGINES_CUDA_ARENA_H_
#define TRAINER_ENGINES_CUDA_ARENA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/plan/step_plan.h"

namespace shardproof {

// What all plans of a rank keep between steps.
struct KeptRegion {
  std::vector<int64_t> offset;  // by buffer, in bytes; -1: not kept
  int64_t bytes = 0;            // alignment included
};

// One allocation of a buffer, from an operation that allocates it, or the step's beginning, to the
// next one, or the step's end.
struct Lifetime {
  int32_t buffer = -1;
  int64_t offset = 0;       // in bytes, from the beginning of the arena; a kept buffer's own
  int64_t bytes = 0;        // without alignment
  bool from_start = false;  // in use when the step begins: a kept buffer's first
  bool to_end = false;      // in use after the step: a kept buffer's last
};

// Of one plan.
struct Arena {
  std::vector<Lifetime> lifetimes;  // a buffer's own in issue order
  // By access of the plan, the lifetime that it begins; -1: none.
  std::vector<int32_t> lifetime_of_access;
  int64_t steady = 0;     // bytes of the kept region
  int64_t total = 0;      // bytes of both
  int64_t plan_peak = 0;  // the most bytes that the plan has alive at once, in issue order
  // What the arena has beyond the plan's peak, as a part of it. 0 where the peak is 0. At most 2 %
  // is the aim; arenas under 1 MiB are not searched for a tighter order and may waste more.
  double waste() const;
};

// Kept is what is live when any of the plans begins or ends, and every home. The plans are of one
// rank and have the same buffers (SameBuffers).
KeptRegion LayOutKept(absl::Span<const StepPlan* const> plans);

// InvalidArgument if the plan keeps a buffer between steps that is not in `kept`. A buffer that a
// plan touches without allocating it, as only edited plans do, has one lifetime, from that touch.
absl::StatusOr<Arena> LayOutArena(const KeptRegion& kept, const StepPlan& plan);

// Whether both plans have the same buffers, in dtype and elements.
bool SameBuffers(const StepPlan& a, const StepPlan& b);

// What a rank needs of its device, for messages.
struct DeviceNeed {
  Rank rank;
  int device = 0;
  std::string mode;
  int64_t arena_steady = 0;  // bytes, as in Arena
  int64_t arena_total = 0;
  int64_t workspace = 0;  // bytes beside the arena
};

// For device memory that could not be had: `asked` bytes where the device has `free`.
absl::Status OutOfDeviceMemory(const DeviceNeed& need, int64_t asked, int64_t free);

// ResourceExhausted that already names the bytes asked and free, with the rank and the need; any
// other status as it is.
absl::Status WithNeed(const DeviceNeed& need, const absl::Status& status);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_ARENA_H_
