#include "trainer/engines/cuda/cuda_stages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cuda/alignment.h"
#include "trainer/engines/cuda/cuda_kernels.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/engines/stage_runner.h"

namespace shardproof {
namespace {

// Computes nothing and notes what it is asked for.
class WorkspaceCounter : public StageArithmetic {
 public:
  bool InPlace(const float* tensor) const override { return IsAlignedOperand(tensor); }
  float* Workspace(const StageWorkspace& place, int64_t elements) override {
    int64_t& most = needs_[{place.use, place.index}];
    most = std::max(most, elements);
    return Anywhere();
  }
  void Copy(const float*, int64_t, float*) override {}
  void Add(const float*, int64_t, float*) override {}
  void LoadInput(const MicroBatch&, float*) override {}
  void Forward(int32_t, absl::Span<const float* const>, const float*, float*) override {}
  double Loss(const MicroBatch&, const float*, float*) override { return 0; }
  void Backward(const MicroBatch&, int32_t, absl::Span<const float* const>, const float*,
                const float*, float*, float*, absl::Span<float* const>) override {}

  // An aligned address that nobody reads.
  static float* Anywhere() { return reinterpret_cast<float*>(uintptr_t{1} << 20); }

  const WorkspaceNeeds& needs() const { return needs_; }

 private:
  WorkspaceNeeds needs_;
};

}  // namespace

WorkspaceNeeds FindWorkspaceNeeds(const RunDescription& run, const Placement& placement,
                                  const StepPlan& plan) {
  WorkspaceCounter counter;
  StageRunner runner(run, placement, counter);
  runner.BeginStep();
  const std::vector<float*> buffers(plan.buffers.size(), WorkspaceCounter::Anywhere());
  for (const Op& op : plan.ops) {
    const MicroBatch micro_batch = {0, plan.rank, op.micro_batch};
    if (op.kind == OpKind::kForward) runner.Forward(plan, op, micro_batch, buffers);
    if (op.kind == OpKind::kBackward) runner.Backward(plan, op, micro_batch, buffers);
  }
  return counter.needs();
}

WorkspaceNeeds Larger(const WorkspaceNeeds& a, const WorkspaceNeeds& b) {
  WorkspaceNeeds larger = a;
  for (const auto& [place, elements] : b) {
    int64_t& most = larger[place];
    most = std::max(most, elements);
  }
  return larger;
}

int64_t WorkspaceBytes(const WorkspaceNeeds& needs) {
  int64_t bytes = 0;
  for (const auto& [place, elements] : needs) bytes += AlignedFloatBytes(elements);
  return bytes;
}

absl::Status CudaStages::Reserve(const WorkspaceNeeds& needs) {
  WorkspaceNeeds larger = Larger(reserved_, needs);
  if (larger == reserved_) return absl::OkStatus();
  reserved_ = std::move(larger);
  workspace_ = DeviceMemory();  // the old one first: both may not fit
  SHARDPROOF_ASSIGN_OR_RETURN(
      workspace_,
      DeviceMemory::Allocate(WorkspaceBytes(reserved_), "workspace for scattered tensors"));
  char* next = static_cast<char*>(workspace_.data());
  for (const auto& [place, elements] : reserved_) {
    slots_[place] = {reinterpret_cast<float*>(next), elements};
    next += AlignedFloatBytes(elements);
  }
  return absl::OkStatus();
}

// A tensor that lies askew in its buffer is used in workspace, so that its bits are those of any
// other place.
bool CudaStages::InPlace(const float* tensor) const { return IsAlignedOperand(tensor); }

float* CudaStages::Workspace(const StageWorkspace& place, int64_t elements) {
  if (elements == 0) return nullptr;
  const auto slot = slots_.find({place.use, place.index});
  if (slot != slots_.end() && slot->second.elements >= elements) return slot->second.begin;
  // Where needs were found by the same runner over the same plan this cannot be; and what writes
  // to null would not be enqueued.
  status_.Update(absl::InternalError(absl::StrCat("no workspace was reserved for ", elements,
                                                  " elements at place ", place.index)));
  return nullptr;
}

void CudaStages::Copy(const float* from, int64_t count, float* to) {
  if (!status_.ok()) return;
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  status_ = CudaStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
                       "cudaMemcpyAsync");
}

void CudaStages::Add(const float* from, int64_t count, float* to) {
  if (status_.ok()) status_ = CudaStatus(cuda::Add(to, from, count, stream_), "cuda::Add");
}

void CudaStages::LoadInput(const MicroBatch& micro_batch, float* input) {
  if (status_.ok()) status_ = model_.LoadInput(micro_batch, input, stream_);
}

void CudaStages::Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
                         float* out) {
  if (status_.ok()) status_ = model_.Forward(stage, parameters, in, out, stream_);
}

double CudaStages::Loss(const MicroBatch& micro_batch, const float* output,
                        float* output_gradient) {
  if (status_.ok()) status_ = model_.Loss(micro_batch, output, output_gradient, loss_, stream_);
  return 0;
}

void CudaStages::Backward(const MicroBatch& micro_batch, int32_t stage,
                          absl::Span<const float* const> parameters, const float* in,
                          const float* out, float* out_gradient, float* in_gradient,
                          absl::Span<float* const> gradients) {
  if (!status_.ok()) return;
  status_ = model_.Backward(micro_batch, stage, parameters, in, out, out_gradient, in_gradient,
                            gradients, stream_);
}

}  // namespace shardproof
