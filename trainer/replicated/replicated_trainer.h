// The oracle: unsharded training in plain loops over whole parameters.
//
// It shares nothing with sharding: no flat parameters, no plan, no communicator, and an
// AdamW and SGD of its own. It is the specification; it stays naive. It uses ModelCompute and
// FillInitialValues, so that it sees the same batches and layers as the sharded trainer.
//
// Order of sums: within a micro-batch ModelCompute's. grad_sync last: micro-batches add
// first (0..K-1, in float32), then ranks (0..N-1). every: ranks add first, then
// micro-batches. One multiplication by float(1/(N*K)) after all sums; with
// scale_before_reduce each rank's contribution to a reduction is multiplied before the
// ranks add, and nothing after. A sum begins with its first term, not with 0. Within a
// micro-batch the first stage in backward that uses a tensor writes its gradient; a further
// stage (a tied tensor) adds its own to that. A rank's loss is the sum over its micro-batches
// in order, in double, divided by K.
//
// Clipping: the norm is the root of the sum, in double, of all squares of the mean gradient; the
// coefficient min(1, clip_grad_norm / (norm + 1e-6)), rounded to float32, multiplies every
// gradient. A trainer that adds squares in another order gets a coefficient that may differ in
// its last bit; given that one, the oracle goes on with it, and what follows has equal bits.
//
// A tensor that no rank uses in a step (UsageRule) keeps its value, moments and count of updates.
#ifndef TRAINER_REPLICATED_REPLICATED_TRAINER_H_
#define TRAINER_REPLICATED_REPLICATED_TRAINER_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"
#include "trainer/model/model_compute.h"

namespace shardproof {

struct ReferenceOptions {
  bool gradient_magnitude = false;  // fill ReferenceTensor::gradient_magnitude
};

class ReplicatedTrainer {
 public:
  // Fails as MakeModelCompute does, and with Unimplemented for dtypes other than float32. `run`
  // must outlive the trainer.
  static absl::StatusOr<std::unique_ptr<ReplicatedTrainer>> Create(
      const RunDescription& run, const ReferenceOptions& options = {});
  // The same with other arithmetic of stages: that of the sharded trainer it is compared with.
  static absl::StatusOr<std::unique_ptr<ReplicatedTrainer>> Create(
      const RunDescription& run, std::unique_ptr<ModelCompute> compute,
      const ReferenceOptions& options = {});
  virtual ~ReplicatedTrainer() = default;

  // Computes the next step; allocates nothing. The result's pointers are valid until the next
  // call. A frozen tensor's previous_parameter is its parameter; SGD without momentum has no
  // exp_avg. `clip_coefficient` is the trainer's; one that is not within 1e-6 of the oracle's own,
  // relative to it, is not used.
  virtual const ReferenceStep& Step(std::optional<float> clip_coefficient = std::nullopt) = 0;

  // The values as they are now, between steps: the last step's result, or the initial values.
  virtual const ReferenceStep& State() const = 0;
  // Forward alone, of the micro-batches of a step: by rank, the mean loss. Changes nothing.
  virtual std::vector<double> Losses(int64_t step) = 0;
  // Replaces a tensor's values; `values` has its elements. Moments and counters stay.
  virtual void SetParameter(int32_t tensor, const std::vector<float>& values) = 0;

  // Bytes of tensors and activations this trainer allocates for `run`, for refusing what does
  // not fit; the largest int64 if they are more than that.
  static int64_t RequiredBytes(const RunDescription& run, const ReferenceOptions& options = {});
};

}  // namespace shardproof

#endif  // TRAINER_REPLICATED_REPLICATED_TRAINER_H_
