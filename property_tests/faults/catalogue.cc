#include "property_tests/faults/catalogue.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "property_tests/faults/families.h"
#include "property_tests/faults/fault_rows.h"

namespace shardproof {
namespace {

// What waits, by the feature that it waits for.
struct WaitingRowsOf {
  absl::string_view feature;
  std::vector<absl::string_view> rows;
};

std::vector<WaitingRowsOf> WaitingForState() {
  return {
      {"checkpoints", {"G2", "G5", "G10", "I10", "J1",  "J2",  "L1",  "L2", "L4", "L5",
                       "L7", "L8", "L10", "L11", "L14", "L16", "L17", "M2", "M7", "M8"}},
      {"loading pretrained weights", {"L13", "Q7"}},
      {"sharded initialisation", {"Q1", "Q2", "Q4", "Q5"}},
      {"offload tiers", {"M5", "M10", "O1", "O2", "O4", "O5", "O7", "O8", "O10", "O11"}},
      {"recomputed activations", {"J5", "K7"}},
      {"steps that only evaluate", {"F4"}},
      {"mixed precision and steps that only evaluate", {"E5"}},
      {"metrics that a trainer reports of its weights", {"E8"}},
      {"an option that ends the run at a norm that is not finite", {"C16"}},
      {"seeded faults of validation (a run that must be refused and is not)", {"H5"}},
  };
}

std::vector<WaitingRowsOf> WaitingForShardingAndPrecision() {
  return {
      {"a second mesh axis (hybrid groups)",
       {"A1", "A5", "A7", "A8", "A10", "P1", "P4", "P5", "P7", "P8", "P11"}},
      {"secondary shards (hybrid groups)", {"D11", "G13", "P10"}},
      {"a second mesh axis and mixed precision", {"F8"}},
      {"mixed precision", {"E2", "J11", "N1", "N2", "N4", "N10", "N11"}},
      {"loss scale", {"C13", "G11", "N5", "N7", "N8"}},
  };
}

size_t RowPlace(const std::string& id) {
  const absl::Span<const FaultRow> rows = FaultRows();
  return static_cast<size_t>(
      std::find_if(rows.begin(), rows.end(), [&](const FaultRow& row) { return row.id == id; }) -
      rows.begin());
}

// Insertions, deletions and substitutions from one to the other.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  size_t length = 0;
  while (length < std::min(a.size(), b.size()) && a[length] == b[length]) ++length;
  return length;
}

}  // namespace

std::vector<Fault> AllFaults() {
  std::vector<Fault> faults;
  for (std::vector<Fault> (*family)() : {ReductionFaults, ClippingFaults, OrderingFaults,
                                         LifetimeFaults, LayoutFaults, TensorFaults, StepFaults}) {
    for (Fault& fault : family()) faults.push_back(std::move(fault));
  }
  std::stable_sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) {
    return RowPlace(a.row) < RowPlace(b.row);
  });
  return faults;
}

std::vector<WaitingRow> WaitingRows() {
  std::vector<WaitingRow> waiting;
  for (const auto& table : {WaitingForState(), WaitingForShardingAndPrecision()}) {
    for (const WaitingRowsOf& of : table) {
      for (absl::string_view row : of.rows) {
        waiting.push_back({std::string(row), std::string(of.feature)});
      }
    }
  }
  std::sort(waiting.begin(), waiting.end(), [](const WaitingRow& a, const WaitingRow& b) {
    return RowPlace(a.row) < RowPlace(b.row);
  });
  return waiting;
}

std::string WaitsFor(absl::string_view row) {
  for (WaitingRow& waiting : WaitingRows()) {
    if (waiting.row == row) return std::move(waiting.feature);
  }
  return "";
}

std::string Remarks(const Fault& fault) {
  std::vector<std::string> remarks;
  if (fault.benign) remarks.push_back("no fault");
  if (FindRow(fault.row)->symptom_only && !fault.benign) remarks.push_back("models the symptom");
  const std::string feature = WaitsFor(fault.row);
  if (!feature.empty()) remarks.push_back(absl::StrCat("stand-in, the row waits for ", feature));
  return absl::StrJoin(remarks, "; ");
}

std::vector<std::string> CloseNames(absl::string_view name, const std::vector<std::string>& names) {
  std::vector<std::pair<size_t, std::string>> close;
  for (const std::string& candidate : names) {
    const bool contains = !name.empty() && absl::StrContains(candidate, name);
    const bool begins_alike = 3 * CommonPrefix(name, candidate) >= 2 * name.size() && !name.empty();
    const size_t distance = contains ? 0 : Distance(name, candidate);
    if (contains || begins_alike || distance <= std::max<size_t>(2, candidate.size() / 4)) {
      close.emplace_back(distance, candidate);
    }
  }
  std::stable_sort(close.begin(), close.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (close.size() > 3) close.resize(3);
  std::vector<std::string> result;
  for (auto& [distance, candidate] : close) result.push_back(std::move(candidate));
  return result;
}

absl::StatusOr<Fault> FindFault(absl::string_view name) {
  const FaultRow* const row = FindRow(name);
  if (row == nullptr) {
    std::vector<std::string> names;
    for (const Fault& fault : AllFaults()) names.emplace_back(FindRow(fault.row)->name);
    const std::vector<std::string> close = CloseNames(name, names);
    return absl::NotFoundError(absl::StrCat(
        "fault '", name, "' is unknown; ",
        close.empty() ? "--list shows all names" : "close: ", absl::StrJoin(close, ", ")));
  }
  for (Fault& fault : AllFaults()) {
    if (fault.row == row->id) return std::move(fault);
  }
  const std::string feature = WaitsFor(row->id);
  if (!feature.empty()) {
    return absl::NotFoundError(absl::StrCat("fault '", name, "' (", row->id, ", ", row->name,
                                            ") cannot be run yet: it waits for ", feature));
  }
  return absl::NotFoundError(absl::StrCat("fault '", name, "' has no entry in the catalogue"));
}

}  // namespace shardproof
