// CudaStages: StageArithmetic on one rank's device, by a CudaModel.
#ifndef TRAINER_ENGINES_CUDA_CUDA_STAGES_H_
#define TRAINER_ENGINES_CUDA_CUDA_STAGES_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/cuda/cuda_model.h"
#include "trainer/engines/cuda/device_memory.h"
#include "trainer/engines/stage_arithmetic.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

// Elements by place. Ranks are one.
using WorkspaceNeeds = std::map<std::pair<StageWorkspace::Use, int32_t>, int64_t>;

// What a StageRunner asks of a device when it runs the plan. Buffers begin where cudaMalloc's do
// or at a multiple of 256 bytes from there.
WorkspaceNeeds FindWorkspaceNeeds(const RunDescription& run, const Placement& placement,
                                  const StepPlan& plan);

// By place, what suffices for both.
WorkspaceNeeds Larger(const WorkspaceNeeds& a, const WorkspaceNeeds& b);

// What Reserve takes on the device for them alone.
int64_t WorkspaceBytes(const WorkspaceNeeds& needs);

// Everything is enqueued on the stream of SetStream. After the first error nothing more is.
class CudaStages : public StageArithmetic {
 public:
  // `model` outlives the result, and so does `loss`, one float64 on the device to which losses
  // are added.
  CudaStages(CudaModel& model, double* loss) : model_(model), loss_(loss) {}

  // Between steps: provides workspace for what a plan needs. What is there and large enough stays.
  absl::Status Reserve(const WorkspaceNeeds& needs);
  int64_t workspace_bytes() const { return workspace_.bytes(); }

  void SetStream(cudaStream_t stream) { stream_ = stream; }
  absl::Status status() const { return status_; }

  bool InPlace(const float* tensor) const override;
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
  struct Slot {
    float* begin = nullptr;
    int64_t elements = 0;
  };

  CudaModel& model_;
  double* const loss_;
  cudaStream_t stream_ = nullptr;
  absl::Status status_;
  WorkspaceNeeds reserved_;
  DeviceMemory workspace_;
  std::map<std::pair<StageWorkspace::Use, int32_t>, Slot> slots_;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_CUDA_STAGES_H_
