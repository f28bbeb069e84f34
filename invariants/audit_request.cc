#include "invariants/audit_request.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "invariants/checks/all_checks.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/run_flags.h"

namespace shardproof {
namespace {

// The flags of the audit alone, as they were given.
struct AuditFlags {
  std::string engine = "cpu";
  std::string require;
  std::string format = "table";
  std::string out;
  bool explain = false;
};

void DeclareAuditFlags(AuditFlags& raw, Flags& flags) {
  flags.String("engine", &raw.engine, "accounting (no values, any size) or cpu");
  flags.String("require", &raw.require,
               "checks that must have evidence: all, or names joined by commas");
  flags.String("format", &raw.format, "table or json");
  flags.String("out", &raw.out, "write to this file instead of stdout");
  flags.Bool("explain", &raw.explain, "print the expected step before anything runs");
}

absl::StatusOr<std::vector<std::string>> ParseRequired(const std::string& text) {
  if (text.empty()) return std::vector<std::string>();
  if (text == "all") return AllCheckNames();
  const std::vector<std::string> names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    SHARDPROOF_RETURN_IF_ERROR(MakeCheck(name).status());
  }
  return names;
}

}  // namespace

absl::StatusOr<AuditRequest> ParseAuditRequest(int argc, const char* const* argv) {
  RunFlags run_flags;
  AuditFlags raw;
  Flags flags(
      "Runs a model in each sharding mode and judges every step against the closed forms and "
      "replicated training.\nExit 0: a mode passes and none fails; 1: a check failed or a "
      "required one had no evidence; 2: bad input.");
  DeclareRunFlags({.name = "modes",
                   .default_text = "all",
                   .help = "all, or modes, rows such as full_shard/none, and aliases"},
                  run_flags, flags);
  DeclareAuditFlags(raw, flags);
  AuditRequest request;
  SHARDPROOF_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    request.help = flags.Help();
    return request;
  }
  SHARDPROOF_ASSIGN_OR_RETURN(request.engine, ParseEngineKind(raw.engine));
  SHARDPROOF_ASSIGN_OR_RETURN(request.required, ParseRequired(raw.require));
  if (raw.format != "table" && raw.format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format=", raw.format, ": accepted is table or json"));
  }
  request.format = raw.format == "json" ? AuditFormat::kJson : AuditFormat::kTable;
  request.out = raw.out;
  request.explain = raw.explain;
  SHARDPROOF_ASSIGN_OR_RETURN(request.runs, MakeRuns(run_flags, flags));
  return request;
}

}  // namespace shardproof
