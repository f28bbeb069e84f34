#include "invariants/audit_request.h"

#include "invariants/run_description/flags.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/engine_flags.h"
#include "invariants/suite/run_flags.h"

namespace shardproof {

absl::StatusOr<AuditRequest> ParseAuditRequest(int argc, const char* const* argv,
                                               const LaunchEnvironment& launch) {
  RunFlags run_flags;
  EngineFlags engine;
  ReportFlags report;
  AuditRequest request;
  Flags flags(
      "Runs a model in each sharding mode and judges every step against the closed forms and "
      "replicated training.\nExit 0: a mode passes and none fails; 1: a check failed or a "
      "required one had no evidence; 2: bad input.");
  DeclareRunFlags({.name = "modes",
                   .default_text = "all",
                   .help = "all, or modes, rows such as full_shard/none, and aliases"},
                  run_flags, flags);
  DeclareEngineFlags(engine, flags);
  DeclareReportFlags(report, flags);
  flags.Bool("explain", &request.explain, "print the expected step before anything runs");
  SHARDPROOF_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    request.help = flags.Help();
    return request;
  }
  SHARDPROOF_ASSIGN_OR_RETURN(request.engine, MakeEngineRequest(engine, launch));
  SHARDPROOF_ASSIGN_OR_RETURN(request.report, MakeReportRequest(report));
  SHARDPROOF_ASSIGN_OR_RETURN(request.runs, MakeRuns(run_flags, flags, launch));
  return request;
}

}  // namespace shardproof
