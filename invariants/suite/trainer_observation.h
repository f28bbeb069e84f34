// From what the ranks of a trainer under test told to one StepObservation, or why it is none.
//
// Checks read observations of unknown origin, but a claim that contradicts itself is better said
// once, in the trainer's words, than as the dozen violations that follow from it.
#ifndef INVARIANTS_SUITE_TRAINER_OBSERVATION_H_
#define INVARIANTS_SUITE_TRAINER_OBSERVATION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/sharded_trainer.h"

namespace shardproof {

// What one rank told of one step; both outlive the observation.
struct RankStep {
  const RankReport* report = nullptr;
  const StepLog* log = nullptr;
};

// `ranks`: by rank, all of the run. The observation's values are the reports'.
//
// What nobody told is empty in the observation, and the checks that need it say not_observed. A
// step in which no rank started a collective has events in any case, namely none: that is what
// the communicators saw.
// InvalidArgument, naming step, rank, what was told and what would be accepted:
//   - something that only some ranks told: state, operations, a loss, a clip
//   - a tensor, buffer, unit, stage or micro-batch that the run does not have
//   - a range outside its tensor or buffer, values of another length than their range, null values
//   - two counters of one tensor, or a count or number of bytes below 0
//   - a label that no collective followed
// What is consistent and wrong (a tensor that is shown by nobody, say) is for the checks.
absl::StatusOr<StepObservation> MergeStep(const RunDescription& run, int64_t step,
                                          Arithmetic arithmetic, absl::Span<const RankStep> ranks);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_TRAINER_OBSERVATION_H_
