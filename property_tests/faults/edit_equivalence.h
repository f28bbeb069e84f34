// EquivalentPlans: whether edited plans of a step mean the same as the original ones.
//
// Equivalent is what no observer of values, memory or communication could tell apart, on any
// schedule. That holds if on every rank
//   - the operations are the same, though issued in another order or with other waits,
//   - any two accesses that conflict (ranges of a buffer that overlap, at least one of them not a
//     read) are ordered as before by streams, waits and collectives, and no allocation runs
//     beside a free that was issued before it,
//   - each group sees the same collectives in the same order,
//   - every collective, computation and update finds the same bytes allocated.
// Values then come from the same places, since each operation reads what the same operations
// wrote. The converse does not hold: an edit may be harmless for other reasons.
#ifndef PROPERTY_TESTS_FAULTS_EDIT_EQUIVALENCE_H_
#define PROPERTY_TESTS_FAULTS_EDIT_EQUIVALENCE_H_

#include <string>
#include <vector>

#include "trainer/plan/step_plan.h"

namespace shardproof {

struct Equivalence {
  bool equivalent = false;
  std::string difference;  // the first one found; empty if equivalent
};

// By rank. `original` must be free of races.
Equivalence EquivalentPlans(const std::vector<StepPlan>& original,
                            const std::vector<StepPlan>& edited);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_EDIT_EQUIVALENCE_H_
