// peak_memory: at every point of a step a rank keeps the bytes alive that the mode needs there.
//
// Bytes are those of the roles that are model state, in any memory tier, counted in issue order
// by walking the allocations and frees of each rank from what lived before the step. Inputs,
// activations and workspace are not counted.
//
// Rules.
//   Buffers   A buffer is allocated only when it is not alive and freed only when it is. At the
//             end of a step no full unit and no unreduced gradient is alive. What lives when a
//             step begins is what lived when the one before ended.
//   Items     At each collective of the mode, compute and update the live bytes, after its
//             allocations and before its frees, are ExpectedItem::live_bytes plus moments and
//             scalars, role by role: a byte too many of one role does not make up for one too
//             few of another. Where the order itself differs (issue_order), the items after that
//             are not compared; the other rules still are.
//   Peak      The most bytes alive at any event are ExpectedPeakBytes.
//   Boundary  After the last event, what is alive is the steady state of the closed form, role
//             by role, and in sum that of the inventory that the rank states.
//
// A difference that lasts is reported where it begins and where it changes. The order of peaks
// between modes is a rule about several runs and is checked by whoever runs them.
//
// Evidence. StepObservation::events with buffers and their allocations, of every rank in every
// step. Where one RankEvents stands for several ranks, its buffers are those of the first.
//
// It cannot see memory that a trainer does not report, fragmentation, nor reads of freed buffers
// (unshard_lifecycle, ordering).
#ifndef INVARIANTS_CHECKS_PEAK_MEMORY_H_
#define INVARIANTS_CHECKS_PEAK_MEMORY_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

std::unique_ptr<Check> MakePeakMemory();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_PEAK_MEMORY_H_
