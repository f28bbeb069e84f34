#include "invariants/check_request.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

absl::Status RequiredAreChecked(const CheckRequest& request) {
  for (const std::string& name : request.report.required) {
    if (std::count(request.checks.begin(), request.checks.end(), name) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--require names ", name,
                     ", which does not run; accepted: ", absl::StrJoin(request.checks, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckRequest> ParseCheckRequest(int argc, const char* const* argv) {
  std::string checks = "all";
  ReportFlags report;
  CheckRequest request;
  Flags flags(
      "Judges a run that a trainer wrote to an observation file "
      "(invariants/observation/observation_io.h): every step against the closed forms and, where "
      "values are shown, against replicated training from the seeded initial values.\n"
      "Exit 0: no check fails; 1: a check failed or a required one had no evidence; 2: bad "
      "input.");
  flags.String("observation", &request.observation,
               "the file, as zero_train --observe or a trainer of your own writes it");
  flags.String("checks", &checks, "checks that run: all, or names joined by commas");
  DeclareReportFlags(report, flags);
  SHARDPROOF_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    request.help = flags.Help();
    return request;
  }
  if (request.observation.empty()) {
    return absl::InvalidArgumentError(
        "--observation is missing; accepted is a file, such as zero_train --observe writes");
  }
  SHARDPROOF_ASSIGN_OR_RETURN(request.checks, ParseCheckNames(checks.empty() ? "all" : checks));
  SHARDPROOF_ASSIGN_OR_RETURN(request.report, MakeReportRequest(report));
  SHARDPROOF_RETURN_IF_ERROR(RequiredAreChecked(request));
  return request;
}

}  // namespace shardproof
