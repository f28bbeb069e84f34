#include "invariants/suite/run_case.h"

#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "invariants/checks/all_checks.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/accounting_engine.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/engines/provenance_engine.h"
#include "trainer/model/importers.h"
#include "trainer/plan/planner.h"
#include "trainer/replicated/replicated_trainer.h"

namespace shardproof {
namespace {

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const RunDescription& run,
                                                   const CaseOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  if (options.engine == EngineKind::kAccounting) {
    return MakeAccountingEngine(run, options.memory_limit_bytes);
  }
  EngineParts parts = options.make_parts ? options.make_parts(run) : PlannedParts(run);
  if (options.engine == EngineKind::kProvenance) {
    return MakeProvenanceEngine(run, std::move(parts), options.memory_limit_bytes);
  }
  return MakeCpuEngine(run, std::move(parts),
                       {.limit_bytes = options.memory_limit_bytes,
                        .others_bytes = ReplicatedTrainer::RequiredBytes(run)});
}

// A path may hold a quote, and replay lines are pasted into a shell.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// The nine, and with them the check of what only the provenance engine shows.
std::vector<std::string> ChecksOf(const CaseOptions& options) {
  std::vector<std::string> checks = options.checks;
  if (!checks.empty() || options.engine != EngineKind::kProvenance) return checks;
  checks = AllCheckNames();
  checks.push_back("provenance");
  return checks;
}

// As many steps as the run has.
StepSource StepsOf(Engine& engine, int64_t steps) {
  return [&engine, steps]() mutable -> absl::StatusOr<const StepObservation*> {
    if (steps-- == 0) return nullptr;
    return engine.Step();
  };
}

}  // namespace

absl::string_view Name(EngineKind engine) {
  switch (engine) {
    case EngineKind::kCpu:
      return "cpu";
    case EngineKind::kAccounting:
      return "accounting";
    case EngineKind::kProvenance:
      return "provenance";
  }
  return "unknown";
}

absl::StatusOr<EngineKind> ParseEngineKind(absl::string_view text) {
  if (text == "cpu") return EngineKind::kCpu;
  if (text == "accounting") return EngineKind::kAccounting;
  if (text == "provenance") return EngineKind::kProvenance;
  return absl::InvalidArgumentError(
      absl::StrCat("engine '", text, "' is unknown; accepted: accounting, cpu, provenance"));
}

absl::StatusOr<CaseResult> RunCase(const RunDescription& run, const CaseOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(Validate(run));
  // An unknown check is the caller's mistake even where the trainer refuses the run.
  for (const std::string& name : options.checks) {
    SHARDPROOF_RETURN_IF_ERROR(MakeCheck(name).status());
  }
  absl::StatusOr<std::unique_ptr<Engine>> engine = MakeEngine(run, options);
  if (engine.status().code() == absl::StatusCode::kUnimplemented) {
    CaseResult result;
    result.verdict = Verdict::kRefused;
    result.refusal = std::string(engine.status().message());
    return result;
  }
  SHARDPROOF_RETURN_IF_ERROR(engine.status());
  Oracle oracle;
  if (options.engine == EngineKind::kCpu) {
    SHARDPROOF_ASSIGN_OR_RETURN(oracle.trainer, ReplicatedTrainer::Create(run));
  } else {
    oracle.missing = absl::StrCat("the ", Name(options.engine), " engine moves no values");
  }
  return JudgeSteps(run, StepsOf(**engine, run.data.steps), oracle,
                    {.checks = ChecksOf(options), .on_step = options.on_step});
}

int64_t AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(meminfo, unit);
  }
  return int64_t{1} << 40;
}

std::string RunLine(const RunDescription& run) {
  const std::string line = PrintRun(run);
  absl::StatusOr<RunDescription> again = ParseRun(line, ImportModel);
  if (again.ok() && again->model.units.size() == run.model.units.size()) {
    for (size_t unit = 0; unit < run.model.units.size(); ++unit) {
      again->model.units[unit].name = run.model.units[unit].name;
    }
    if (PrintRunJson(*again) == PrintRunJson(run)) return line;
  }
  return absl::StrReplaceAll(PrintRunJson(run), {{"\n", ""}});
}

std::string ReplayLine(const RunDescription& run, EngineKind engine) {
  return absl::StrCat("replay: ci/bazel run //invariants:audit -- --engine=", Name(engine),
                      " --run=", Quoted(RunLine(run)));
}

std::string ReplayLine(absl::string_view observation_path) {
  return absl::StrCat("replay: ci/bazel run //invariants:check -- --observation=",
                      Quoted(observation_path));
}

}  // namespace shardproof
