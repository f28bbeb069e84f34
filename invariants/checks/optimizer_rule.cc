#include "invariants/checks/optimizer_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardproof {
namespace {

constexpr double kUnit = 0x1p-24;  // half an ulp of 1 in float32
constexpr double kSmallest = std::numeric_limits<float>::min();

}  // namespace

OptimizerRule::OptimizerRule(const OptimizerDescription& optimizer, int64_t updates)
    : optimizer_(optimizer), updates_(updates) {
  if (optimizer.kind != OptimizerKind::kAdamW) return;
  const double t = static_cast<double>(updates);
  step_size_ = optimizer.learning_rate / (1 - std::pow(optimizer.beta1, t));
  root_correction_ = std::sqrt(1 - std::pow(optimizer.beta2, t));
}

UpdatedElement OptimizerRule::Apply(double gradient, const ElementState& before) const {
  return optimizer_.kind == OptimizerKind::kAdamW ? AdamW(gradient, before) : Sgd(gradient, before);
}

UpdatedElement OptimizerRule::AdamW(double gradient, const ElementState& before) const {
  const double rest1 = 1 - optimizer_.beta1;
  const double rest2 = 1 - optimizer_.beta2;
  UpdatedElement result;
  ElementState& value = result.value;
  value.exp_avg = before.exp_avg + (gradient - before.exp_avg) * rest1;
  value.exp_avg_sq = before.exp_avg_sq * optimizer_.beta2 + gradient * gradient * rest2;
  const double denominator = std::sqrt(value.exp_avg_sq) / root_correction_ + optimizer_.epsilon;
  const double step = step_size_ / denominator;  // 0 / 0 stays a NaN, as in the trainer
  const double decay = 1 - optimizer_.learning_rate * optimizer_.weight_decay;
  value.parameter = before.parameter * decay - step * value.exp_avg;

  const double terms = std::abs(before.exp_avg) + rest1 * std::abs(gradient);
  // A second moment that underflows moves the root by more than its own roundings.
  const double root = std::max(std::sqrt(value.exp_avg_sq), std::sqrt(kSmallest));
  const double root_error = kSmallest / root / root_correction_ / denominator;
  result.tolerance.exp_avg = 4 * kUnit * terms + kSmallest;
  result.tolerance.exp_avg_sq = 5 * kUnit * value.exp_avg_sq + kSmallest;
  result.tolerance.parameter =
      4 * kUnit * (std::abs(before.parameter) + std::abs(value.parameter)) +
      (16 * kUnit + root_error) * step * terms + kSmallest;
  return result;
}

UpdatedElement OptimizerRule::Sgd(double gradient, const ElementState& before) const {
  const double direction = gradient + optimizer_.weight_decay * before.parameter;
  // At its first update the momentum is the gradient; what the buffer held does not count.
  const bool carries = optimizer_.momentum != 0 && updates_ > 1;
  const double carried = carries ? optimizer_.momentum * before.exp_avg : 0;
  const double moment = carried + direction;
  const double terms =
      std::abs(carried) + std::abs(gradient) + optimizer_.weight_decay * std::abs(before.parameter);
  UpdatedElement result;
  result.value.exp_avg = moment;
  result.value.parameter = before.parameter - optimizer_.learning_rate * moment;
  result.tolerance.exp_avg = 4 * kUnit * terms + kSmallest;
  result.tolerance.parameter =
      4 * kUnit * (std::abs(before.parameter) + std::abs(result.value.parameter)) +
      16 * kUnit * optimizer_.learning_rate * terms + kSmallest;
  return result;
}

}  // namespace shardproof
