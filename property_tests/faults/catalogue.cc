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

constexpr char kSecondAxis[] = "a second mesh axis (hybrid groups)";
constexpr char kCheckpoint[] = "checkpoints";
constexpr char kPrecision[] = "mixed precision";
constexpr char kLossScale[] = "loss scale";
constexpr char kOffload[] = "offload tiers";
constexpr char kRecompute[] = "recomputed activations";
constexpr char kInit[] = "sharded initialisation";
constexpr char kPretrained[] = "loading pretrained weights";

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
  return {
      {"A5", kSecondAxis},
      {"A7", kSecondAxis},
      {"A8", kSecondAxis},
      {"C13", kLossScale},
      {"C16", "an option that ends the run at a norm that is not finite"},
      {"E5", "mixed precision and steps that only evaluate"},
      {"E8", "metrics that a trainer reports of its weights"},
      {"F8", "a second mesh axis and mixed precision"},
      {"G2", kCheckpoint},
      {"G5", kCheckpoint},
      {"G10", kCheckpoint},
      {"G11", kLossScale},
      {"G13", kSecondAxis},
      {"H5", "seeded faults of validation (a run that must be refused and is not)"},
      {"I10", kCheckpoint},
      {"J1", kCheckpoint},
      {"J2", kCheckpoint},
      {"J5", kRecompute},
      {"J11", kPrecision},
      {"K7", kRecompute},
      {"L1", kCheckpoint},
      {"L2", kCheckpoint},
      {"L4", kCheckpoint},
      {"L5", kCheckpoint},
      {"L7", kCheckpoint},
      {"L8", kCheckpoint},
      {"L10", kCheckpoint},
      {"L11", kCheckpoint},
      {"L13", kPretrained},
      {"L14", kCheckpoint},
      {"L16", kCheckpoint},
      {"L17", kCheckpoint},
      {"M2", kCheckpoint},
      {"M7", kCheckpoint},
      {"M8", kCheckpoint},
      {"N1", kPrecision},
      {"N2", kPrecision},
      {"N4", kPrecision},
      {"N7", kLossScale},
      {"N8", kLossScale},
      {"N10", kPrecision},
      {"N11", kPrecision},
      {"O1", kOffload},
      {"O2", kOffload},
      {"O4", kOffload},
      {"O5", kOffload},
      {"O7", kOffload},
      {"O8", kOffload},
      {"O10", kOffload},
      {"O11", kOffload},
      {"P5", kSecondAxis},
      {"P7", kSecondAxis},
      {"P8", kSecondAxis},
      {"P10", kSecondAxis},
      {"P11", kSecondAxis},
      {"Q1", kInit},
      {"Q2", kInit},
      {"Q4", kInit},
      {"Q7", kPretrained},
  };
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
  for (const WaitingRow& waiting : WaitingRows()) {
    if (waiting.row != row->id) continue;
    return absl::NotFoundError(absl::StrCat("fault '", name, "' (", row->id, ", ", row->name,
                                            ") cannot be run yet: it waits for ", waiting.feature));
  }
  return absl::NotFoundError(absl::StrCat("fault '", name, "' has no entry in the catalogue"));
}

}  // namespace shardproof
