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
#include "trainer/replicated/replicated_trainer.h"

namespace shardproof {
namespace {

absl::StatusOr<std::vector<std::unique_ptr<Check>>> MakeChecks(
    const std::vector<std::string>& names) {
  if (names.empty()) return AllChecks();
  std::vector<std::unique_ptr<Check>> checks;
  for (const std::string& name : names) {
    SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<Check> check, MakeCheck(name));
    checks.push_back(std::move(check));
  }
  return checks;
}

Verdict Combine(const std::vector<CheckResult>& checks) {
  for (const CheckResult& check : checks) {
    if (check.verdict == Verdict::kFail) return Verdict::kFail;
  }
  return Verdict::kPass;
}

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const RunDescription& run,
                                                   const CaseOptions& options) {
  if (options.engine == EngineKind::kAccounting) return MakeAccountingEngine(run);
  return MakeCpuEngine(run, options.memory_limit_bytes - ReplicatedTrainer::RequiredBytes(run));
}

absl::Status RunSteps(const RunDescription& run, const CaseOptions& options, Engine& engine,
                      ReplicatedTrainer* oracle, const std::vector<std::unique_ptr<Check>>& checks,
                      CaseResult& result) {
  for (int64_t step = 0; step < run.data.steps; ++step) {
    SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed, engine.Step());
    const ReferenceStep* const reference = oracle == nullptr ? nullptr : &oracle->Step();
    for (const std::unique_ptr<Check>& check : checks) check->Step(*observed, reference);
    if (step + 1 == run.data.steps) result.figures = SummarizeStep(run, *observed);
    if (options.on_step) options.on_step(step + 1);
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view Name(EngineKind engine) {
  return engine == EngineKind::kCpu ? "cpu" : "accounting";
}

absl::StatusOr<EngineKind> ParseEngineKind(absl::string_view text) {
  if (text == "cpu") return EngineKind::kCpu;
  if (text == "accounting") return EngineKind::kAccounting;
  return absl::InvalidArgumentError(
      absl::StrCat("engine '", text, "' is unknown; accepted: accounting, cpu"));
}

absl::StatusOr<CaseResult> RunCase(const RunDescription& run, const CaseOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(Validate(run));
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Check>> checks,
                              MakeChecks(options.checks));
  CaseResult result;
  absl::StatusOr<std::unique_ptr<Engine>> engine = MakeEngine(run, options);
  if (engine.status().code() == absl::StatusCode::kUnimplemented) {
    result.verdict = Verdict::kRefused;
    result.refusal = std::string(engine.status().message());
    return result;
  }
  SHARDPROOF_RETURN_IF_ERROR(engine.status());
  std::unique_ptr<ReplicatedTrainer> oracle;
  if (options.engine == EngineKind::kCpu) {
    SHARDPROOF_ASSIGN_OR_RETURN(oracle, ReplicatedTrainer::Create(run));
  }
  for (const std::unique_ptr<Check>& check : checks) check->Begin(run);
  SHARDPROOF_RETURN_IF_ERROR(RunSteps(run, options, **engine, oracle.get(), checks, result));
  for (const std::unique_ptr<Check>& check : checks) {
    result.checks.push_back(check->Finish());
    if (const auto* numeric = dynamic_cast<const NumericEquivalence*>(check.get())) {
      result.numeric = numeric->figures();
    }
  }
  result.verdict = Combine(result.checks);
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

std::string ReplayLine(const RunDescription& run, EngineKind engine) {
  // A model's path may hold a quote, and the line is pasted into a shell.
  const std::string quoted = absl::StrReplaceAll(PrintRun(run), {{"'", "'\\''"}});
  return absl::StrCat("replay: ci/bazel run //invariants:audit -- --engine=", Name(engine),
                      " --run='", quoted, "'");
}

}  // namespace shardproof
