// How far values may be from the reference's where sums over ranks have no fixed order
// (StepObservation::any_order).
#ifndef INVARIANTS_CHECKS_ANY_ORDER_H_
#define INVARIANTS_CHECKS_ANY_ORDER_H_

#include <limits>

#include "invariants/run_description/run_description.h"

namespace shardproof {

// Of losses, relative: parameters were within bounds too, not equal.
inline constexpr double kLossTolerance = 1e-5;

// Of one element of a reduced gradient whose contributions have the mean magnitude `magnitude`
// (ReferenceTensor::gradient_magnitude). A float32 sum of n terms in any order is off by at most
// (n - 1) u of the sum of their magnitudes, u = 2^-24; dividing and clipping add one rounding
// each. The reference's sum has such an error of its own: both together, 2 (n + 1) u. NCCL's
// float32 reductions are such sums: a ring, a tree or a direct exchange adds the ranks in an order
// that depends on chunk and algorithm, and rounds to float32 after each addition. So n = N K bounds
// them, whatever NCCL chooses. The contributions themselves are the same on both sides: the oracle
// computes each rank's gradient with the trainer's own layer functions.
inline double GradientTolerance(const RunDescription& run, double magnitude) {
  const double terms = static_cast<double>(run.sharding.world_size.value) *
                       static_cast<double>(run.data.num_micro_batches);
  return 2 * (terms + 1) * 0x1p-24 * magnitude + std::numeric_limits<float>::min();
}

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_ANY_ORDER_H_
