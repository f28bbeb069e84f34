// The nine checks of shardproof, in the order in which tables list them.
#ifndef INVARIANTS_CHECKS_ALL_CHECKS_H_
#define INVARIANTS_CHECKS_ALL_CHECKS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/checks/check.h"

namespace shardproof {

// aggregate_factors, numeric_equivalence, collective_ledger, padding, unshard_lifecycle,
// peak_memory, issue_order, ordering, liveness.
std::vector<std::string> AllCheckNames();

// Fresh instances, in that order.
std::vector<std::unique_ptr<Check>> AllChecks();

// One of them; or provenance, whose evidence only an engine that computes with origins shows; or
// overlap, which a correct trainer need not pass. InvalidArgument names the unknown check and lists
// those.
absl::StatusOr<std::unique_ptr<Check>> MakeCheck(absl::string_view name);

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_ALL_CHECKS_H_
