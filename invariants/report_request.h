// What the programs that print a report share: its flags, and how it is written.
#ifndef INVARIANTS_REPORT_REQUEST_H_
#define INVARIANTS_REPORT_REQUEST_H_

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/report/audit_report.h"
#include "invariants/run_description/flags.h"

namespace shardproof {

enum class AuditFormat : uint8_t { kTable, kJson };

// The flags as they were given.
struct ReportFlags {
  std::string require;
  std::string format = "table";
  std::string out;
};

struct ReportRequest {
  std::vector<std::string> required;  // checks that must have evidence
  AuditFormat format = AuditFormat::kTable;
  std::string out;  // a file; empty: stdout
};

// require, format and out. `raw` must outlive Parse.
void DeclareReportFlags(ReportFlags& raw, Flags& flags);

// After Parse. InvalidArgument in one line that names the flag, its value and what is accepted.
absl::StatusOr<ReportRequest> MakeReportRequest(const ReportFlags& raw);

// "all", or names joined by commas; none in an empty text.
absl::StatusOr<std::vector<std::string>> ParseCheckNames(absl::string_view text);

// Opens `request.out`, if there is one, before any work is done for it.
absl::Status OpenReport(const ReportRequest& request, std::ofstream& file);

// Writes the report to `file`, or to stdout when none was asked for.
absl::Status PrintReport(const AuditReport& report, const ReportRequest& request,
                         std::ofstream& file);

}  // namespace shardproof

#endif  // INVARIANTS_REPORT_REQUEST_H_
