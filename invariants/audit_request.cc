#include "invariants/audit_request.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "invariants/checks/all_checks.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/mode_rows.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

// Every flag as it was given, before it means anything.
struct RawFlags {
  std::string model;
  std::string run;
  std::string modes = "all";
  std::string layout = "flat";
  std::string engine = "cpu";
  std::string grad_sync = "every";
  std::string optimizer = "adamw";
  std::string require;
  std::string format = "table";
  std::string out;
  double bucket_cap_mb = 64;
  int64_t world_size = 4;
  DataDescription data;
  bool explain = false;
};

void Declare(RawFlags& raw, Flags& flags) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  flags.String("model", &raw.model,
               "mlp:8x2048, mlp:33,65,17:bias, probe:10x3,7, probe:FILE, a config.json or a "
               ".safetensors file");
  flags.Int("world_size", &raw.world_size, 1, 65536, "ranks");
  flags.String("modes", &raw.modes, "all, or modes, rows such as full_shard/none, and aliases");
  flags.String("layout", &raw.layout,
               "flat, flat_aligned, rows or owner, for the modes that cut tensors");
  flags.String("engine", &raw.engine, "accounting (no values, any size) or cpu");
  flags.Int("steps", &raw.data.steps, 1, 1000000, "optimizer steps");
  flags.Int("micro_batch_size", &raw.data.micro_batch_size, 1, kMost, "samples of a rank");
  flags.Int("num_micro_batches", &raw.data.num_micro_batches, 1, 1024, "micro-batches of a step");
  flags.String("grad_sync", &raw.grad_sync, "micro-batches that reduce: every or last");
  flags.Double("bucket_cap_mb", &raw.bucket_cap_mb, 1.0 / (1 << 20), 1 << 30, "bucket cap in MiB");
  flags.String("optimizer", &raw.optimizer, "adamw or sgd");
  flags.Unsigned("seed", &raw.data.seed, "fixes data, initial values and schedule");
  flags.String("require", &raw.require,
               "checks that must have evidence: all, or names joined by commas");
  flags.String("format", &raw.format, "table or json");
  flags.String("out", &raw.out, "write to this file instead of stdout");
  flags.String("run", &raw.run,
               "one whole run, as a replay line or a .json file prints it; instead of the flags "
               "that describe a run");
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

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

absl::StatusOr<std::vector<RunDescription>> OneRun(const std::string& text) {
  std::string content = text;
  const bool json = EndsWith(text, ".json") && text.find('=') == std::string::npos;
  if (json) {
    std::ifstream file(text);
    std::ostringstream read;
    if (!file || !(read << file.rdbuf())) {
      return absl::NotFoundError(absl::StrCat("--run=", text, ": cannot read the file"));
    }
    content = read.str();
  }
  SHARDPROOF_ASSIGN_OR_RETURN(RunDescription run, json ? ParseRunJson(content, ImportModel)
                                                       : ParseRun(content, ImportModel));
  return std::vector<RunDescription>{std::move(run)};
}

absl::StatusOr<std::vector<RunDescription>> RunsOfModes(const RawFlags& raw) {
  if (raw.model.empty()) {
    return absl::InvalidArgumentError(
        "--model is missing; accepted: mlp:8x2048, mlp:33,65,17:bias, probe:10x3,7, a "
        "config.json or a .safetensors file");
  }
  RunDescription base;
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<ModeRow> rows, ParseModeRows(raw.modes));
  SHARDPROOF_ASSIGN_OR_RETURN(const LayoutKind layout, ParseLayoutKind(raw.layout));
  SHARDPROOF_ASSIGN_OR_RETURN(base.sharding.grad_sync, ParseGradSync(raw.grad_sync));
  SHARDPROOF_ASSIGN_OR_RETURN(base.optimizer.kind, ParseOptimizerKind(raw.optimizer));
  base.data = raw.data;
  base.sharding.world_size = WorldSize{static_cast<int32_t>(raw.world_size)};
  base.sharding.bucket_cap_bytes = std::llround(raw.bucket_cap_mb * (1 << 20));
  SHARDPROOF_ASSIGN_OR_RETURN(base.model, ImportModel(raw.model));
  std::vector<RunDescription> runs;
  for (const ModeRow& row : rows) {
    runs.push_back(base);
    ApplyModeRow(row, layout, runs.back().sharding);
    SHARDPROOF_RETURN_IF_ERROR(Validate(runs.back()));
  }
  return runs;
}

}  // namespace

absl::StatusOr<AuditRequest> ParseAuditRequest(int argc, const char* const* argv) {
  RawFlags raw;
  Flags flags(
      "Runs a model in each sharding mode and judges every step against the closed forms and "
      "replicated training.\nExit 0: a mode passes and none fails; 1: a check failed or a "
      "required one had no evidence; 2: bad input.");
  Declare(raw, flags);
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
  if (!raw.run.empty()) {
    for (const char* other :
         {"model", "world_size", "modes", "layout", "steps", "micro_batch_size",
          "num_micro_batches", "grad_sync", "bucket_cap_mb", "optimizer", "seed"}) {
      if (!flags.given(other)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--run describes the whole run; leave out --", other));
    }
    SHARDPROOF_ASSIGN_OR_RETURN(request.runs, OneRun(raw.run));
  } else {
    SHARDPROOF_ASSIGN_OR_RETURN(request.runs, RunsOfModes(raw));
  }
  return request;
}

}  // namespace shardproof
