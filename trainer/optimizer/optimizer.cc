#include "trainer/optimizer/optimizer.h"

#include <cmath>

namespace shardproof {
namespace {

// One loop over independent elements, without a branch: the compiler vectorizes it, and an
// element's bits are the same in a vector and in the loop's tail.
void ApplyAdamW(const OptimizerDescription& optimizer, int64_t update, int64_t count,
                const float* __restrict gradient, float* __restrict parameter,
                float* __restrict exp_avg, float* __restrict exp_avg_sq) {
  const double t = static_cast<double>(update);
  const float decay = static_cast<float>(1 - optimizer.learning_rate * optimizer.weight_decay);
  const float one_minus_beta1 = static_cast<float>(1 - optimizer.beta1);
  const float beta2 = static_cast<float>(optimizer.beta2);
  const float one_minus_beta2 = static_cast<float>(1 - optimizer.beta2);
  const float step_size =
      static_cast<float>(optimizer.learning_rate / (1 - std::pow(optimizer.beta1, t)));
  const float root_correction2 = static_cast<float>(std::sqrt(1 - std::pow(optimizer.beta2, t)));
  const float epsilon = static_cast<float>(optimizer.epsilon);

  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    const float m = exp_avg[i] + (g - exp_avg[i]) * one_minus_beta1;
    const float v = exp_avg_sq[i] * beta2 + (g * g) * one_minus_beta2;
    const float denominator = std::sqrt(v) / root_correction2 + epsilon;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    parameter[i] = parameter[i] * decay - step_size * (m / denominator);
  }
}

void ApplySgd(const OptimizerDescription& optimizer, int64_t count,
              const float* __restrict gradient, float* __restrict parameter) {
  const float weight_decay = static_cast<float>(optimizer.weight_decay);
  const float learning_rate = static_cast<float>(optimizer.learning_rate);
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] + weight_decay * parameter[i];
    parameter[i] = parameter[i] - learning_rate * g;
  }
}

void ApplySgdMomentum(const OptimizerDescription& optimizer, int64_t update, int64_t count,
                      const float* __restrict gradient, float* __restrict parameter,
                      float* __restrict exp_avg) {
  const float weight_decay = static_cast<float>(optimizer.weight_decay);
  const float learning_rate = static_cast<float>(optimizer.learning_rate);
  const float momentum = static_cast<float>(optimizer.momentum);
  // The first update takes the gradient as it is, and must not read what the buffer held.
  if (update == 1) {
    for (int64_t i = 0; i < count; ++i) {
      exp_avg[i] = gradient[i] + weight_decay * parameter[i];
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      exp_avg[i] = momentum * exp_avg[i] + (gradient[i] + weight_decay * parameter[i]);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    parameter[i] = parameter[i] - learning_rate * exp_avg[i];
  }
}

}  // namespace

void ApplyUpdate(const OptimizerDescription& optimizer, int64_t update, int64_t count,
                 const float* gradient, float* parameter, float* exp_avg, float* exp_avg_sq) {
  switch (optimizer.kind) {
    case OptimizerKind::kAdamW:
      ApplyAdamW(optimizer, update, count, gradient, parameter, exp_avg, exp_avg_sq);
      return;
    case OptimizerKind::kSgd:
      if (optimizer.momentum == 0) {
        ApplySgd(optimizer, count, gradient, parameter);
      } else {
        ApplySgdMomentum(optimizer, update, count, gradient, parameter, exp_avg);
      }
      return;
  }
}

}  // namespace shardproof
