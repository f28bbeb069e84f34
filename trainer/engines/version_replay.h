// VersionReplay: the parameter versions that a step's accesses meet, from the plans of all ranks.
//
// An engine whose ranks run in several processes, or whose operations run on a GPU, does not see
// what a read meets. This plays every rank's plan in issue order, each collective carrying the
// versions that its members had when they issued it, and moves no values. On a schedule that
// breaks this order other versions may be met: that no schedule does is the rule of the check
// `ordering`, and that values are right numeric_equivalence's.
#ifndef TRAINER_ENGINES_VERSION_REPLAY_H_
#define TRAINER_ENGINES_VERSION_REPLAY_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/engine_parts.h"

namespace shardproof {

class VersionReplay {
 public:
  virtual ~VersionReplay() = default;
  // Plays the next training step. `events`: of every rank, in rank order, as EventsOfPlan gives
  // them; fills in Access::version. DeadlineExceeded where the plans wait for each other.
  virtual absl::Status Step(std::vector<RankEvents>& events) = 0;
};

// `run` outlives the result. The plans asked of `parts` are those of the engine.
std::unique_ptr<VersionReplay> MakeVersionReplay(const RunDescription& run, EngineParts parts);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_VERSION_REPLAY_H_
