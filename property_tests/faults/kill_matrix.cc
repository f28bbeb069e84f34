#include "property_tests/faults/kill_matrix.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "invariants/report/text_table.h"
#include "property_tests/faults/catalogue.h"
#include "property_tests/faults/fault_rows.h"

namespace shardproof {
namespace {

std::string NameOf(const Fault& fault) { return std::string(FindRow(fault.row)->name); }

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string ReplayFault(const Fault& fault) {
  return absl::StrCat("replay: ci/bazel run //property_tests:faults -- --fault=", NameOf(fault));
}

}  // namespace

std::string MatrixText(const std::vector<FaultOutcome>& outcomes) {
  std::vector<std::string> head = {"row", "fault"};
  const std::vector<std::string> checks = KillerNames();
  head.insert(head.end(), checks.begin(), checks.end());
  TextTable table(head);
  for (const FaultOutcome& outcome : outcomes) {
    std::vector<std::string> cells = {outcome.fault.row, NameOf(outcome.fault)};
    for (const std::string& check : checks) {
      cells.push_back(KilledBy(outcome.report, check) ? "x" : ".");
    }
    table.Add(cells);
  }
  return table.Print();
}

std::string UniqueKillsText(const std::vector<FaultOutcome>& outcomes) {
  TextTable table({"check", "kills", "alone"});
  for (const std::string& check : KillerNames()) {
    int kills = 0;
    int alone = 0;
    for (const FaultOutcome& outcome : outcomes) {
      if (!KilledBy(outcome.report, check)) continue;
      ++kills;
      if (outcome.report.killers.size() == 1) ++alone;
    }
    table.Add({check, absl::StrCat(kills), absl::StrCat(alone)});
  }
  return table.Print();
}

std::string ClassicText(const std::vector<FaultOutcome>& outcomes) {
  TextTable table({"classic check", "kills"});
  int faults = 0;
  int killed = 0;
  for (const FaultOutcome& outcome : outcomes) {
    if (outcome.fault.benign) continue;
    ++faults;
    if (!outcome.report.classic.empty()) ++killed;
  }
  for (const std::string& check : ClassicCheckNames()) {
    const auto kills = std::count_if(outcomes.begin(), outcomes.end(), [&](const auto& outcome) {
      return Contains(outcome.report.classic, check);
    });
    table.Add({check, absl::StrCat(kills)});
  }
  return absl::StrCat(table.Print(), "the five classic checks together find ", killed, " of ",
                      faults, " faults\n");
}

std::string EditsText(const std::vector<EditOutcome>& outcomes) {
  struct Counts {
    int all = 0;
    std::array<int, 4> fates = {};
  };
  std::array<Counts, kEditKinds + 1> counts;  // the last: all kinds
  for (const EditOutcome& outcome : outcomes) {
    for (const int kind : {static_cast<int>(outcome.kind), kEditKinds}) {
      ++counts[kind].all;
      ++counts[kind].fates[static_cast<int>(outcome.fate)];
    }
  }
  TextTable table({"edits", "all", "killed", "equivalent", "reviewed", "survived"});
  for (int kind = 0; kind <= kEditKinds; ++kind) {
    std::vector<std::string> cells = {
        kind < kEditKinds ? std::string(Name(static_cast<EditKind>(kind))) : "all kinds",
        absl::StrCat(counts[kind].all)};
    for (const int fate : counts[kind].fates) cells.push_back(absl::StrCat(fate));
    table.Add(cells);
  }
  return table.Print();
}

std::string SummaryText(const std::vector<FaultOutcome>& outcomes) {
  int expressible = 0;
  int killed = 0;
  std::vector<std::string> benign;
  for (const FaultOutcome& outcome : outcomes) {
    if (outcome.fault.benign) {
      benign.push_back(absl::StrCat(outcome.fault.row, " ", NameOf(outcome.fault)));
      continue;
    }
    ++expressible;
    if (Complaint(outcome).empty()) ++killed;
  }
  return absl::StrCat("rows that are no fault, which every check must pass: ",
                      benign.empty() ? "none" : absl::StrJoin(benign, ", "), "\n",
                      FaultRows().size(), " rows, ", expressible, " expressible, ", killed,
                      " killed, ", WaitingRows().size(), " waiting\n");
}

std::string Complaint(const FaultOutcome& outcome) {
  const Fault& fault = outcome.fault;
  const auto complain = [&](const std::string& what) {
    return absl::StrCat(fault.row, " ", NameOf(fault), ": ", what, "\n  ", ReplayFault(fault));
  };
  if (!outcome.report.refusal.empty()) {
    return complain(absl::StrCat("an engine refuses it: ", outcome.report.refusal));
  }
  const std::string error =
      outcome.report.error.ok() ? "" : absl::StrCat(" (", outcome.report.error.message(), ")");
  if (fault.benign) {
    if (!Killed(outcome.report)) return "";
    return complain(absl::StrCat("is no fault, and found by ",
                                 absl::StrJoin(outcome.report.killers, ", "), error));
  }
  std::vector<std::string> missing;
  for (const std::string& killer : fault.killers) {
    if (!KilledBy(outcome.report, killer)) missing.push_back(killer);
  }
  if (missing.empty()) return "";
  return complain(absl::StrCat(
      "not found by ", absl::StrJoin(missing, ", "), "; found by ",
      Killed(outcome.report) ? absl::StrJoin(outcome.report.killers, ", ") : "nothing", error));
}

std::string Complaint(const EditOutcome& outcome) {
  const auto complain = [&](const std::string& what) {
    return absl::StrCat(outcome.name, ": ", what,
                        "\n  replay: ci/bazel run //property_tests:faults -- --edit='",
                        outcome.name, "'");
  };
  if (!outcome.error.ok()) {
    return complain(absl::StrCat("cannot be run: ", outcome.error.message()));
  }
  if (outcome.fate != EditFate::kSurvived) return "";
  return complain(absl::StrCat("survives; ", outcome.difference));
}

}  // namespace shardproof
