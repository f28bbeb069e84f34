// liveness: every parameter is trained, on every rank, and copies of it stay one.
//
// Rules.
//   - An element of a parameter moves (its bits change) in exactly the steps in which the
//     reference's moves. Elements of a trainable tensor that stay where the reference's move
//     are "never updated"; frozen ones must not move.
//   - Copies of an element on different ranks are bit-equal after every step. Tied tensors are
//     one tensor here.
//
// Evidence. Parameters with values and the reference, in every step and of every rank; without
// them the verdict is not_observed. Values before the first step are not shown and are taken
// to be the reference's.
//
// A parameter gate alone misses an element that never moves: with a small learning rate it
// stays within any tolerance. This check does not ask whether a move is right, which is
// numeric_equivalence's rule. Where sums have no fixed order (any_order), a rounding may move one
// of the two only: an element is then judged where neither its gradient nor its momentum is lost in
// the rounding of the gradient's sum, and its move is more than about an ulp. Which steps use a
// tensor at all (UsageRule) is in the reference's moves.
#ifndef INVARIANTS_CHECKS_LIVENESS_H_
#define INVARIANTS_CHECKS_LIVENESS_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

std::unique_ptr<Check> MakeLiveness();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_LIVENESS_H_
