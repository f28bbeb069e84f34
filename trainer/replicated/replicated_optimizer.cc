#include "trainer/replicated/replicated_optimizer.h"

#include <cmath>

namespace shardproof {

void ReplicatedAdamW(const OptimizerDescription& optimizer, int64_t update,
                     const std::vector<float>& gradient, std::vector<float>& parameter,
                     std::vector<float>& exp_avg, std::vector<float>& exp_avg_sq) {
  const double bias_correction1 = 1.0 - std::pow(optimizer.beta1, static_cast<double>(update));
  const double bias_correction2 = 1.0 - std::pow(optimizer.beta2, static_cast<double>(update));
  const float weight_factor = float(1.0 - optimizer.learning_rate * optimizer.weight_decay);
  const float new_share1 = float(1.0 - optimizer.beta1);
  const float old_share2 = float(optimizer.beta2);
  const float new_share2 = float(1.0 - optimizer.beta2);
  const float step_size = float(optimizer.learning_rate / bias_correction1);
  const float root2 = float(std::sqrt(bias_correction2));
  const float epsilon = float(optimizer.epsilon);

  // Plain pointers: the compiler cannot know that vectors do not move in the loop.
  const float* g = gradient.data();
  float* p = parameter.data();
  float* m = exp_avg.data();
  float* v = exp_avg_sq.data();
  const int64_t elements = static_cast<int64_t>(parameter.size());
  for (int64_t i = 0; i < elements; ++i) {
    p[i] *= weight_factor;

    const float difference = g[i] - m[i];
    m[i] += difference * new_share1;

    const float square = g[i] * g[i];
    v[i] = v[i] * old_share2 + square * new_share2;

    const float denominator = std::sqrt(v[i]) / root2 + epsilon;
    p[i] -= step_size * (m[i] / denominator);
  }
}

void ReplicatedSgd(const OptimizerDescription& optimizer, int64_t update,
                   const std::vector<float>& gradient, std::vector<float>& parameter,
                   std::vector<float>& momentum) {
  const float weight_decay = float(optimizer.weight_decay);
  const float momentum_factor = float(optimizer.momentum);
  const float learning_rate = float(optimizer.learning_rate);
  for (size_t i = 0; i < parameter.size(); ++i) {
    float direction = gradient[i] + weight_decay * parameter[i];
    if (optimizer.momentum != 0.0) {
      momentum[i] = update == 1 ? direction : momentum_factor * momentum[i] + direction;
      direction = momentum[i];
    }
    parameter[i] -= learning_rate * direction;
  }
}

}  // namespace shardproof
