// RunTrainerCase: one run of a trainer under test (sharded_trainer.h) beside the oracle, through
// the checks, to a verdict. What RunCase is for our own engines.
#ifndef INVARIANTS_SUITE_TRAINER_CASE_H_
#define INVARIANTS_SUITE_TRAINER_CASE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/judge_steps.h"
#include "invariants/suite/sharded_trainer.h"

namespace shardproof {

struct TrainerCaseOptions {
  std::vector<std::string> checks = {};  // names; empty: all nine
  // Wall time for one step of all ranks. Ranks that wait for each other end at once; this is
  // for one that computes forever.
  absl::Duration step_timeout = absl::Seconds(60);
};

// Makes a trainer for each rank of a simulated world and trains the run's steps. Each step ends on
// all ranks before any is shown.
//
// A refusal (Unimplemented from `make` on every rank, or a model without arithmetic) is a
// result. A check for which the trainer told too little says not_observed.
// Errors: the run is invalid; a check is unknown; else "trainer 'NAME': ..." with
//   - the rank, the step (or "make") and the words of an error that a trainer returned
//   - who waits for which collective and who is missing
//   - an observation that contradicts itself (trainer_observation.h)
//   - ranks that do not agree on a refusal
// After a timeout the thread of the rank that did not end is left behind, with what it uses.
absl::StatusOr<CaseResult> RunTrainerCase(const TrainerUnderTest& trainer,
                                          const RunDescription& run,
                                          const TrainerCaseOptions& options);

// Reads what RunLine (run_case.h) writes: a line, or JSON.
absl::StatusOr<RunDescription> ParseRunText(absl::string_view text);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_TRAINER_CASE_H_
