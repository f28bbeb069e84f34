// JudgeSteps: the steps of one run through the checks, beside the oracle, to a verdict.
//
// The one loop over steps of every program: where they come from, an engine or a file, is the
// caller's.
#ifndef INVARIANTS_SUITE_JUDGE_STEPS_H_
#define INVARIANTS_SUITE_JUDGE_STEPS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "invariants/checks/check.h"
#include "invariants/checks/numeric_equivalence.h"
#include "invariants/observation/observation.h"
#include "invariants/report/figures.h"
#include "invariants/run_description/run_description.h"
#include "trainer/replicated/replicated_trainer.h"

namespace shardproof {

struct CaseResult {
  Verdict verdict = Verdict::kPass;  // fail over refused over pass
  std::string refusal;               // why the trainer declined; else empty
  // Another process judged the run, which this one only helped to execute: neither checks nor
  // figures, and a verdict of not_observed.
  bool judged_elsewhere = false;
  std::vector<CheckResult> checks;  // in DESIGN's order; empty when refused
  NumericFigures numeric;
  StepFigures figures;  // of the last step
};

// Gives the next step, which is valid until the next call; null after the last.
using StepSource = std::function<absl::StatusOr<const StepObservation*>()>;

// The unsharded training to compare with, or why there is none: a check that needs it then says
// not_observed with this reason.
struct Oracle {
  std::unique_ptr<ReplicatedTrainer> trainer;
  std::string missing;
};

struct JudgeOptions {
  std::vector<std::string> checks;  // names; empty: all nine
  // Called after each step, for progress. May be empty.
  std::function<void(int64_t steps_done)> on_step;
};

// After a step in any order (StepObservation::any_order) the oracle goes on from the trainer's
// parameters, as far as they were shown, with moments of its own.
// `run` must be valid and outlive the call. Errors: an unknown check, or the source's.
absl::StatusOr<CaseResult> JudgeSteps(const RunDescription& run, const StepSource& next_step,
                                      const Oracle& oracle, const JudgeOptions& options);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_JUDGE_STEPS_H_
