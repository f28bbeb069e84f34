// StageRunner: feeds ModelCompute from a rank's buffers.
//
// A tensor that lies in one piece of its buffer is used where it lies. One that a layout has
// scattered is collected into workspace first, and its gradient is written back piece by
// piece; the arithmetic and so the bits are the same.
#ifndef TRAINER_ENGINES_STAGE_RUNNER_H_
#define TRAINER_ENGINES_STAGE_RUNNER_H_

#include <cstdint>
#include <vector>

#include "trainer/engines/rank_memory.h"
#include "trainer/model/model_compute.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

class StageRunner {
 public:
  // All must outlive the runner. One runner serves all ranks, one operation at a time.
  StageRunner(const RunDescription& run, const Placement& placement, const ModelCompute& compute);

  // Before the plans of a step, of a repeated one too: what earlier backwards wrote is gone.
  void BeginStep() { ++steps_; }

  void Forward(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
               RankMemory& memory);
  // Returns the loss if the operation computes it (the model's last stage), else 0.
  double Backward(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                  RankMemory& memory);
  // The loss of a micro-batch whose forward ran.
  double Loss(const StepPlan& plan, const MicroBatch& micro_batch, RankMemory& memory);

 private:
  const float* Collect(const StepPlan& plan, const Op& op, int32_t tensor, RankMemory& memory,
                       std::vector<float>& workspace);
  void CollectParameters(const StepPlan& plan, const Op& op, int32_t stage, RankMemory& memory);
  void BackwardStage(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                     int32_t stage, RankMemory& memory);
  void WriteBack(int32_t tensor, float* buffer, const std::vector<float>& workspace, bool add);

  const RunDescription& run_;
  const Placement& placement_;
  const ModelCompute& compute_;
  std::vector<std::vector<Piece>> parameter_pieces_;  // by tensor
  std::vector<std::vector<Piece>> gradient_pieces_;   // by tensor
  std::vector<bool> used_twice_;                      // by tensor: by more than one stage
  std::vector<int32_t> first_use_;                    // by tensor, the lowest stage
  int64_t steps_ = 0;                                 // begun so far
  // The micro-batch whose backward wrote a tensor's gradient last, as steps_ * K + k + 1.
  std::vector<std::vector<int64_t>> written_in_;  // [rank][tensor]
  // Of a tensor used twice, this micro-batch's gradient, before it is added to earlier ones.
  std::vector<std::vector<std::vector<float>>> sum_of_uses_;  // [rank][tensor]
  std::vector<std::vector<float>> parameter_workspace_;       // by position in the stage
  std::vector<std::vector<float>> gradient_workspace_;
  std::vector<const float*> parameters_;
  std::vector<float*> gradients_;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_STAGE_RUNNER_H_
