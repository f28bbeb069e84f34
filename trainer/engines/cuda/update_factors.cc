#include "trainer/engines/cuda/update_factors.h"

#include <cmath>

namespace shardproof {

cuda::AdamWFactors AdamWFactorsOf(const OptimizerDescription& optimizer, int64_t update) {
  const double t = static_cast<double>(update);
  return {
      .decay = static_cast<float>(1 - optimizer.learning_rate * optimizer.weight_decay),
      .one_minus_beta1 = static_cast<float>(1 - optimizer.beta1),
      .beta2 = static_cast<float>(optimizer.beta2),
      .one_minus_beta2 = static_cast<float>(1 - optimizer.beta2),
      .step_size = static_cast<float>(optimizer.learning_rate / (1 - std::pow(optimizer.beta1, t))),
      .root_correction2 = static_cast<float>(std::sqrt(1 - std::pow(optimizer.beta2, t))),
      .epsilon = static_cast<float>(optimizer.epsilon)};
}

cuda::SgdFactors SgdFactorsOf(const OptimizerDescription& optimizer, int64_t update) {
  return {.weight_decay = static_cast<float>(optimizer.weight_decay),
          .learning_rate = static_cast<float>(optimizer.learning_rate),
          .momentum = static_cast<float>(optimizer.momentum),
          .first_update = update == 1};
}

}  // namespace shardproof
