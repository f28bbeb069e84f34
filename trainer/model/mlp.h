// The MLP: stage i is Linear layer i, with a ReLU behind it unless it is the last.
#ifndef TRAINER_MODEL_MLP_H_
#define TRAINER_MODEL_MLP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "invariants/run_description/run_description.h"
#include "trainer/model/model_compute.h"

namespace shardproof {

// Stages must list a weight [out, in] and, if they have one, a bias [out]; each layer's `in`
// is the one before's `out`. InvalidArgument names the stage, the tensor and the shape that
// is not so. The loss is the mean squared error against seeded targets in [-1, 1). `run` must
// outlive the result.
absl::StatusOr<std::unique_ptr<ModelCompute>> MakeMlp(const RunDescription& run);

}  // namespace shardproof

#endif  // TRAINER_MODEL_MLP_H_
