// Engines that show a step of all ranks from engines that do not see all of it.
//
// What is missing: parameter versions, where values move outside of the engine's sight
// (MakeReplayedEngine), and the ranks of other processes (MakeGatheredEngine).
#ifndef TRAINER_ENGINES_GATHERED_ENGINE_H_
#define TRAINER_ENGINES_GATHERED_ENGINE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/agreement.h"
#include "trainer/engines/engine.h"
#include "trainer/engines/engine_parts.h"

namespace shardproof {

// `engine` executes all ranks of `parts` in this process. Its steps, with parameter versions as
// VersionReplay tells them. `run` outlives the result.
std::unique_ptr<Engine> MakeReplayedEngine(const RunDescription& run, EngineParts parts,
                                           std::unique_ptr<Engine> engine);

// `engine` executes this process's ranks of `parts`; every process of the job has such a one, and
// they call Step alike. On rank 0 the step is that of all ranks, in rank order, with parameter
// versions as VersionReplay tells them; on others it is their own. Values of other ranks are in the
// memory into which they were received, which serves every step; those of this process's ranks are
// `engine`'s. An error of any rank ends the
// step on all of them, with the cause (Agreement), after some seconds more than the agreement's
// timeout at most. `run` and `agreement` outlive the result.
std::unique_ptr<Engine> MakeGatheredEngine(const RunDescription& run, EngineParts parts,
                                           std::unique_ptr<Engine> engine, Agreement& agreement);

// One step from those of some ranks each. Pointers of the result are those of the parts.
// InvalidArgument that names the rank: parts of different steps, a rank of the run that no part
// shows or that two do, and parts of which only some show losses, clips or devices.
absl::StatusOr<StepObservation> MergeSteps(const RunDescription& run,
                                           const std::vector<StepObservation>& parts);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_GATHERED_ENGINE_H_
