// What one update makes of an element, in double, and how far float32 may be from it.
//
// Where sums over ranks have no fixed order a trainer has no bits to be compared with. Whether its
// optimizer is right can still be asked exactly: the formula applied to the values that the
// trainer itself had before the update leaves a few roundings of difference and no more. The
// formulas (t = updates of the tensor, this one included; g, p, m, v from before):
//   AdamW   m' = m + (g - m)(1 - beta1),  v' = v beta2 + g g (1 - beta2)
//           p' = p (1 - lr wd) - lr / (1 - beta1^t) * m' / (sqrt(v') / sqrt(1 - beta2^t) + epsilon)
//   SGD     d = g + wd p;  m' = d at t = 1, else momentum m + d;  p' = p - lr m'
//           momentum 0: p' = p - lr d
// (Loshchilov and Hutter, 2019; PyTorch's adamw.py and sgd.py.) Written here again, from the
// papers, because a check that shared the trainer's would agree with its mistakes.
#ifndef INVARIANTS_CHECKS_OPTIMIZER_RULE_H_
#define INVARIANTS_CHECKS_OPTIMIZER_RULE_H_

#include <cstdint>

#include "invariants/run_description/run_description.h"

namespace shardproof {

// Of one element. SGD's momentum is exp_avg.
struct ElementState {
  double parameter = 0;
  double exp_avg = 0;
  double exp_avg_sq = 0;
};

struct UpdatedElement {
  ElementState value;
  // The largest difference that float32 arithmetic explains, whatever the order of the formula's
  // operations. With u = 2^-24, each product or sum of float32 is off by u of its result, and a
  // constant by u of itself. A moment is at most three such steps from its terms: 4u of the sum
  // of their magnitudes covers both ways of writing it. The step of a parameter adds root,
  // correction, quotient and product to its moments' errors: 16u of the step's magnitude; the
  // decay and the last subtraction 4u of the parameter. Underflow adds float32's smallest normal.
  ElementState tolerance;
};

class OptimizerRule {
 public:
  // `optimizer` is the tensor's (HyperParametersOf); `updates` counts this one, from 1.
  OptimizerRule(const OptimizerDescription& optimizer, int64_t updates);
  UpdatedElement Apply(double gradient, const ElementState& before) const;

 private:
  UpdatedElement AdamW(double gradient, const ElementState& before) const;
  UpdatedElement Sgd(double gradient, const ElementState& before) const;

  OptimizerDescription optimizer_;
  int64_t updates_ = 1;
  double step_size_ = 0;        // AdamW: lr / (1 - beta1^t)
  double root_correction_ = 1;  // AdamW: sqrt(1 - beta2^t)
};

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_OPTIMIZER_RULE_H_
