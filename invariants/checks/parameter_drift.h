// How far a right trainer's parameters may be from the reference's after sums in any order.
// Private to the checks.
//
// Let every reduced gradient be within GradientTolerance of the reference's, as is checked
// elsewhere, and let every update be the optimizer's but for its own roundings (optimizer_rule.h).
// Then, with e the gradient's tolerance, and M, R and D the bounds of the errors of exp_avg, of
// the root of exp_avg_sq and of the parameter, one step makes of them (AdamW; ' is after it):
//   M' = beta1 M + (1 - beta1) e                    exp_avg is linear in the gradients
//   R' = sqrt(beta2 R^2 + (1 - beta2) e^2)          the root is a norm of the gradients' history
//   D' = |1 - lr wd| D + s (M' / d' + |m| E / (d d'))
// where s = lr / (1 - beta1^t), E = R' / sqrt(1 - beta2^t), m and d are the reference's exp_avg and
// denominator, and d' = max(d - E, epsilon) is the smallest denominator that the trainer may have.
// SGD: M' = momentum M + e + wd D, D' = D + lr M'. Each adds the roundings of both sides.
//
// So an element whose gradient is large beside the rounding of its sum has a bound far below the
// learning rate, while one whose contributions cancel may go another way by a few learning rates
// (AdamW divides the size of a gradient away, and rounding decides its sign), and keeps that
// distance ever after. Where the reference begins each step with the trainer's parameters the true
// distance starts anew, and the bound is wider than it need be.
#ifndef INVARIANTS_CHECKS_PARAMETER_DRIFT_H_
#define INVARIANTS_CHECKS_PARAMETER_DRIFT_H_

#include <cstdint>
#include <vector>

#include "invariants/checks/optimizer_rule.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

class ParameterDrift {
 public:
  // `run` must outlive this. Memory is taken by the first Step: 32 bytes an element.
  void Begin(const RunDescription& run);
  // Every step in turn, with gradient magnitudes. `gradient_error` is what the gradients of this
  // step may be off by beyond the rounding of their sums, relative.
  void Step(const ReferenceStep& reference, double gradient_error);
  // A step that was not shown: nothing is known of what follows.
  void Forget() { forgotten_ = true; }
  // After the last Step; infinity where nothing is known.
  double Of(int32_t tensor, int64_t element) const;

 private:
  struct Element {
    double moment = 0;     // M
    double root = 0;       // R
    double parameter = 0;  // D
    float exp_avg = 0;     // the reference's, of the step before
    float exp_avg_sq = 0;
  };
  struct Rates {
    OptimizerDescription optimizer;
    double step_size = 0;   // AdamW: lr / (1 - beta1^t)
    double correction = 1;  // AdamW: sqrt(1 - beta2^t)
    double carried = 0;     // SGD: the momentum, from the second update on
  };
  Rates RatesOf(int32_t tensor, int64_t updates) const;
  // `error` is what the gradient of the element may be off by.
  static void AdvanceAdamW(const Rates& rates, const UpdatedElement& updated, double error,
                           Element& drift);
  static void AdvanceSgd(const Rates& rates, const UpdatedElement& updated, double error,
                         Element& drift);
  void AdvanceTensor(int32_t tensor, const ReferenceTensor& reference, double gradient_error);

  const RunDescription* run_ = nullptr;
  bool forgotten_ = false;
  std::vector<std::vector<Element>> elements_;  // by tensor
};

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_PARAMETER_DRIFT_H_
