// RunCase: one RunDescription through an engine, the oracle and the checks, to a verdict.
//
// The audit, the Bazel targets, the fuzzer and the benchmark all call this.
#ifndef INVARIANTS_SUITE_RUN_CASE_H_
#define INVARIANTS_SUITE_RUN_CASE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/judge_steps.h"
#include "trainer/engines/engine_parts.h"

namespace shardproof {

enum class EngineKind : uint8_t { kCpu, kAccounting, kProvenance };

absl::string_view Name(EngineKind engine);
absl::StatusOr<EngineKind> ParseEngineKind(absl::string_view text);

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
};

// A refusal is a result, not an error. ResourceExhausted: the run needs more memory than
// allowed. Other errors: the run is invalid, or the engine failed (a deadlock, say).
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
