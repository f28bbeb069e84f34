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
#include "trainer/engines/gathered_engine.h"
#include "trainer/engines/provenance_engine.h"
#include "trainer/model/importers.h"
#include "trainer/plan/planner.h"
#include "trainer/replicated/replicated_trainer.h"

namespace shardproof {
namespace {

// The oracle of a run whose sums over ranks have no fixed order must also say how large their terms
// were.
ReferenceOptions OracleOptions(const RunDescription& run, const CaseOptions& options) {
  return {.gradient_magnitude =
              options.engine == EngineKind::kCuda && run.sharding.world_size.value > 1};
}

// What the oracle takes of this process's memory.
int64_t OracleBytes(const RunDescription& run, const CaseOptions& options) {
  return ReplicatedTrainer::RequiredBytes(run, OracleOptions(run, options));
}

absl::Status CheckRanks(const RunDescription& run, const CaseOptions& options) {
  if (options.ranks.agreement == nullptr) return absl::OkStatus();
  const int32_t processes = options.ranks.agreement->job().world_size().value;
  if (processes != run.sharding.world_size.value) {
    return absl::InvalidArgumentError(absl::StrCat("a run of ", run.sharding.world_size.value,
                                                   " ranks in ", processes,
                                                   " processes; accepted is one rank a process"));
  }
  const bool can = options.engine == EngineKind::kCuda ||
                   (options.engine == EngineKind::kCpu && options.ranks.world != nullptr);
  if (can) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", Name(options.engine),
                   " engine does not run in processes that meet as these do; accepted are cpu "
                   "under mpirun, and cuda"));
}

absl::StatusOr<CaseEngine> MakeDeviceEngine(const RunDescription& run, const CaseOptions& options,
                                            const EngineParts& parts, bool with_oracle) {
  if (!options.make_device_engine) {
    return absl::UnavailableError(absl::StrCat("the ", Name(options.engine),
                                               " engine is not part of this program; accepted "
                                               "here: accounting, cpu, provenance"));
  }
  const int64_t oracle_bytes = with_oracle ? OracleBytes(run, options) : 0;
  if (oracle_bytes > options.memory_limit_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the oracle needs ", oracle_bytes, " bytes of this machine's memory, and may use ",
        options.memory_limit_bytes, ": use a smaller model"));
  }
  return options.make_device_engine(run, options.engine, parts, with_oracle);
}

// OK where it is on every rank; else what all ranks then have.
absl::Status AgreeOn(const CaseOptions& options, const absl::Status& status) {
  if (options.ranks.agreement == nullptr || IsKnownToAll(status)) return status;
  return options.ranks.agreement->Conclude(status);
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

// All steps of the run, for another process to judge.
absl::StatusOr<CaseResult> Execute(Engine& engine, const RunDescription& run) {
  for (int64_t step = 0; step < run.data.steps; ++step) {
    SHARDPROOF_RETURN_IF_ERROR(engine.Step().status());
  }
  CaseResult result;
  result.verdict = Verdict::kNotObserved;
  result.judged_elsewhere = true;
  return result;
}

absl::StatusOr<CaseResult> Judge(CaseEngine& engine, const RunDescription& run,
                                 const CaseOptions& options) {
  Oracle oracle;
  if (!MovesValues(options.engine)) {
    oracle.missing = absl::StrCat("the ", Name(options.engine), " engine moves no values");
  } else if (engine.oracle_compute == nullptr) {
    SHARDPROOF_ASSIGN_OR_RETURN(oracle.trainer,
                                ReplicatedTrainer::Create(run, OracleOptions(run, options)));
  } else {
    SHARDPROOF_ASSIGN_OR_RETURN(oracle.trainer,
                                ReplicatedTrainer::Create(run, std::move(engine.oracle_compute),
                                                          OracleOptions(run, options)));
  }
  absl::StatusOr<CaseResult> result =
      JudgeSteps(run, StepsOf(*engine.engine, run.data.steps), oracle,
                 {.checks = ChecksOf(options), .on_step = options.on_step});
  // Values that could not be computed would only look like wrong ones.
  if (engine.oracle_status) SHARDPROOF_RETURN_IF_ERROR(engine.oracle_status());
  return result;
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
    case EngineKind::kCuda:
      return "cuda";
    case EngineKind::kCudaShared:
      return "cuda_shared";
  }
  return "unknown";
}

