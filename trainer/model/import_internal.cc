#include "trainer/model/import_internal.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/message_text.h"

namespace shardproof::internal {

absl::Status Refuse(absl::string_view file, absl::string_view what, absl::string_view value,
                    absl::string_view accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat(Shown(file), ": ", Shown(what), " is ", Shown(value), "; accepted: ", accepted));
}

absl::StatusOr<ModelDescription> Finish(ModelDescription model, absl::string_view file) {
  RunDescription run;
  run.model = std::move(model);
  const absl::Status status = Validate(run);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(Shown(file), ": ", status.message()));
  }
  return std::move(run.model);
}

ModelBuilder::ModelBuilder(absl::string_view name, ModelKind kind) {
  model_.name = std::string(name);
  model_.kind = kind;
}

void ModelBuilder::BeginStage(std::string name) { model_.stages.push_back({std::move(name), {}}); }

int32_t ModelBuilder::Add(std::string name, std::vector<int64_t> shape, int64_t fan_in,
                          bool trainable) {
  const int32_t tensor = static_cast<int32_t>(model_.tensors.size());
  model_.tensors.push_back({std::move(name), std::move(shape), fan_in, trainable, {}});
  model_.stages.back().tensors.push_back(tensor);
  return tensor;
}

void ModelBuilder::Tie(int32_t tensor, std::string alias) {
  model_.tensors[tensor].aliases.push_back(std::move(alias));
  model_.stages.back().tensors.push_back(tensor);
}

void ModelBuilder::Linear(absl::string_view name, int64_t out, int64_t in, bool bias) {
  Add(absl::StrCat(name, ".weight"), {out, in}, in);
  if (bias) Add(absl::StrCat(name, ".bias"), {out}, in);
}

void ModelBuilder::Norm(absl::string_view name, int64_t width) {
  Add(absl::StrCat(name, ".weight"), {width}, width);
}

ModelDescription ModelBuilder::WithAUnitAStage() && {
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    model_.units.push_back({model_.stages[s].name, {static_cast<int32_t>(s)}, true});
  }
  return std::move(model_);
}

ModelDescription ModelBuilder::WithARootUnit() && {
  const int32_t last = static_cast<int32_t>(model_.stages.size()) - 1;
  model_.units.push_back({"root", {0, last}, false});
  for (int32_t s = 1; s < last; ++s) model_.units.push_back({model_.stages[s].name, {s}, true});
  return std::move(model_);
}

}  // namespace shardproof::internal
