// HostStages: StageArithmetic in host memory, by a ModelCompute.
#ifndef TRAINER_ENGINES_HOST_STAGES_H_
#define TRAINER_ENGINES_HOST_STAGES_H_

#include <cstdint>
#include <vector>

#include "trainer/engines/stage_arithmetic.h"
#include "trainer/model/model_compute.h"

namespace shardproof {

// Workspace grows when it is asked for: what no plan needs takes no memory.
class HostStages : public StageArithmetic {
 public:
  // `run` and `compute` outlive the result. It serves all ranks, one operation at a time.
  HostStages(const RunDescription& run, const ModelCompute& compute);

  bool InPlace(const float*) const override { return true; }
  float* Workspace(const StageWorkspace& place, int64_t elements) override;
  void Copy(const float* from, int64_t count, float* to) override;
  void Add(const float* from, int64_t count, float* to) override;

  void LoadInput(const MicroBatch& micro_batch, float* input) override;
  void Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
               float* out) override;
  double Loss(const MicroBatch& micro_batch, const float* output, float* output_gradient) override;
  void Backward(const MicroBatch& micro_batch, int32_t stage,
                absl::Span<const float* const> parameters, const float* in, const float* out,
                float* out_gradient, float* in_gradient,
                absl::Span<float* const> gradients) override;

 private:
  const RunDescription& run_;
  const ModelCompute& compute_;
  std::vector<std::vector<float>> parameters_;         // by position in the stage
  std::vector<std::vector<float>> gradients_;          // the same
  std::vector<std::vector<std::vector<float>>> sums_;  // [rank][tensor]
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_HOST_STAGES_H_
