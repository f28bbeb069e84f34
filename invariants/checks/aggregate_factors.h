// aggregate_factors: every rank holds the bytes that its mode promises, and no more.
//
// Rules.
//   Per rank   At the optimizer boundary the bytes of parameter, gradient, optimizer, padding
//              and scalar each equal ExpectedState (closed_forms.h) as integers. There is no
//              tolerance: a byte too many is a tensor, a shard or a dtype too many.
//   In sum     Over all ranks each class comes to DESIGN's factor times the logical bytes. The
//              sum is reported beside the ranks because it names a mode that does not shard at
//              once: gradients of zero2 that sum to N instead of 1.
//   No claims  Where segments are shown, the bytes that they add up to equal the stated bytes.
//   All ranks  The states stand for every rank, each once.
//
// Evidence. StepObservation::states. Segments of every class, for the third rule; with
// exp_avg alone only the optimizer's bytes are compared with it.
//
// It cannot see transient copies within a step (peak_memory), bytes that a trainer neither
// states nor shows, nor whether the elements are the right ones (padding).
#ifndef INVARIANTS_CHECKS_AGGREGATE_FACTORS_H_
#define INVARIANTS_CHECKS_AGGREGATE_FACTORS_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

std::unique_ptr<Check> MakeAggregateFactors();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_AGGREGATE_FACTORS_H_
