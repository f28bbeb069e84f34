// Steps for the tests of collective_ledger and issue_order: what the closed form's sequence
// looks like as events, for volume. Each of those tests also has steps written by hand.
#ifndef INVARIANTS_CHECKS_ISSUED_STEP_H_
#define INVARIANTS_CHECKS_ISSUED_STEP_H_

#include <cstdint>

#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Every rank of the run issues the sequence, each shown on its own.
StepObservation IssuedStep(const RunDescription& run, int64_t step = 0);

// The place of the `nth` (from 0) event of a rank that is of this kind, phase and unit.
int32_t Find(const RankEvents& events, EventKind kind, Phase phase, int32_t unit, int32_t nth = 0);

// Removes an event, or moves it in front of another.
void Erase(RankEvents* events, int32_t event);
void MoveBefore(RankEvents* events, int32_t event, int32_t before);

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_ISSUED_STEP_H_
