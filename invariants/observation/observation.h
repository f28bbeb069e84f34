// What a trainer shows of one step. Checks read this and nothing else of the trainer.
//
// A trainer of any kind fills one StepObservation a step: the operations of each rank in
// the order in which it issued them, and an inventory of the model state at the optimizer
// boundary (every rank has finished the step, the next has not begun). Old steps are
// dropped: nothing here is valid after the call that received it.
//
// Ranks that behave alike may be shown once, as a Group of members; the events and states
// of the members then stand for each of them.
//
// Tensors are indices into RunDescription::model.tensors; elements are row-major.
#ifndef INVARIANTS_OBSERVATION_OBSERVATION_H_
#define INVARIANTS_OBSERVATION_OBSERVATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "invariants/observation/origin.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

enum class EventKind : uint8_t {
  kCollective,  // issued; `completed` says whether it ended within the step
  kReshard,     // the unit's full parameters are released; it is sharded again
  kCompute,     // forward or backward (see phase) of some stages
  kOptimizer,   // an update of parameters
  kLocal,       // scale, accumulate, copy, cast: arithmetic on one rank's buffers
  kRelease,     // frees buffers, nothing else
};

// Why a collective ran. Only the first four belong to the sharding mode; the others are
// listed under their purpose and never counted as the mode's.
enum class Purpose : uint8_t {
  kUnshardParameters,    // all-gather before computation
  kReduceGradients,      // all-reduce or reduce-scatter
  kBroadcastParameters,  // after the update, owner to all
  kGatherParameters,     // all-gather after the update
  kClipNorm,
  kUsedMap,
  kOverflowFlag,
  kModelBuffers,
  kNone,
};

enum class AccessKind : uint8_t { kAllocate, kRead, kWrite, kFree };

// One use of a buffer by an event. `version` of a read or write of parameters is the
// number of optimizer steps that the values carry (0 before the first; a step that does not use a
// tensor counts too); -1 unknown.
// Reads of parameters by a compute event show what the computation really used.
struct Access {
  int32_t buffer = -1;  // index into RankEvents::buffers
  AccessKind kind = AccessKind::kRead;
  ElementRange range;
  int32_t version = -1;
};

struct BufferInfo {
  BufferRole role = BufferRole::kParameter;
  Dtype dtype = Dtype::kFloat32;
  MemoryTier tier = MemoryTier::kDevice;
  int64_t elements = 0;  // padding included
  int32_t unit = -1;     // -1: does not belong to one unit
  int32_t bucket = -1;   // -1: does not belong to one bucket
};

// One operation of one rank. An event's index in RankEvents::events is its place in the
// issue order. It runs after every earlier event of its stream and after its waits.
struct Event {
  EventKind kind = EventKind::kLocal;
  Phase phase = Phase::kOther;
  StreamId stream = StreamId::kCompute;
  CollectiveKind collective = CollectiveKind::kBarrier;  // kCollective only, as the next six
  Purpose purpose = Purpose::kNone;
  Dtype dtype = Dtype::kFloat32;
  bool completed = true;
  Group group;
  int32_t root = -1;         // rank, broadcast only
  int64_t elements = 0;      // of the full padded buffer: output of an all-gather, else input
  int32_t micro_batch = -1;  // -1: not of one micro-batch
  int32_t unit = -1;
  int32_t bucket = -1;
  int32_t tensor = -1;  // zero1_broadcast: the tensor sent
  int32_t stage = -1;   // first stage computed
  int32_t stage_count = 0;
  uint32_t first_wait = 0;  // into RankEvents::waits
  uint32_t wait_count = 0;
  uint32_t first_access = 0;  // into RankEvents::accesses, in order allocate, read, write, free
  uint32_t access_count = 0;
};

// The step of one rank, or of a group of ranks that did the same.
struct RankEvents {
  Group ranks;                       // the first member is the one that was watched
  std::vector<BufferInfo> buffers;   // ids are stable over the steps of a run
  std::vector<int32_t> live_before;  // buffers already allocated when the step began
  std::vector<Event> events;         // in issue order
  std::vector<int32_t> waits;        // indices of earlier events that must have ended
  std::vector<Access> accesses;
};

enum class StateClass : uint8_t { kParameter, kReducedGradient, kExpAvg, kExpAvgSq };

// A run of elements that a rank holds at the boundary; tensor -1 is padding.
//
// Where values are shown, padding and memory that was never written or was freed hold quiet
// NaNs that say so: the bits 0x7fc00000 | kind << 16 | (buffer & 0xffff), kind 1 for padding,
// 2 for memory never written since its allocation, 3 for freed memory. A trainer fills padding
// when the run begins, other memory when it is allocated and freed. That padding is inert is
// proved by those bits alone: what computes with them becomes a NaN, and what writes to them
// leaves a number.
struct StateSegment {
  StateClass state = StateClass::kParameter;
  int32_t tensor = -1;
  ElementRange range;  // within the tensor; padding: within the buffer
  int32_t buffer = -1;
  int64_t buffer_offset = 0;      // where the run lies in the buffer, in elements
  const float* values = nullptr;  // `range.count` of them; null: values were not observed
};

