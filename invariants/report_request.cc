#include "invariants/report_request.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "invariants/checks/all_checks.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {

void DeclareReportFlags(ReportFlags& raw, Flags& flags) {
  flags.String("require", &raw.require,
               "checks that must have evidence: all, or names joined by commas");
  flags.String("format", &raw.format, "table or json");
  flags.String("out", &raw.out, "write to this file instead of stdout");
}

absl::StatusOr<std::vector<std::string>> ParseCheckNames(absl::string_view text) {
  if (text.empty()) return std::vector<std::string>();
  if (text == "all") return AllCheckNames();
  const std::vector<std::string> names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    SHARDPROOF_RETURN_IF_ERROR(MakeCheck(name).status());
  }
  return names;
}

absl::StatusOr<ReportRequest> MakeReportRequest(const ReportFlags& raw) {
  ReportRequest request;
  SHARDPROOF_ASSIGN_OR_RETURN(request.required, ParseCheckNames(raw.require));
  if (raw.format != "table" && raw.format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format=", raw.format, ": accepted is table or json"));
  }
  request.format = raw.format == "json" ? AuditFormat::kJson : AuditFormat::kTable;
  request.out = raw.out;
  return request;
}

absl::Status OpenReport(const ReportRequest& request, std::ofstream& file) {
  if (request.out.empty()) return absl::OkStatus();
  file.open(request.out);
  if (file) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--out=", request.out, ": cannot be written"));
}

absl::Status PrintReport(const AuditReport& report, const ReportRequest& request,
                         std::ofstream& file) {
  const std::string text =
      request.format == AuditFormat::kJson ? AuditJson(report) : AuditTable(report);
  std::ostream& out = request.out.empty() ? std::cout : file;
  out << text << std::flush;
  return out ? absl::OkStatus() : absl::DataLossError("the report could not be written");
}

}  // namespace shardproof
