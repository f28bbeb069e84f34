// What the importers of different formats share: building a model, and messages.
#ifndef TRAINER_MODEL_IMPORT_INTERNAL_H_
#define TRAINER_MODEL_IMPORT_INTERNAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"

namespace shardproof::internal {

// A model beyond this is a typing error, and building its names would take minutes.
inline constexpr int64_t kMaxTensors = 1'000'000;

// "FILE: what is VALUE; accepted: ACCEPTED", on one line, long values cut.
absl::Status Refuse(absl::string_view file, absl::string_view what, absl::string_view value,
                    absl::string_view accepted);

// Validates the model's shapes and structure; errors start with the file.
absl::StatusOr<ModelDescription> Finish(ModelDescription model, absl::string_view file);

// Adds stages and tensors in forward order.
class ModelBuilder {
 public:
  ModelBuilder(absl::string_view name, ModelKind kind);

  // Tensors that are added from here on belong to this stage.
  void BeginStage(std::string name);
  // Returns the tensor's index.
  int32_t Add(std::string name, std::vector<int64_t> shape, int64_t fan_in, bool trainable = true);
  // Lets the current stage use an earlier tensor again, under another name.
  void Tie(int32_t tensor, std::string alias);

  // name.weight [out, in] and, with bias, name.bias [out].
  void Linear(absl::string_view name, int64_t out, int64_t in, bool bias = false);
  // name.weight [width].
  void Norm(absl::string_view name, int64_t width);

  // Each stage is a unit.
  ModelDescription WithAUnitAStage() &&;
  // First and last stage are the root unit, which PyTorch leaves unsharded after forward;
  // the others are units.
  ModelDescription WithARootUnit() &&;

 private:
  ModelDescription model_;
};

}  // namespace shardproof::internal

#endif  // TRAINER_MODEL_IMPORT_INTERNAL_H_
