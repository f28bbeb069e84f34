// //property_tests:faults: the catalogue of seeded faults, and each of them as users would see it.
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "invariants/report/failure_text.h"
#include "invariants/report/text_table.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/console.h"
#include "property_tests/faults/catalogue.h"
#include "property_tests/faults/edit_campaign.h"
#include "property_tests/faults/fault_rows.h"
#include "property_tests/faults/kill.h"

namespace shardproof {
namespace {

struct FaultsRequest {
  std::string help;  // not empty: print this
  bool list = false;
  std::string title;  // of what is run
  RunDescription run;
  PartsEdit edit;
};

void List() {
  TextTable table({"row", "fault", "found by", "remarks", "threads"});
  std::set<std::string> has_fault;
  for (const Fault& fault : AllFaults()) {
    const FaultRow& row = *FindRow(fault.row);
    table.Add({fault.row, std::string(row.name),
               fault.benign ? "nothing" : absl::StrJoin(fault.killers, ", "), Remarks(fault),
               std::string(row.threads)});
    has_fault.insert(fault.row);
  }
  for (const WaitingRow& waiting : WaitingRows()) {
    if (has_fault.count(waiting.row) > 0) continue;  // its stand-in is listed
    const FaultRow& row = *FindRow(waiting.row);
    table.Add({waiting.row, std::string(row.name), "", absl::StrCat("waits for ", waiting.feature),
               std::string(row.threads)});
  }
  std::cout << table.Print();
}

absl::Status AskFor(const Fault& fault, FaultsRequest& request) {
  const FaultRow& row = *FindRow(fault.row);
  SHARDPROOF_ASSIGN_OR_RETURN(request.run, ParseFaultRun(fault.run));
  request.title =
      absl::StrCat("fault ", row.name, " (", row.id, ", ", ClassTitle(row.id[0]), ")\n  ",
                   fault.wrong, "\n  as in ", row.threads, "\n  run ", fault.run, "\n");
  request.edit = fault.apply;
  return absl::OkStatus();
}

absl::StatusOr<FaultsRequest> ParseRequest(int argc, char** argv) {
  FaultsRequest request;
  std::string fault;
  std::string edit;
  Flags flags(
      "Seeds a fault in the reference trainer and shows what the checks say.\n"
      "Exit 0: listed, or nothing found; 1: found, as it should be; 2: bad input.");
  flags.Bool("list", &request.list, "show all faults, and the rows that wait for a feature");
  flags.String("fault", &fault, "a fault's name or row");
  flags.String("edit", &edit, "a generated edit's name, as the kill matrix gives it");
  SHARDPROOF_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    request.help = flags.Help();
    return request;
  }
  const int asked = request.list + flags.given("fault") + flags.given("edit");
  if (asked != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(asked, " of --list, --fault and --edit are given; accepted: one"));
  }
  if (flags.given("fault")) {
    SHARDPROOF_ASSIGN_OR_RETURN(const Fault found, FindFault(fault));
    SHARDPROOF_RETURN_IF_ERROR(AskFor(found, request));
  } else if (flags.given("edit")) {
    SHARDPROOF_ASSIGN_OR_RETURN(NamedEdit found, FindNamedEdit(edit));
    request.title = absl::StrCat("edit ", edit, "\n");
    request.run = std::move(found.run);
    request.edit = ApplyEdit(found.edit, kEditedStep);
  }
  return request;
}

int Show(const FaultsRequest& request) {
  std::cout << request.title;
  const KillReport report = RunEdited(request.run, request.edit);
  if (!report.refusal.empty()) {
    return ReportBadInput("faults", absl::UnimplementedError(report.refusal));
  }
  if (!report.error.ok() && !IsHangOrDisagreement(report.error)) {
    return ReportBadInput("faults", report.error);
  }
  for (const CheckResult& failure : report.failures) {
    std::cout << "\n" << failure.name << " fails\n" << FailureText(failure);
  }
  if (!report.error.ok()) {
    std::cout << "\nthe engine ends the run: " << report.error.message() << "\n";
  }
  std::cout << "\nfound by " << (Killed(report) ? absl::StrJoin(report.killers, ", ") : "nothing")
            << "; of the classic checks by "
            << (report.classic.empty() ? "none" : absl::StrJoin(report.classic, ", ")) << "\n"
            << std::flush;
  return Killed(report) ? 1 : 0;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<FaultsRequest> request = ParseRequest(argc, argv);
  if (!request.ok()) return ReportBadInput("faults", request.status());
  if (!request->help.empty()) {
    std::cout << request->help;
    return 0;
  }
  if (request->list) {
    List();
    return 0;
  }
  return Show(*request);
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
