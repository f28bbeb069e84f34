// What the audit was asked for: flags to runs. Apart from the program, so that tests reach it.
#ifndef INVARIANTS_AUDIT_REQUEST_H_
#define INVARIANTS_AUDIT_REQUEST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/launch/launch_environment.h"
#include "invariants/report_request.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/engine_flags.h"

namespace shardproof {

struct AuditRequest {
  std::string help;                  // not empty: --help was given, print this
  std::vector<RunDescription> runs;  // one a mode row
  EngineRequest engine;
  ReportRequest report;
  bool explain = false;
};

// InvalidArgument or NotFound in one line that names the flag, its value and what is accepted;
// among them what does not fit the processes that were launched.
absl::StatusOr<AuditRequest> ParseAuditRequest(int argc, const char* const* argv,
                                               const LaunchEnvironment& launch = {});

}  // namespace shardproof

#endif  // INVARIANTS_AUDIT_REQUEST_H_
