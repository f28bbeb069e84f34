// StageRunner: feeds the model's stages from a rank's buffers, wherever those lie.
//
// A tensor that lies in one piece of its buffer is used where it lies. One that a layout has
// scattered is collected into workspace first, and its gradient is written back piece by
// piece; the arithmetic and so the bits are the same.
#ifndef TRAINER_ENGINES_STAGE_RUNNER_H_
#define TRAINER_ENGINES_STAGE_RUNNER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "trainer/engines/stage_arithmetic.h"
#include "trainer/model/model_compute.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

class StageRunner {
 public:
  // Where a rank's buffers begin, by buffer.
  using Buffers = absl::Span<float* const>;

  // All must outlive the runner. One runner serves all ranks that its arithmetic serves, one
  // operation at a time.
  StageRunner(const RunDescription& run, const Placement& placement, StageArithmetic& arithmetic);

  // Before the plans of a step, of a repeated one too: what earlier backwards wrote is gone.
  void BeginStep() { ++steps_; }

  void Forward(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch, Buffers buffers);
  // Returns the arithmetic's loss if the operation computes it (the model's last stage), else 0.
  double Backward(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                  Buffers buffers);
  // The loss of a micro-batch whose forward ran.
  double Loss(const StepPlan& plan, const MicroBatch& micro_batch, Buffers buffers);

 private:
  // What is known of a tensor's gradient on a rank.
  struct GradientProgress {
    // The micro-batch whose backward wrote it last, as steps_ * K + k + 1.
    int64_t written_in = 0;
    // Of a tensor used twice: this micro-batch's gradient lies in workspace (kSum), before it is
    // added to earlier ones.
    bool sum_begun = false;
  };
  // Where backward puts one gradient, and what is done with it then.
  struct GradientTarget {
    float* buffer = nullptr;    // of the tensor's set
    float* gradient = nullptr;  // where backward writes; null: nobody wants it
    float* sum = nullptr;       // of the tensor's uses in this micro-batch; null: not summed
    bool in_buffer = false;     // `gradient` is the tensor's place in `buffer`
    bool again = false;         // a later stage of this micro-batch wrote it already
    bool accumulates = false;   // over micro-batches
  };

  const float* Collect(const StepPlan& plan, const Op& op, int32_t tensor, int32_t position,
                       Rank rank, Buffers buffers);
  void CollectParameters(const StepPlan& plan, const Op& op, int32_t stage, Rank rank,
                         Buffers buffers);
  // Fills in targets_.
  void FindTargets(const StepPlan& plan, const Op& op, int32_t stage, Rank rank, int64_t now,
                   Buffers buffers);
  void BackwardStage(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                     int32_t stage, Buffers buffers);
  // After backward: from where it wrote to the buffer.
  void KeepGradient(int32_t tensor, int32_t stage, const GradientTarget& target);
  void WriteBack(int32_t tensor, const float* gradient, bool add, float* buffer);

  const RunDescription& run_;
  const Placement& placement_;
  StageArithmetic& arithmetic_;
  std::vector<std::vector<Piece>> parameter_pieces_;     // by tensor
  std::vector<std::vector<Piece>> gradient_pieces_;      // by tensor
  std::vector<bool> used_twice_;                         // by tensor: by more than one stage
  std::vector<int32_t> first_use_;                       // by tensor, the lowest stage
  int64_t steps_ = 0;                                    // begun so far
  std::vector<std::vector<GradientProgress>> progress_;  // [rank][tensor]
  // Of the stage at hand, by position.
  std::vector<const float*> parameters_;
  std::vector<GradientTarget> targets_;
  std::vector<float*> gradients_;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_STAGE_RUNNER_H_
