// RunEdited: one run of an edited trainer through all checks, to the names of those that object.
#ifndef PROPERTY_TESTS_FAULTS_KILL_H_
#define PROPERTY_TESTS_FAULTS_KILL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/checks/check.h"
#include "invariants/suite/run_case.h"
#include "property_tests/faults/fault.h"

namespace shardproof {

// What a verification suite of today checks, each as such suites have it:
//   factors      sums over the ranks of parameter, gradient and optimizer bytes, over the model's
//   params_1e-4  parameters within 1e-4 of replicated training, after every step
//   counts       how many collectives of each kind a step has
//   padding      every element held exactly once, offsets that round-trip; no poison
//   lifecycle    gathered before computation, sharded when idle; no versions
// Padding and lifecycle see all that those checks see, less the rules that need poison and
// versions, so their score is an upper bound.
std::vector<std::string> ClassicCheckNames();

// What executes edited trainers: an engine that moves values and then, unless it ended in an error
// or a refusal, the provenance engine.
struct KillEngines {
  EngineKind values = EngineKind::kCpu;
  bool provenance = true;
  DeviceEngineFactory make_device_engine = {};  // of an engine that needs GPUs
  CaseRanks ranks = {};                         // with processes: without provenance
};

struct KillReport {
  // Checks with verdict fail on either engine, in the order of AllCheckNames(); then kEngineError
  // where ranks hang or disagree.
  std::vector<std::string> killers;
  // Checks without a verdict: any on the engine with values, provenance on its own.
  std::vector<std::string> unjudged;
  std::vector<std::string> classic;  // those of ClassicCheckNames() that object
  // The engine's error. One that is no hang and no disagreement kills nothing: the edit is no plan
  // that can run.
  absl::Status error;
  std::string refusal;                   // why an engine declined; empty if none did
  std::vector<CheckResult> failures;     // for messages: each failed check once
  EngineKind engine = EngineKind::kCpu;  // of the first failure
};

// DeadlineExceeded or FailedPrecondition: ranks that wait for each other or call different things.
bool IsHangOrDisagreement(const absl::Status& error);

bool Killed(const KillReport& report);
bool KilledBy(const KillReport& report, absl::string_view check);

// The column names of a kill matrix: the nine checks, overlap, provenance, kEngineError.
std::vector<std::string> KillerNames();

absl::StatusOr<RunDescription> ParseFaultRun(absl::string_view line);

// On the engine with values with all nine checks and overlap, then on the provenance engine with
// the nine and provenance. `edit` empty: the trainer as it is. Where the ranks are in several
// processes, only rank 0's report says what the checks found; an error is in all of them.
KillReport RunEdited(const RunDescription& run, const PartsEdit& edit,
                     const KillEngines& engines = {});

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_KILL_H_
