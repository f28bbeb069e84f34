// overlap: computation goes on beside the reduction that was just issued.
//
// Rule, per rank. In backward of a micro-batch, the first computation issued after a reduction of
// gradients does not run after that reduction by streams and waits of its rank, unless the two
// use the same buffer. A trainer that waits for every reduction is right, and pays for it with
// the time that the mode was meant to hide.
//
// full_shard with prefetch none waits for each reduction before the next gather by its own rule;
// there is nothing to judge then.
//
// It is asked for by name only: a trainer may well be correct without any overlap.
//
// Evidence. Events with waits of every rank in every step. Without events the check is
// not_observed. Accesses that were not shown count as none.
#ifndef INVARIANTS_CHECKS_OVERLAP_H_
#define INVARIANTS_CHECKS_OVERLAP_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

std::unique_ptr<Check> MakeOverlap();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_OVERLAP_H_
