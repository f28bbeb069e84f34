// //invariants:check: a run that a trainer wrote down, judged.
#include <sys/stat.h>

#include <fstream>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/check_request.h"
#include "invariants/report/audit_report.h"
#include "invariants/suite/console.h"
#include "invariants/suite/judge_file.h"
#include "invariants/suite/run_case.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

int BadInput(const absl::Status& status) { return ReportBadInput("check", status); }

absl::Status OpenObservation(const std::string& path, std::ifstream& input) {
  struct stat info;
  // A folder opens like a file, and only its first read fails.
  const bool folder = stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  if (!folder) input.open(path);
  if (!folder && input) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("--observation=", path, ": ", folder ? "is a folder" : "cannot read the file"));
}

absl::StatusOr<AuditReport> Judge(const CheckRequest& request, std::istream* input) {
  ProgressLine progress;
  JudgeOptions options;
  options.checks = request.checks;
  options.on_step = [&progress](int64_t done) {
    progress.Show(absl::StrCat("check: step ", done));
  };
  // A tenth stays for everything else on the machine.
  absl::StatusOr<JudgedFile> judged =
      JudgeFile(input, ImportModel, AvailableMemoryBytes() / 10 * 9, options);
  if (!judged.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.observation, ": ", judged.status().message()));
  }
  AuditReport report;
  report.observation = request.observation;
  report.required = request.report.required;
  report.modes.push_back({std::move(judged->run), std::move(judged->result)});
  return report;
}

int Main(int argc, char** argv) {
  const absl::Status directory = EnterCallersDirectory();
  if (!directory.ok()) return BadInput(directory);
  const absl::StatusOr<CheckRequest> request = ParseCheckRequest(argc, argv);
  if (!request.ok()) return BadInput(request.status());
  if (!request->help.empty()) {
    std::cout << request->help;
    return 0;
  }
  std::ifstream input;
  const absl::Status opened = OpenObservation(request->observation, input);
  if (!opened.ok()) return BadInput(opened);
  std::ofstream file;
  const absl::Status writable = OpenReport(request->report, file);
  if (!writable.ok()) return BadInput(writable);
  const absl::StatusOr<AuditReport> report = Judge(*request, &input);
  if (!report.ok()) return BadInput(report.status());
  const absl::Status printed = PrintReport(*report, request->report, file);
  return printed.ok() ? AuditExitCode(*report) : BadInput(printed);
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
