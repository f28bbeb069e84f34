#include "invariants/checks/parameter_drift.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "invariants/checks/any_order.h"

namespace shardproof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Both sides round, and a trainer's own terms are a little larger than the reference's.
constexpr double kBothSides = 2.5;

// By how much the root of `square` may change when `square` does by `error`.
double RootError(double square, double error) {
  const double root = std::sqrt(error);
  return square > 0 ? std::min(error / std::sqrt(square), root) : root;
}

}  // namespace

void ParameterDrift::Begin(const RunDescription& run) {
  run_ = &run;
  forgotten_ = false;
  elements_.clear();
}

double ParameterDrift::Of(int32_t tensor, int64_t element) const {
  if (forgotten_) return kInfinity;
  if (elements_.empty() || elements_[tensor].empty()) return 0;
  return elements_[tensor][element].parameter;
}

void ParameterDrift::Step(const ReferenceStep& reference, double gradient_error) {
  if (forgotten_) return;
  elements_.resize(run_->model.tensors.size());
  for (size_t t = 0; t < elements_.size(); ++t) {
    const int32_t tensor = static_cast<int32_t>(t);
    const ReferenceTensor& values = reference.tensors[t];
    if (!run_->model.tensors[t].trainable || !IsUsedInStep(*run_, tensor, reference.step)) continue;
    if (values.gradient == nullptr || values.previous_parameter == nullptr) continue;
    if (values.gradient_magnitude == nullptr) return Forget();
    AdvanceTensor(tensor, values, gradient_error);
  }
}

ParameterDrift::Rates ParameterDrift::RatesOf(int32_t tensor, int64_t updates) const {
  Rates rates;
  rates.optimizer = HyperParametersOf(run_->optimizer, tensor);
  const double t = static_cast<double>(updates);
  rates.step_size = rates.optimizer.learning_rate / (1 - std::pow(rates.optimizer.beta1, t));
  rates.correction = std::sqrt(1 - std::pow(rates.optimizer.beta2, t));
  rates.carried = updates > 1 ? rates.optimizer.momentum : 0;
  return rates;
}

void ParameterDrift::AdvanceAdamW(const Rates& rates, const UpdatedElement& updated, double error,
                                  Element& drift) {
  const OptimizerDescription& of = rates.optimizer;
  const ElementState& rounding = updated.tolerance;
  const double decay = std::abs(1 - of.learning_rate * of.weight_decay);
  drift.moment = of.beta1 * drift.moment + (1 - of.beta1) * error + kBothSides * rounding.exp_avg;
  drift.root = std::sqrt(of.beta2 * drift.root * drift.root + (1 - of.beta2) * error * error) +
               RootError(updated.value.exp_avg_sq, kBothSides * rounding.exp_avg_sq);
  const double corrected = drift.root / rates.correction;
  const double own = std::sqrt(updated.value.exp_avg_sq) / rates.correction + of.epsilon;
  const double smallest = std::max(own - corrected, of.epsilon);
  const double moved =
      rates.step_size *
      (drift.moment / smallest + std::abs(updated.value.exp_avg) * corrected / (own * smallest));
  drift.parameter = decay * drift.parameter + moved + kBothSides * rounding.parameter;
}

void ParameterDrift::AdvanceSgd(const Rates& rates, const UpdatedElement& updated, double error,
                                Element& drift) {
  const ElementState& rounding = updated.tolerance;
  drift.moment = rates.carried * drift.moment + error +
                 rates.optimizer.weight_decay * drift.parameter + kBothSides * rounding.exp_avg;
  drift.parameter += rates.optimizer.learning_rate * drift.moment + kBothSides * rounding.parameter;
}

void ParameterDrift::AdvanceTensor(int32_t tensor, const ReferenceTensor& reference,
                                   double gradient_error) {
  std::vector<Element>& elements = elements_[tensor];
  elements.resize(static_cast<size_t>(Elements(run_->model.tensors[tensor])));
  const int64_t updates = std::max<int64_t>(reference.updates, 1);
  const Rates rates = RatesOf(tensor, updates);
  const OptimizerRule rule(rates.optimizer, updates);
  const bool adam = rates.optimizer.kind == OptimizerKind::kAdamW;
  for (size_t i = 0; i < elements.size(); ++i) {
    Element& drift = elements[i];
    const double gradient = reference.gradient[i];
    const UpdatedElement updated =
        rule.Apply(gradient, {reference.previous_parameter[i], drift.exp_avg, drift.exp_avg_sq});
    const double error = GradientTolerance(*run_, reference.gradient_magnitude[i]) +
                         gradient_error * std::abs(gradient);
    (adam ? AdvanceAdamW : AdvanceSgd)(rates, updated, error, drift);
    // 0 / 0 without epsilon, or a reference that is not finite.
    if (std::isnan(drift.parameter)) drift.parameter = kInfinity;
    if (reference.exp_avg != nullptr) drift.exp_avg = reference.exp_avg[i];
    if (reference.exp_avg_sq != nullptr) drift.exp_avg_sq = reference.exp_avg_sq[i];
  }
}

}  // namespace shardproof
