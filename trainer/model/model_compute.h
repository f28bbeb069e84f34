// ModelCompute: the arithmetic of a model's stages on one rank's micro-batch.
//
// The sharded trainer and the replicated oracle both call this, with the same batches, so
// that a difference between them is a difference in sharding. It holds no parameters and no
// state: the same arguments give the same bits, whatever the buffers' addresses are.
//
// Shapes: boundary b lies before stage b; boundary S is the model's output. A boundary holds
// micro_batch_size x width(b) floats, row-major. A probe model has width 0 everywhere.
#ifndef TRAINER_MODEL_MODEL_COMPUTE_H_
#define TRAINER_MODEL_MODEL_COMPUTE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Which samples: global sample index = ((step * K + micro_batch) * N + rank) * batch + row.
struct MicroBatch {
  int64_t step = 0;
  Rank rank;
  int32_t micro_batch = 0;
};

class ModelCompute {
 public:
  virtual ~ModelCompute() = default;

  // Floats of one sample at boundary b, 0 <= b <= number of stages.
  virtual int64_t Width(int32_t boundary) const = 0;

  // Fills boundary 0: batch x Width(0).
  virtual void LoadInput(const MicroBatch& micro_batch, float* input) const = 0;

  // parameters[i] = values of tensor stage.tensors[i], Elements of them. in = boundary
  // `stage`, out = boundary `stage` + 1, written whole.
  virtual void Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
                       float* out) const = 0;

  // The micro-batch's loss (mean over its samples and outputs) and, in output_gradient, its
  // derivative: batch x Width(S). Without outputs the loss is 0.
  virtual double Loss(const MicroBatch& micro_batch, const float* output,
                      float* output_gradient) const = 0;

  // From out_gradient (of boundary stage + 1) to in_gradient (of boundary stage; null when
  // nobody needs it) and gradients[i] (of stage.tensors[i]; null for a frozen tensor), each
  // written whole, not added to. `in` and `out` are forward's. out_gradient may be overwritten.
  virtual void Backward(const MicroBatch& micro_batch, int32_t stage,
                        absl::Span<const float* const> parameters, const float* in,
                        const float* out, float* out_gradient, float* in_gradient,
                        absl::Span<float* const> gradients) const = 0;
};

// Unimplemented, with the reason and what to use instead, for a kOpaque model. `run` must
// outlive the result.
absl::StatusOr<std::unique_ptr<ModelCompute>> MakeModelCompute(const RunDescription& run);

// Initial value of elements [range) of a tensor: f(seed, tensor, element), uniform in
// +-1/sqrt(fan_in); a probe's are multiples of 2^-8 in [-1, 1]. Writes range.count floats.
void FillInitialValues(const RunDescription& run, int32_t tensor, ElementRange range,
                       float* values);

}  // namespace shardproof

#endif  // TRAINER_MODEL_MODEL_COMPUTE_H_
