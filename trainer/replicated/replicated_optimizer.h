// The oracle's own AdamW and SGD over one whole tensor.
//
// Written apart from trainer/optimizer, so that a mistake there is not repeated here; the
// arithmetic is that of trainer/optimizer/optimizer.h, operation by operation in float32, so
// that the two agree bit for bit.
#ifndef TRAINER_REPLICATED_REPLICATED_OPTIMIZER_H_
#define TRAINER_REPLICATED_REPLICATED_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "invariants/run_description/run_description.h"

namespace shardproof {

// One update of a tensor in place; all vectors have its elements. `update` counts from 1.
void ReplicatedAdamW(const OptimizerDescription& optimizer, int64_t update,
                     const std::vector<float>& gradient, std::vector<float>& parameter,
                     std::vector<float>& exp_avg, std::vector<float>& exp_avg_sq);

// As above. `momentum` is empty when optimizer.momentum is 0; its content before the first
// update is not used.
void ReplicatedSgd(const OptimizerDescription& optimizer, int64_t update,
                   const std::vector<float>& gradient, std::vector<float>& parameter,
                   std::vector<float>& momentum);

}  // namespace shardproof

#endif  // TRAINER_REPLICATED_REPLICATED_OPTIMIZER_H_
