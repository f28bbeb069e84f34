// JudgeFile: a run that a trainer wrote down (observation/observation_io.h), judged like one
// that ran here.
//
// The oracle trains along where it can: a model of kind mlp or probe in float32, and a first
// step that shows values. It starts from the seeded initial values (FillInitialValues in
// trainer/model/data.h) and the seeded data, which the file's trainer must have used; one
// that did not leaves values out, and the checks of values say not_observed. A trainer whose sums
// have no fixed order says any_order in every step of the file: the first one decides whether the
// oracle keeps what the bounds need.
#ifndef INVARIANTS_SUITE_JUDGE_FILE_H_
#define INVARIANTS_SUITE_JUDGE_FILE_H_

#include <cstdint>
#include <istream>

#include "absl/status/statusor.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/judge_steps.h"

namespace shardproof {

struct JudgedFile {
  RunDescription run;
  CaseResult result;
};

// The oracle of a run whose first step is `first`. One that needs more than
// `memory_limit_bytes` is missing, and says so. Errors: the run contradicts itself.
absl::StatusOr<Oracle> OracleFor(const RunDescription& run, const StepObservation& first,
                                 int64_t memory_limit_bytes);

// InvalidArgument as ObservationReader; unknown checks as JudgeSteps. ResourceExhausted: a step
// of the run is more than `memory_limit_bytes` can judge.
absl::StatusOr<JudgedFile> JudgeFile(std::istream* input, const ModelImporter& importer,
                                     int64_t memory_limit_bytes, const JudgeOptions& options);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_JUDGE_FILE_H_
