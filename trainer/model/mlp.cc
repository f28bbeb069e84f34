#include "trainer/model/mlp.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/model/data.h"
#include "trainer/model/layers.h"

namespace shardproof {
namespace {

class Mlp : public ModelCompute {
 public:
  // layers[i] belongs to stage i and has the micro-batch's batch.
  Mlp(const RunDescription& run, std::vector<LinearShape> layers)
      : run_(run), layers_(std::move(layers)) {}

  int64_t Width(int32_t boundary) const override {
    return boundary == 0 ? layers_[0].in : layers_[boundary - 1].out;
  }

  void LoadInput(const MicroBatch& micro_batch, float* input) const override {
    FillSamples(micro_batch, StreamPurpose::kInput, layers_.front().in, input);
  }

  void Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
               float* out) const override {
    const LinearShape& layer = layers_[stage];
    LinearForward(layer, in, parameters[0], parameters.size() > 1 ? parameters[1] : nullptr, out);
    if (HasRelu(stage)) Relu(layer.batch * layer.out, out);
  }

  double Loss(const MicroBatch& micro_batch, const float* output,
              float* output_gradient) const override {
    const LinearShape& last = layers_.back();
    FillSamples(micro_batch, StreamPurpose::kTarget, last.out, output_gradient);
    return MeanSquaredError(last.batch * last.out, output, output_gradient);
  }

  void Backward(const MicroBatch&, int32_t stage, absl::Span<const float* const> parameters,
                const float* in, const float* out, float* out_gradient, float* in_gradient,
                absl::Span<float* const> gradients) const override {
    const LinearShape& layer = layers_[stage];
    if (HasRelu(stage)) ReluGradient(layer.batch * layer.out, out, out_gradient);
    if (gradients[0] != nullptr) LinearWeightGradient(layer, in, out_gradient, gradients[0]);
    if (gradients.size() > 1 && gradients[1] != nullptr) {
      LinearBiasGradient(layer, out_gradient, gradients[1]);
    }
    if (in_gradient != nullptr)
      LinearInputGradient(layer, parameters[0], out_gradient, in_gradient);
  }

 private:
  bool HasRelu(int32_t stage) const { return stage + 1 < static_cast<int32_t>(layers_.size()); }

  // One stream a sample, so that a sample does not depend on how samples are batched.
  void FillSamples(const MicroBatch& micro_batch, StreamPurpose purpose, int64_t width,
                   float* values) const {
    const uint64_t first = FirstSample(run_, micro_batch);
    for (int64_t row = 0; row < run_.data.micro_batch_size; ++row) {
      FillUniform(StreamKey(run_.data.seed, purpose, first + static_cast<uint64_t>(row)),
                  {0, width}, 1.0f, values + row * width);
    }
  }

  const RunDescription& run_;
  std::vector<LinearShape> layers_;
};

absl::Status StageError(const Stage& stage, const TensorSpec& tensor, absl::string_view accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat("mlp stage '", stage.name, "': tensor '", tensor.name, "' has shape [",
                   absl::StrJoin(tensor.shape, ", "), "]; accepted is ", accepted));
}

// The layer of one stage; previous_out is 0 for the first.
absl::StatusOr<LinearShape> LayerOfStage(const RunDescription& run, const Stage& stage,
                                         int64_t previous_out) {
  if (stage.tensors.empty() || stage.tensors.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("mlp stage '", stage.name, "' has ", stage.tensors.size(),
                     " tensors; accepted is a weight, or a weight and a bias"));
  }
  const TensorSpec& weight = run.model.tensors[stage.tensors[0]];
  if (weight.shape.size() != 2) return StageError(stage, weight, "a weight [out, in]");
  const LinearShape layer = {run.data.micro_batch_size, weight.shape[1], weight.shape[0]};
  if (previous_out != 0 && layer.in != previous_out) {
    return StageError(stage, weight, absl::StrCat("[out, ", previous_out, "]"));
  }
  if (stage.tensors.size() == 2) {
    const TensorSpec& bias = run.model.tensors[stage.tensors[1]];
    if (bias.shape != std::vector<int64_t>{layer.out}) {
      return StageError(stage, bias, absl::StrCat("a bias [", layer.out, "]"));
    }
  }
  return layer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelCompute>> MakeMlp(const RunDescription& run) {
  if (run.model.stages.empty()) {
    return absl::InvalidArgumentError("mlp has no stages; accepted is one or more layers");
  }
  std::vector<LinearShape> layers;
  layers.reserve(run.model.stages.size());
  for (const Stage& stage : run.model.stages) {
    SHARDPROOF_ASSIGN_OR_RETURN(const LinearShape layer,
                                LayerOfStage(run, stage, layers.empty() ? 0 : layers.back().out));
    layers.push_back(layer);
  }
  return std::make_unique<Mlp>(run, std::move(layers));
}

}  // namespace shardproof
