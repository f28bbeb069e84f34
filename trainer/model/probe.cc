#include "trainer/model/probe.h"

#include <algorithm>
#include <vector>

#include "trainer/model/data.h"

namespace shardproof {
namespace {

class Probe : public ModelCompute {
 public:
  explicit Probe(const RunDescription& run) : run_(run) {
    elements_.reserve(run.model.tensors.size());
    for (const TensorSpec& tensor : run.model.tensors) elements_.push_back(Elements(tensor));
  }

  int64_t Width(int32_t) const override { return 0; }

  void LoadInput(const MicroBatch&, float*) const override {}

  void Forward(int32_t, absl::Span<const float* const>, const float*, float*) const override {}

  double Loss(const MicroBatch&, const float*, float*) const override { return 0; }

  void Backward(const MicroBatch& micro_batch, int32_t stage, absl::Span<const float* const>,
                const float*, const float*, float*, float*,
                absl::Span<float* const> gradients) const override {
    const std::vector<int32_t>& tensors = run_.model.stages[stage].tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (gradients[i] == nullptr) continue;
      FillProbeGradient(run_, micro_batch, stage, tensors[i], {0, elements_[tensors[i]]},
                        gradients[i]);
    }
  }

 private:
  const RunDescription& run_;
  std::vector<int64_t> elements_;
};

}  // namespace

std::unique_ptr<ModelCompute> MakeProbe(const RunDescription& run) {
  return std::make_unique<Probe>(run);
}

void FillProbeGradient(const RunDescription& run, const MicroBatch& micro_batch, int32_t stage,
                       int32_t tensor, ElementRange range, float* values) {
  if (!IsUsed(run, tensor, micro_batch.step, micro_batch.rank, micro_batch.micro_batch)) {
    std::fill(values, values + range.count, 0.0f);
    return;
  }
  FillSmallIntegers(ProbeGradientKey(run, micro_batch, stage, tensor), range, values);
}

uint64_t ProbeGradientKey(const RunDescription& run, const MicroBatch& micro_batch, int32_t stage,
                          int32_t tensor) {
  uint64_t key = StreamKey(run.data.seed, StreamPurpose::kProbeGradient,
                           static_cast<uint64_t>(micro_batch.step));
  key = StreamHash(key, static_cast<uint64_t>(micro_batch.rank.value));
  key = StreamHash(key, static_cast<uint64_t>(micro_batch.micro_batch));
  key = StreamHash(key, static_cast<uint64_t>(stage));
  return StreamHash(key, static_cast<uint64_t>(tensor));
}

}  // namespace shardproof
