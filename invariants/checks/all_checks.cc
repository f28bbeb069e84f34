#include "invariants/checks/all_checks.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "invariants/checks/aggregate_factors.h"
#include "invariants/checks/collective_ledger.h"
#include "invariants/checks/issue_order.h"
#include "invariants/checks/liveness.h"
#include "invariants/checks/numeric_equivalence.h"
#include "invariants/checks/ordering.h"
#include "invariants/checks/overlap.h"
#include "invariants/checks/padding.h"
#include "invariants/checks/peak_memory.h"
#include "invariants/checks/provenance.h"
#include "invariants/checks/unshard_lifecycle.h"

namespace shardproof {
namespace {

// Some factories give a subclass.
template <auto make>
std::unique_ptr<Check> Make() {
  return make();
}

struct Entry {
  absl::string_view name;
  std::unique_ptr<Check> (*make)();
};

constexpr Entry kChecks[] = {
    {"aggregate_factors", Make<MakeAggregateFactors>},
    {"numeric_equivalence", Make<MakeNumericEquivalence>},
    {"collective_ledger", Make<MakeCollectiveLedger>},
    {"padding", Make<MakePadding>},
    {"unshard_lifecycle", Make<MakeUnshardLifecycle>},
    {"peak_memory", Make<MakePeakMemory>},
    {"issue_order", Make<MakeIssueOrder>},
    {"ordering", Make<MakeOrdering>},
    {"liveness", Make<MakeLiveness>},
};

// Asked for by name only: the evidence of one comes from an engine of its own, and the other is
// about time, which a correct trainer may waste.
constexpr Entry kOtherChecks[] = {{"provenance", Make<MakeProvenance>},
                                  {"overlap", Make<MakeOverlap>}};

}  // namespace

std::vector<std::string> AllCheckNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kChecks) names.push_back(std::string(entry.name));
  return names;
}

std::vector<std::unique_ptr<Check>> AllChecks() {
  std::vector<std::unique_ptr<Check>> checks;
  for (const Entry& entry : kChecks) checks.push_back(entry.make());
  return checks;
}

absl::StatusOr<std::unique_ptr<Check>> MakeCheck(absl::string_view name) {
  for (const Entry& entry : kChecks) {
    if (entry.name == name) return entry.make();
  }
  std::vector<std::string> names = AllCheckNames();
  for (const Entry& entry : kOtherChecks) {
    if (entry.name == name) return entry.make();
    names.push_back(std::string(entry.name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("check '", name, "' is unknown; accepted: ", absl::StrJoin(names, ", ")));
}

}  // namespace shardproof
