#include "trainer/model/model_compute.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trainer/model/mlp.h"
#include "trainer/model/probe.h"

namespace shardproof {

absl::StatusOr<std::unique_ptr<ModelCompute>> MakeModelCompute(const RunDescription& run) {
  switch (run.model.kind) {
    case ModelKind::kMlp:
      return MakeMlp(run);
    case ModelKind::kProbe:
      return MakeProbe(run);
    case ModelKind::kOpaque:
      break;
  }
  return absl::UnimplementedError(
      absl::StrCat("model '", run.model.name,
                   "' has layers that this trainer does not compute; use --engine=accounting or "
                   "provenance, or --model=probe:",
                   run.model.name, " to train its shapes with the probe's gradients"));
}

}  // namespace shardproof
