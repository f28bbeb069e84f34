// A failed check as people read it in a terminal.
#ifndef INVARIANTS_REPORT_FAILURE_TEXT_H_
#define INVARIANTS_REPORT_FAILURE_TEXT_H_

#include <string>

#include "invariants/checks/check.h"

namespace shardproof {

// For each broken rule, in the order in which the check found them: the first violation in
// full, a line a fact, and where else, a line each. Ends in a newline.
//
//   rule      every reduced gradient has the bits of replicated training
//   at        rank 0, step 0, tensor layers.1.bias, element 0
//   expected  -0.15
//   found     -0.60 (ratio 4)
//   cause     ...
//   also at   rank 1, step 0, tensor layers.1.weight, element 5 (ratio 4)
std::string FailureText(const CheckResult& check);

}  // namespace shardproof

#endif  // INVARIANTS_REPORT_FAILURE_TEXT_H_