absl::StatusOr<EngineKind> ParseEngineKind(absl::string_view text) {
  if (text == "cpu") return EngineKind::kCpu;
  if (text == "accounting") return EngineKind::kAccounting;
  if (text == "provenance") return EngineKind::kProvenance;
  if (text == "cuda") return EngineKind::kCuda;
  if (text == "cuda_shared") return EngineKind::kCudaShared;
  return absl::InvalidArgumentError(absl::StrCat(
      "engine '", text, "' is unknown; accepted: accounting, cpu, cuda, cuda_shared, provenance"));
}

bool NeedsGpus(EngineKind engine) {
  return engine == EngineKind::kCuda || engine == EngineKind::kCudaShared;
}

bool MovesValues(EngineKind engine) { return engine == EngineKind::kCpu || NeedsGpus(engine); }

absl::StatusOr<CaseEngine> MakeCaseEngine(const RunDescription& run, const CaseOptions& options,
                                          bool with_oracle) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  with_oracle = with_oracle && options.judges();
  SHARDPROOF_RETURN_IF_ERROR(CheckRanks(run, options));
  CaseEngine made;
  if (options.engine == EngineKind::kAccounting) {
    SHARDPROOF_ASSIGN_OR_RETURN(made.engine, MakeAccountingEngine(run, options.memory_limit_bytes));
    return made;
  }
  const EngineParts parts = options.make_parts ? options.make_parts(run) : PlannedParts(run);
  if (options.engine == EngineKind::kProvenance) {
    SHARDPROOF_ASSIGN_OR_RETURN(made.engine,
                                MakeProvenanceEngine(run, parts, options.memory_limit_bytes));
    return made;
  }
  if (NeedsGpus(options.engine)) {
    SHARDPROOF_ASSIGN_OR_RETURN(made, MakeDeviceEngine(run, options, parts, with_oracle));
  } else {
    const MemoryBudget budget = {.limit_bytes = options.memory_limit_bytes,
                                 .others_bytes = with_oracle ? OracleBytes(run, options) : 0};
    World* const world = options.ranks.agreement == nullptr ? nullptr : options.ranks.world;
    SHARDPROOF_ASSIGN_OR_RETURN(made.engine, MakeCpuEngine(run, parts, budget, world));
  }
  if (options.ranks.agreement != nullptr) {
    made.engine = MakeGatheredEngine(run, parts, std::move(made.engine), *options.ranks.agreement);
  } else if (NeedsGpus(options.engine)) {
    made.engine = MakeReplayedEngine(run, parts, std::move(made.engine));
  }
  return made;
}

absl::StatusOr<CaseResult> RunCase(const RunDescription& run, const CaseOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(Validate(run));
  // An unknown check is the caller's mistake even where the trainer refuses the run.
  for (const std::string& name : options.checks) {
    SHARDPROOF_RETURN_IF_ERROR(MakeCheck(name).status());
  }
  absl::StatusOr<CaseEngine> engine = MakeCaseEngine(run, options, /*with_oracle=*/true);
  const absl::Status made = AgreeOn(options, engine.status());
  if (absl::IsUnimplemented(made)) {
    CaseResult result;
    result.verdict = Verdict::kRefused;
    result.refusal = std::string(made.message());
    return result;
  }
  SHARDPROOF_RETURN_IF_ERROR(made);
  absl::StatusOr<CaseResult> result =
      options.judges() ? Judge(*engine, run, options) : Execute(*engine->engine, run);
  SHARDPROOF_RETURN_IF_ERROR(AgreeOn(options, result.status()));
  return result;
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
