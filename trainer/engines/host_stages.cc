#include "trainer/engines/host_stages.h"

#include <algorithm>

namespace shardproof {

HostStages::HostStages(const RunDescription& run, const ModelCompute& compute)
    : run_(run), compute_(compute) {
  size_t widest = 0;
  for (const auto& stage : run.model.stages) widest = std::max(widest, stage.tensors.size());
  parameters_.resize(widest);
  gradients_.resize(widest);
  sums_.assign(run.sharding.world_size.value,
               std::vector<std::vector<float>>(run.model.tensors.size()));
}

float* HostStages::Workspace(const StageWorkspace& place, int64_t elements) {
  std::vector<float>& memory =
      place.use == StageWorkspace::Use::kParameter  ? parameters_[place.index]
      : place.use == StageWorkspace::Use::kGradient ? gradients_[place.index]
                                                    : sums_[place.rank.value][place.index];
  memory.resize(elements);
  return memory.data();
}

void HostStages::Copy(const float* from, int64_t count, float* to) { std::copy_n(from, count, to); }

void HostStages::Add(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

void HostStages::LoadInput(const MicroBatch& micro_batch, float* input) {
  compute_.LoadInput(micro_batch, input);
}

void HostStages::Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
                         float* out) {
  compute_.Forward(stage, parameters, in, out);
}

double HostStages::Loss(const MicroBatch& micro_batch, const float* output,
                        float* output_gradient) {
  if (output_gradient != nullptr) return compute_.Loss(micro_batch, output, output_gradient);
  const int32_t end = static_cast<int32_t>(run_.model.stages.size());
  std::vector<float> derivative(
      static_cast<size_t>(compute_.Width(end) * run_.data.micro_batch_size));
  return compute_.Loss(micro_batch, output, derivative.data());
}

void HostStages::Backward(const MicroBatch& micro_batch, int32_t stage,
                          absl::Span<const float* const> parameters, const float* in,
                          const float* out, float* out_gradient, float* in_gradient,
                          absl::Span<float* const> gradients) {
  compute_.Backward(micro_batch, stage, parameters, in, out, out_gradient, in_gradient, gradients);
}

}  // namespace shardproof
