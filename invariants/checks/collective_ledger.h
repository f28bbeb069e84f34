// collective_ledger: a step sends exactly what its mode needs, and every rank sends the same.
//
// Rules.
//   Counts    The collectives of each kind and phase are as many as the table of modes says
//             (ExpectedCollectiveCounts). The table is a second derivation beside the sequence.
//             Clip norms are not counted.
//   Ledger    Kind, purpose, phase, unit (bucket, tensor), elements of the padded buffer, dtype,
//             group and root of the mode's collectives, and of the clip norm, are, as a multiset,
//             those of ExpectedSequence. Which one comes when is issue_order's rule.
//   Totals    So payload and bus bytes of the mode's collectives are the closed form's. Both
//             follow from the events: an observation states no totals that could disagree.
//   Kernels   Where somebody watched the GPU (DeviceWitness), the kernels of each kind that a rank
//             ran in the step are as many as the closed form's collectives of that kind, those of
//             one rank or of no elements apart, which need none. Three derivations agree then: the
//             closed form, what the trainer says it issued, and what ran.
//   Complete  Every collective that was issued ended within the step.
//   Agreed    All ranks issue their collectives, those of other purposes too, in one order of
//             kind, elements, dtype, group and root. Otherwise they wait for each other.
//   Named     Collectives of other purposes (used map, ...) are not counted; one without a
//             purpose is a violation, for it may be anything.
//
// Inferred. No closed form says how many used maps, overflow flags and model buffers a step
// sends: with one of them the verdict is inferred instead of pass.
//
// Evidence. StepObservation::events of every rank in every step. Ranks that were not shown
// leave the check not_observed.
//
// It cannot see what a collective carried (numeric_equivalence), nor the micro-batch it
// belongs to (issue_order).
#ifndef INVARIANTS_CHECKS_COLLECTIVE_LEDGER_H_
#define INVARIANTS_CHECKS_COLLECTIVE_LEDGER_H_

#include <memory>

#include "invariants/checks/check.h"

namespace shardproof {

std::unique_ptr<Check> MakeCollectiveLedger();

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_COLLECTIVE_LEDGER_H_
