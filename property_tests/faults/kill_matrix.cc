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

// Whether the row is one that can be told today and is a fault.
bool IsExpressible(const Fault& fault) { return !fault.benign && WaitsFor(fault.row).empty(); }

std::vector<FaultOutcome> Expressible(const std::vector<FaultOutcome>& outcomes) {
  std::vector<FaultOutcome> result;
  for (const FaultOutcome& outcome : outcomes) {
    if (IsExpressible(outcome.fault)) result.push_back(outcome);
  }
  return result;
}

std::string NamesOrNone(const std::vector<std::string>& names) {
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

std::string ReplayFault(const Fault& fault) {
  return absl::StrCat("replay: ci/bazel run //property_tests:faults -- --fault=", NameOf(fault));
}

std::string CannotRun(const KillReport& report) {
  if (!report.refusal.empty()) return absl::StrCat("an engine refuses it: ", report.refusal);
  if (report.error.ok() || IsHangOrDisagreement(report.error)) return "";
  return absl::StrCat("cannot be run: ", report.error.message());
}

std::string ErrorOf(const KillReport& report) {
  return report.error.ok() ? "" : absl::StrCat(" (", report.error.message(), ")");
}

std::string WrongWithBenign(const FaultOutcome& outcome) {
  const KillReport& report = outcome.report;
  if (Killed(report)) {
    return absl::StrCat("is no fault, and found by ", NamesOrNone(report.killers), ErrorOf(report));
  }
  if (report.unjudged.empty()) return "";
  return absl::StrCat("is no fault, and not judged by ", NamesOrNone(report.unjudged));
}

std::string WrongWithFault(const FaultOutcome& outcome) {
  std::vector<std::string> missing;
  for (const std::string& killer : outcome.fault.killers) {
    if (!KilledBy(outcome.report, killer)) missing.push_back(killer);
  }
  if (missing.empty()) return "";
  const std::vector<std::string>& killers = outcome.report.killers;
  return absl::StrCat("not found by ", NamesOrNone(missing), "; found by ",
                      killers.empty() ? "nothing" : NamesOrNone(killers), ErrorOf(outcome.report));
}

}  // namespace

std::string MatrixText(const std::vector<FaultOutcome>& outcomes) {
  std::vector<std::string> head = {"row", "fault"};
  const std::vector<std::string> checks = KillerNames();
  head.insert(head.end(), checks.begin(), checks.end());
  head.push_back("remarks");
  TextTable table(head);
  for (const FaultOutcome& outcome : outcomes) {
    std::vector<std::string> cells = {outcome.fault.row, NameOf(outcome.fault)};
    for (const std::string& check : checks) {
      cells.push_back(KilledBy(outcome.report, check) ? "x" : ".");
    }
    cells.push_back(Remarks(outcome.fault));
    table.Add(cells);
  }
  return table.Print();
}

std::string UniqueKillsText(const std::vector<FaultOutcome>& outcomes) {
  TextTable table({"check", "kills", "alone"});
  for (const std::string& check : KillerNames()) {
    int kills = 0;
    int alone = 0;
    for (const FaultOutcome& outcome : Expressible(outcomes)) {
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
  const std::vector<FaultOutcome> faults = Expressible(outcomes);
  const auto killed = std::count_if(faults.begin(), faults.end(), [](const auto& outcome) {
    return !outcome.report.classic.empty();
  });
  for (const std::string& check : ClassicCheckNames()) {
    const auto kills = std::count_if(faults.begin(), faults.end(), [&](const auto& outcome) {
      return Contains(outcome.report.classic, check);
    });
    table.Add({check, absl::StrCat(kills)});
  }
  return absl::StrCat(table.Print(), "the five classic checks together find ", killed, " of ",
                      faults.size(), " faults\n");
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
  int symptoms = 0;
  std::vector<std::string> benign;
  std::vector<std::string> stand_ins;
  for (const FaultOutcome& outcome : outcomes) {
    const Fault& fault = outcome.fault;
    if (fault.benign) {
      benign.push_back(absl::StrCat(fault.row, " ", NameOf(fault)));
    } else if (!IsExpressible(fault)) {
      stand_ins.push_back(fault.row);
    } else {
      ++expressible;
      if (Complaint(outcome).empty()) ++killed;
      if (FindRow(fault.row)->symptom_only) ++symptoms;
    }
  }
  return absl::StrCat("waiting rows with a stand-in, which must be found but is not counted: ",
                      NamesOrNone(stand_ins), "\n",
                      "expressible rows that model a symptom: ", symptoms, "\n",
                      "rows that are no fault, which every check must pass: ", NamesOrNone(benign),
                      "\n", FaultRows().size(), " rows, ", expressible, " expressible, ", killed,
                      " killed, ", WaitingRows().size(), " waiting\n");
}

std::string Complaint(const FaultOutcome& outcome) {
  std::string wrong = CannotRun(outcome.report);
  if (wrong.empty()) {
    wrong = outcome.fault.benign ? WrongWithBenign(outcome) : WrongWithFault(outcome);
  }
  if (wrong.empty()) return "";
  return absl::StrCat(outcome.fault.row, " ", NameOf(outcome.fault), ": ", wrong, "\n  ",
                      ReplayFault(outcome.fault));
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