// Logical bytes, padding apart. SGD's momentum counts as optimizer (exp_avg).
struct StateBytes {
  int64_t parameter = 0;
  int64_t gradient = 0;
  int64_t optimizer = 0;
  int64_t padding = 0;  // of all three
  int64_t scalar = 0;   // step counters, 4 bytes for each tensor with state on the rank
  int64_t steady() const { return parameter + gradient + optimizer + padding + scalar; }
  bool operator==(const StateBytes&) const = default;
};

struct TensorStep {
  int32_t tensor = -1;
  int64_t updates = 0;  // updates so far, this step's included
};

// What one rank, or each of a group of like ranks, holds at the optimizer boundary.
struct RankState {
  Group ranks;
  StateBytes bytes;
  // Empty: not observed. An accounting engine shows kExpAvg only (who owns what); a
  // computing one shows every class, with values.
  std::vector<StateSegment> segments;
  std::vector<TensorStep> steps;  // empty: not observed
};

// What one rank clipped with. The norm is that of the mean gradient, over all ranks' elements.
struct ClipObservation {
  double norm = 0;
  float coefficient = 1;  // by which the rank multiplied its gradients; 1: none
};

// What someone other than the trainer saw of one rank's GPU in a step: CUPTI's records of the
// kernels that ran, and the driver's figures of memory.
struct DeviceWitness {
  int32_t rank = -1;
  // Kernels that carry out collectives, one count a CollectiveKind; empty: nobody watched. A
  // library that issues each collective alone runs one kernel for each (NCCL does), and none for
  // a collective of one rank or of no elements.
  std::vector<int64_t> collective_kernels = {};
  // Bytes that the driver has given to the trainer's buffers: what it keeps between steps, and at
  // its peak; -1: not known. They hold what the trainer's own figures say, and what allocation
  // adds to that.
  int64_t steady_bytes = -1;
  int64_t peak_bytes = -1;
};

struct StepObservation {
  int64_t step = 0;                // 0-based
  std::vector<RankEvents> events;  // empty: not observed
  std::vector<RankState> states;   // by first rank; together they cover every rank
  // By rank, the mean over its micro-batches, with the bits of the reference's; empty: not
  // observed, and not judged.
  std::vector<double> losses;
  // The trainer declares that sums over ranks are taken in no particular order (NCCL): values are
  // then compared within bounds, not bit for bit.
  bool any_order = false;
  // By rank; empty: no clipping, or not observed. Gradients at the boundary are the clipped ones.
  std::vector<ClipObservation> clips;
  std::vector<DeviceWitness> devices;  // by rank; empty: no GPUs, or nobody watched
  // Where values came from; without records, not observed. Files have none.
  StepOrigins origins;
};

// The same step of unsharded training: index = tensor; spans of Elements(tensor) floats.
// Frozen tensors have null gradient and moments; SGD has null exp_avg_sq (and momentum in
// exp_avg).
struct ReferenceTensor {
  const float* parameter = nullptr;           // after the update
  const float* previous_parameter = nullptr;  // before it
  const float* gradient = nullptr;            // mean over ranks and micro-batches, clipped
  const float* exp_avg = nullptr;
  const float* exp_avg_sq = nullptr;
  // Mean of the absolute contributions to `gradient`, clipped like it; null unless asked for. It
  // bounds the rounding of sums whose order is not known.
  const float* gradient_magnitude = nullptr;
  int64_t updates = 0;
};

struct ReferenceStep {
  int64_t step = 0;
  std::vector<ReferenceTensor> tensors;
  std::vector<double> losses;  // by rank; empty: not judged
  // With clipping: its own norm, and the coefficient that follows from it. The gradients above
  // were clipped with `used_coefficient`: the trainer's, where that is within 1e-6 of its own,
  // so that what follows is comparable bit for bit; else its own.
  double gradient_norm = 0;
  float clip_coefficient = 1;
  float used_coefficient = 1;
};

absl::string_view Name(EventKind value);
absl::string_view Name(Purpose value);
absl::string_view Name(AccessKind value);
absl::string_view Name(StateClass value);
absl::StatusOr<EventKind> ParseEventKind(absl::string_view text);
absl::StatusOr<Purpose> ParsePurpose(absl::string_view text);
absl::StatusOr<AccessKind> ParseAccessKind(absl::string_view text);
absl::StatusOr<StateClass> ParseStateClass(absl::string_view text);

}  // namespace shardproof

#endif  // INVARIANTS_OBSERVATION_OBSERVATION_H_
