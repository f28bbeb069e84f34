// StageOrigins: forward and backward on origins. It reads and writes where StageRunner
// (stage_runner.h) does, and computes nothing.
#ifndef TRAINER_ENGINES_PROVENANCE_STAGES_H_
#define TRAINER_ENGINES_PROVENANCE_STAGES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "invariants/observation/origin.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/provenance_arithmetic.h"
#include "trainer/engines/provenance_memory.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

// One operation of one rank in one step. CheckPlan has accepted the plan.
struct OriginOp {
  int64_t step = 0;
  Rank rank;
  int32_t index = 0;  // of the operation
  const StepPlan* plan = nullptr;
  const Op* op = nullptr;
  std::vector<OriginBuffer>* buffers = nullptr;  // the rank's
};

class StageOrigins {
 public:
  // All outlive the result. InvalidArgument: the placement puts an element outside its tensor or
  // its set's buffer.
  static absl::StatusOr<std::unique_ptr<StageOrigins>> Create(const RunDescription& run,
                                                              const Placement& placement,
                                                              OriginArithmetic* arithmetic,
                                                              StepOrigins* origins);

  // Records what the stages read of parameters.
  void Forward(const OriginOp& at);
  // That, and leaves what they contribute to gradients.
  void Backward(const OriginOp& at);

 private:
  StageOrigins(const RunDescription& run, const Placement& placement, OriginArithmetic* arithmetic,
               StepOrigins* origins);
  absl::Status FindPieces(const std::vector<int32_t>& set_of_tensor,
                          std::vector<std::vector<Piece>>& pieces) const;
  void RecordReads(const OriginOp& at, int32_t stage, OriginUse use);
  void ReadTensor(const OriginBuffer& buffer, int32_t tensor, int32_t buffer_index, Rank rank);
  void BackwardTensor(const OriginOp& at, int32_t stage, int32_t tensor);
  void WriteBack(const OriginOp& at, int32_t tensor, int32_t buffer, int32_t terms, bool add);

  const RunDescription& run_;
  const Placement& placement_;
  OriginArithmetic* const arithmetic_;
  StepOrigins* const origins_;
  std::vector<int64_t> elements_;                     // by tensor
  std::vector<std::vector<Piece>> parameter_pieces_;  // by tensor
  std::vector<std::vector<Piece>> gradient_pieces_;   // by tensor
  std::vector<bool> used_twice_;                      // by tensor: by more than one stage
  std::vector<int32_t> first_use_;                    // by tensor, the lowest stage
  // The micro-batch whose backward wrote a tensor's gradient last, as step * K + k + 1.
  std::vector<std::vector<int64_t>> written_in_;  // [rank][tensor]
  // Of a tensor used twice, this micro-batch's terms, before they are added to earlier ones.
  std::vector<std::vector<int32_t>> terms_of_uses_;  // [rank][tensor]
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PROVENANCE_STAGES_H_
