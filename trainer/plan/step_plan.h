// StepPlan: the ordered, typed operations of one rank's step, as data.
//
// A planner writes it, an engine executes it, neither knows the other. Operations are in
// issue order; each runs on its stream after the earlier ones of that stream and after its
// waits. A plan has no branches: what a step uses was the planner's input.
#ifndef TRAINER_PLAN_STEP_PLAN_H_
#define TRAINER_PLAN_STEP_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

enum class OpKind : uint8_t {
  kCollective,       // send -> recv over `group`; shapes as in collectives/communicator.h
  kForward,          // stages [stage, stage + stage_count) of a micro-batch
  kBackward,         // the same stages, last first; the last stage of the model computes the loss.
                     // A tensor that a later stage of the micro-batch used already gets its
                     // gradient added to that use's, whatever the operation's uses say
  kReshard,          // frees the unit's full parameters
  kRelease,          // frees buffers, nothing else
  kScale,            // recv *= scale
  kScaleBy,          // recv *= send[0]
  kAccumulate,       // recv += send
  kCopy,             // recv = send
  kLoss,             // of a micro-batch whose forward ran; nothing else comes of it
  kNorm,             // recv[0] = sum of the squares of the updates' gradients, in float64
  kClipCoefficient,  // recv[0] = min(1, scale / (sqrt(send[0]) + 1e-6)), send in float64
  kOptimizerUpdate,  // the plan's updates [first_update, + update_count)
};

// Elements of a buffer; an empty range means "none".
struct BufferRange {
  int32_t buffer = -1;
  ElementRange range;
};

struct PlanAccess {
  int32_t buffer = -1;
  AccessKind kind = AccessKind::kRead;
  ElementRange range;
};

// What one compute operation uses of a set (trainer/sharding/placement.h).
struct SetUse {
  int32_t set = -1;
  int32_t buffer = -1;
  // Gradients only: add to what earlier micro-batches left, instead of overwriting it.
  bool accumulate = false;
};

// The part of a tensor that one update covers. Offsets are elements of the buffers.
struct UpdateRange {
  int32_t tensor = -1;
  int64_t count = 0;
  int32_t hyper_parameters_of = -1;  // the tensor whose group's values it uses
  int32_t counter_of = -1;           // the tensor whose update counter it uses
  int32_t advance = 0;  // added to that counter before: 1 in a tensor's first range, else 0
  BufferRange parameter;
  BufferRange gradient;
  BufferRange exp_avg;     // buffer -1: the optimizer keeps none
  BufferRange exp_avg_sq;  // the same
};

struct BufferSpec {
  BufferRole role = BufferRole::kParameter;
  Dtype dtype = Dtype::kFloat32;
  MemoryTier tier = MemoryTier::kDevice;
  int64_t elements = 0;
  int32_t unit = -1;
  int32_t bucket = -1;
  int32_t set = -1;
};

struct Op {
  OpKind kind = OpKind::kRelease;
  Phase phase = Phase::kOther;
  StreamId stream = StreamId::kCompute;
  CollectiveKind collective = CollectiveKind::kBarrier;
  Purpose purpose = Purpose::kNone;
  Dtype dtype = Dtype::kFloat32;
  Group group;
  int32_t root = -1;
  int64_t elements = 0;  // collective: of the full padded buffer
  BufferRange send;
  BufferRange recv;
  float scale = 1.0f;
  int32_t micro_batch = -1;
  int32_t unit = -1;
  int32_t bucket = -1;
  int32_t tensor = -1;
  int32_t set = -1;
  int32_t stage = -1;
  int32_t stage_count = 0;
  // Slices of StepPlan's pools.
  int32_t first_wait = 0, wait_count = 0;
  int32_t first_access = 0, access_count = 0;
  int32_t first_update = 0, update_count = 0;
  int32_t first_parameter_use = 0, parameter_use_count = 0;
  int32_t first_gradient_use = 0, gradient_use_count = 0;
};

// Where a set's state lies between steps; the set says how much of it a rank keeps. -1: this
// rank keeps none.
struct SetHome {
  int32_t parameter = -1;
  int32_t gradient = -1;  // reduced
  int32_t exp_avg = -1;
  int32_t exp_avg_sq = -1;
};

struct StepPlan {
  Rank rank;
  std::vector<BufferSpec> buffers;   // the same in every step of a rank
  std::vector<int32_t> live_before;  // allocated when the step begins
  std::vector<SetHome> homes;        // by set
  int32_t scalar_buffer = -1;        // step counters
  int32_t norm_buffer = -1;          // clipping: one float64, the sum of squares
  int32_t coefficient_buffer = -1;   // clipping: one float32
  // By boundary of ModelCompute; -1: the model has none there, or nothing needs it.
  std::vector<int32_t> activations;
  std::vector<int32_t> activation_gradients;
  std::vector<Op> ops;
  std::vector<int32_t> waits;
  std::vector<PlanAccess> accesses;
  std::vector<UpdateRange> updates;
  std::vector<SetUse> parameter_uses;
  std::vector<SetUse> gradient_uses;

  absl::Span<const int32_t> WaitsOf(const Op& op) const {
    return absl::MakeConstSpan(waits).subspan(op.first_wait, op.wait_count);
  }
  absl::Span<const PlanAccess> AccessesOf(const Op& op) const {
    return absl::MakeConstSpan(accesses).subspan(op.first_access, op.access_count);
  }
  absl::Span<const UpdateRange> UpdatesOf(const Op& op) const {
    return absl::MakeConstSpan(updates).subspan(op.first_update, op.update_count);
  }
  absl::Span<const SetUse> ParameterUsesOf(const Op& op) const {
    return absl::MakeConstSpan(parameter_uses)
        .subspan(op.first_parameter_use, op.parameter_use_count);
  }
  absl::Span<const SetUse> GradientUsesOf(const Op& op) const {
    return absl::MakeConstSpan(gradient_uses).subspan(op.first_gradient_use, op.gradient_use_count);
  }
};

}  // namespace shardproof

#endif  // TRAINER_PLAN_STEP_PLAN_H_
