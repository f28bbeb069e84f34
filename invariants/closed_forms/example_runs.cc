#include "invariants/closed_forms/example_runs.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace shardproof {
namespace {

// Adds a stage and a unit `name` that holds the tensors added since the last one.
void CloseUnit(const std::string& name, size_t first_tensor, ModelDescription* model) {
  Stage stage;
  stage.name = name;
  for (size_t t = first_tensor; t < model->tensors.size(); ++t) {
    stage.tensors.push_back(static_cast<int32_t>(t));
  }
  Unit unit;
  unit.name = name;
  unit.stages = {static_cast<int32_t>(model->stages.size())};
  model->stages.push_back(stage);
  model->units.push_back(unit);
}

void AddTensor(const std::string& name, const std::vector<int64_t>& shape, int64_t fan_in,
               ModelDescription* model) {
  TensorSpec tensor;
  tensor.name = name;
  tensor.shape = shape;
  tensor.fan_in = fan_in;
  model->tensors.push_back(tensor);
}

}  // namespace

ShardingDescription Sharding(Mode mode, int32_t ranks) {
  ShardingDescription sharding;
  sharding.mode = mode;
  sharding.world_size = WorldSize{ranks};
  if (mode == Mode::kFullShard) sharding.prefetch = Prefetch::kBackwardPre;
  if (mode == Mode::kZero1Broadcast) sharding.layout = LayoutKind::kOwner;
  return sharding;
}

RunDescription MlpRun(const std::vector<int64_t>& widths, bool bias,
                      const ShardingDescription& sharding) {
  RunDescription run;
  run.model.name = "mlp";
  run.sharding = sharding;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::string layer = absl::StrCat("layers.", i);
    const size_t first = run.model.tensors.size();
    AddTensor(layer + ".weight", {widths[i + 1], widths[i]}, widths[i], &run.model);
    if (bias) AddTensor(layer + ".bias", {widths[i + 1]}, widths[i], &run.model);
    CloseUnit(layer, first, &run.model);
  }
  return run;
}

RunDescription StudyRun(Mode mode, int32_t ranks) {
  return MlpRun(std::vector<int64_t>(9, 2048), /*bias=*/false, Sharding(mode, ranks));
}

RunDescription VectorRun(const std::vector<int64_t>& elements,
                         const ShardingDescription& sharding) {
  RunDescription run;
  run.model.name = "vectors";
  run.model.kind = ModelKind::kProbe;
  run.sharding = sharding;
  for (size_t i = 0; i < elements.size(); ++i) {
    const std::string unit = absl::StrCat("units.", i);
    AddTensor(unit + ".weight", {elements[i]}, 1, &run.model);
    CloseUnit(unit, i, &run.model);
  }
  return run;
}

}  // namespace shardproof
