// StageArithmetic: what StageRunner needs of the place where values lie: the stages of
// ModelCompute, copies and sums of runs of elements, and memory of its own.
//
// Addresses are opaque to the runner: on a GPU they are device memory, and everything is
// enqueued. A function that can fail keeps its error, which whoever made the object asks for.
#ifndef TRAINER_ENGINES_STAGE_ARITHMETIC_H_
#define TRAINER_ENGINES_STAGE_ARITHMETIC_H_

#include <cstdint>

#include "absl/types/span.h"
#include "trainer/model/model_compute.h"

namespace shardproof {

// Memory beside a plan's buffers, in which StageRunner puts tensors together.
struct StageWorkspace {
  enum class Use : uint8_t {
    kParameter,  // of the tensor at a position in its stage
    kGradient,   // the same
    kSum,        // of a tensor: one micro-batch's gradient, until all its uses are in it
  };
  Use use = Use::kParameter;
  int32_t index = 0;  // position, or tensor for kSum
  Rank rank;          // kSum: each rank has its own
};

class StageArithmetic {
 public:
  virtual ~StageArithmetic() = default;

  // Whether the stages can use a tensor that lies here; if not, it is copied to workspace.
  virtual bool InPlace(const float* tensor) const = 0;
  // `elements` floats. Those of a kSum keep their values for the rank's step, the others until
  // the next operation.
  virtual float* Workspace(const StageWorkspace& place, int64_t elements) = 0;
  virtual void Copy(const float* from, int64_t count, float* to) = 0;
  // to += from. They do not overlap.
  virtual void Add(const float* from, int64_t count, float* to) = 0;

  // As ModelCompute's functions.
  virtual void LoadInput(const MicroBatch& micro_batch, float* input) = 0;
  virtual void Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
                       float* out) = 0;
  // output_gradient may be null. Returns the loss; 0 where it adds up on the device.
  virtual double Loss(const MicroBatch& micro_batch, const float* output,
                      float* output_gradient) = 0;
  virtual void Backward(const MicroBatch& micro_batch, int32_t stage,
                        absl::Span<const float* const> parameters, const float* in,
                        const float* out, float* out_gradient, float* in_gradient,
                        absl::Span<float* const> gradients) = 0;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_STAGE_ARITHMETIC_H_
