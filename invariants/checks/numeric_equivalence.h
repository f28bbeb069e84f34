// numeric_equivalence: sharded training computes the bits of unsharded training.
//
// Rule. After every step, each element of reduced gradient, exp_avg, exp_avg_sq and
// parameter that a rank shows has the bits of the reference's, and each tensor has had as
// many updates. A parameter bound alone would be blind: Adam divides a wrong scale away.
// The loss of each rank has the bits of the reference's. NaN equals nothing, not even itself:
// two runs that both diverged prove nothing.
//
// Clipping. Every rank's norm and coefficient are within 1e-6 of the reference's, relative (wider
// in any order, see there), and have the same bits on all ranks. Gradients at the boundary are the
// clipped ones; the reference clips with the trainer's coefficient where that is right, so that
// bits stay comparable. Where a run clips and no rank shows with what, a pass says so in its
// reason.
//
// Any order. A trainer that declares that its sums have no fixed order (any_order) is held to
// bounds in place of bits.
//   Gradients   to the rounding of a sum of their contributions (any_order.h), plus what the
//               accepted error of the clip coefficient makes of them.
//   Moments and updates  to the optimizer's formula applied to the gradients, moments and
//               parameters that the trainer itself showed, but for a few ulp (optimizer_rule.h).
//   Parameters  to 1e-4 of the reference, or to what gradients within their bounds can have made
//               of the element since the run began, if that is more (parameter_drift.h). It is
//               more where contributions cancel so far that their rounding is a good part of the
//               gradient: AdamW then moves either way by up to about the learning rate, and no
//               bound that does not know the learning rate holds. It takes in weight decay, SGD's
//               momentum and the accepted error of the clip coefficient. After a step without
//               evidence it is not known, and parameters are held to the updates alone.
//   Clipping    the norm to the norm of its gradients' bounds plus 1e-6 of itself, the coefficient
//               to what such a norm makes of it plus 1e-6 of itself.
//   Losses      to 1e-5, relative.
// The bounds of gradients are those of sums of the same contributions: the reference of a step must
// have begun it with the trainer's parameters, as JudgeSteps sees to, and differences of parameters
// are then those of one step.
// A gradient whose contributions' magnitude the reference does not have, or an update whose past
// was not shown, makes the verdict not_observed.
//
// Evidence. Segments with values, and the reference. A step without them, a rank that is not
// shown, a class of state that no rank shows, or under AdamW a tensor of whose exp_avg a rank
// shows a part and of whose updates it shows no count, makes the verdict not_observed, never
// pass. Losses are judged where both sides show them: without them on one side they are not
// judged, nor where nothing is trainable and a step needs no loss.
//
// Report. Within a step the earliest cause comes first: loss, gradient, moments, step counters,
// update, parameter; one violation per rank, tensor and class. Where the reference's own value
// is not finite, one violation of the run says that replicated training diverged too. The update is
// judged where the parameter before it still had the reference's bits, so that one wrong step is
// not reported as a wrong update for ever after. Before the first step parameters are taken to be
// the reference's, as initial values are not shown.
//
// It cannot see an element that no rank shows: coverage is the rule of `padding`. Segments
// that lie outside their tensor are skipped here and reported there.
#ifndef INVARIANTS_CHECKS_NUMERIC_EQUIVALENCE_H_
#define INVARIANTS_CHECKS_NUMERIC_EQUIVALENCE_H_

#include <memory>
#include <optional>

#include "invariants/checks/check.h"

namespace shardproof {

// The largest errors over all steps and ranks, for tables. A relative error is, of one
// tensor on one rank, max |difference| / max |reference of the whole tensor|; 0/0 is 0, and
// x/0 and NaN are infinity. The error of updates leaves out segments whose value before
// the step is not known.
struct NumericFigures {
  double max_abs_parameter_error = 0;
  double max_rel_gradient_error = 0;
  double max_rel_update_error = 0;
  bool observed = false;  // false: no value was compared, and the errors mean nothing
  // In any order: the largest share of its bound that an element used, of reduced gradients, and
  // of moments and updates. 1 is the limit. Unset where bits were compared.
  std::optional<double> max_gradient_bound_share = {};
  std::optional<double> max_update_bound_share = {};
};

class NumericEquivalence : public Check {
 public:
  virtual NumericFigures figures() const = 0;
};

std::unique_ptr<NumericEquivalence> MakeNumericEquivalence();

// The tolerance of which violations of parameters report the share they used; in any order the
// least that an element's may be.
inline constexpr double kParameterTolerance = 1e-4;

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_NUMERIC_EQUIVALENCE_H_
