// An audit as people and scripts read it: the table, the JSON and the exit code.
#ifndef INVARIANTS_REPORT_AUDIT_REPORT_H_
#define INVARIANTS_REPORT_AUDIT_REPORT_H_

#include <string>
#include <vector>

#include "invariants/run_description/run_description.h"
#include "invariants/suite/run_case.h"

namespace shardproof {

struct ModeReport {
  RunDescription run;
  CaseResult result;
};

struct AuditReport {
  EngineKind engine = EngineKind::kCpu;  // means nothing where `observation` is set
  std::string observation;               // the file that was judged; empty: an engine ran
  std::vector<ModeReport> modes;         // at least one; same model and world size
  std::vector<std::string> required;     // checks that must not be not_observed
};

// The command that judges this mode again: the audit of its run, or the check of its file.
std::string ReplayLine(const AuditReport& report, const ModeReport& mode);

// State and collectives, a row a mode, with legends; one verdict a mode and check; then why
// evidence is missing, refusals, and every failed check in full with its replay line.
std::string AuditTable(const AuditReport& report);

// One object, schema "shardproof.audit/1"; ends in a newline. It names the engine, or the
// observation file.
std::string AuditJson(const AuditReport& report);

// 0: at least one mode passes, none fails, no required check lacks evidence. 1: a check
// failed, or a required one lacks evidence. 2: every mode was refused.
int AuditExitCode(const AuditReport& report);

// The expected step of one mode, before anything runs: operations in issue order with
// elements, payload bytes and live bytes on rank 0, from the closed forms; or one line that
// says why they define none.
std::string ExplainStep(const RunDescription& run);

}  // namespace shardproof

#endif  // INVARIANTS_REPORT_AUDIT_REPORT_H_
