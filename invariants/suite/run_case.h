// RunCase: one RunDescription through an engine, the oracle and the checks, to a verdict.
//
// The audit, the Bazel targets, the fuzzer and the benchmark all call this.
//
// It knows no GPUs itself: a program that has them gives a DeviceEngineFactory (cuda_case.h). Where
// the ranks of a run are in several processes, each calls RunCase with the same run and options;
// rank 0 judges, the others execute.
#ifndef INVARIANTS_SUITE_RUN_CASE_H_
#define INVARIANTS_SUITE_RUN_CASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/world.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/judge_steps.h"
#include "trainer/engines/agreement.h"
#include "trainer/engines/engine.h"
#include "trainer/engines/engine_parts.h"
#include "trainer/model/model_compute.h"

namespace shardproof {

// kCuda: a GPU a rank, through NCCL. kCudaShared: all ranks share the first GPU of this process.
enum class EngineKind : uint8_t { kCpu, kAccounting, kProvenance, kCuda, kCudaShared };

absl::string_view Name(EngineKind engine);
absl::StatusOr<EngineKind> ParseEngineKind(absl::string_view text);
bool NeedsGpus(EngineKind engine);
// Whether the engine computes values, so that all nine checks find their evidence.
bool MovesValues(EngineKind engine);

// What executes a case, and with what its oracle computes layers.
struct CaseEngine {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<ModelCompute> oracle_compute = {};  // null: MakeModelCompute's
  // What went wrong in oracle_compute, asked while the oracle lives. May be empty.
  std::function<absl::Status()> oracle_status = {};
};

// Makes what runs on this process's GPUs: an engine of its ranks, which shows these, and on the
// rank that judges (`with_oracle`) the oracle's arithmetic. Errors that say what is missing: no
// GPU, too few, a build without CUDA. Unimplemented as MakeCpuEngine, on all ranks alike.
using DeviceEngineFactory = std::function<absl::StatusOr<CaseEngine>(
    const RunDescription& run, EngineKind engine, const EngineParts& parts, bool with_oracle)>;

// Where ranks run. As it is: all in this process. Everything outlives the case.
struct CaseRanks {
  Agreement* agreement = nullptr;  // of the processes, one rank each; null: all ranks are here
  World* world = nullptr;          // how ranks of the cpu engine meet then; null: they cannot
};

struct CaseOptions {
  EngineKind engine = EngineKind::kCpu;
  std::vector<std::string> checks = {};  // names; empty: all nine, and provenance on that engine
  // What engine and oracle together may use; the cpu engine refuses more.
  int64_t memory_limit_bytes = int64_t{1} << 40;
  // Called after each step, for progress. May be empty.
  std::function<void(int64_t steps_done)> on_step = {};
  // What the engine executes; empty: PlannedParts, the trainer as it is. The accounting engine
  // takes no other.
  std::function<EngineParts(const RunDescription&)> make_parts = {};
  DeviceEngineFactory make_device_engine = {};  // for the engines that need GPUs
  CaseRanks ranks = {};

  // Whether this process judges: it has all ranks, or rank 0.
  bool judges() const {
    return ranks.agreement == nullptr || ranks.agreement->job().rank().value == 0;
  }
};

// The engine that RunCase judges. On the rank that judges it shows all ranks, with parameter
// versions; on others their own. `run` and what `options` points to outlive it. `with_oracle`:
// the one that judges will compare it, so that the oracle's memory is part of the memory allowed.
// Errors as RunCase's, and Unimplemented for a refusal, of this process alone.
absl::StatusOr<CaseEngine> MakeCaseEngine(const RunDescription& run, const CaseOptions& options,
                                          bool with_oracle);

// A refusal is a result, not an error. ResourceExhausted: the run needs more memory than
// allowed. Other errors: the run is invalid, or the engine failed (a deadlock, say). In several
// processes all have the same result or error (Agreement), but only rank 0 has the checks'.
absl::StatusOr<CaseResult> RunCase(const RunDescription& run, const CaseOptions& options);

// Bytes of physical memory that are free now, from /proc/meminfo; 1 TiB where there is none.
int64_t AvailableMemoryBytes();

// The run as one line that ParseRun or ParseRunJson reads back: the short form, which names the
// model, or the JSON where a model made by hand is not what its name would import. Names of units
// do not matter: the short form has none.
std::string RunLine(const RunDescription& run);

// The command that runs this case again by itself.
std::string ReplayLine(const RunDescription& run, EngineKind engine);
// The command that judges this observation file again.
std::string ReplayLine(absl::string_view observation_path);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_RUN_CASE_H_
