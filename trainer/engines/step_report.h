// What engines that compute show of a rank besides its events: the state that it keeps, and which
// of its collectives were carried out.
#ifndef TRAINER_ENGINES_STEP_REPORT_H_
#define TRAINER_ENGINES_STEP_REPORT_H_

#include <cstdint>
#include <functional>

#include "absl/types/span.h"
#include "collectives/ledger.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"
#include "trainer/plan/step_plan.h"
#include "trainer/sharding/placement.h"

namespace shardproof {

// Everything that a rank keeps between steps, with no update done. `values` gives the place of a
// buffer's values, which outlive the result.
RankState StateOfRank(const RunDescription& run, const Placement& placement,
                      absl::Span<const SetHome> homes, Rank rank, const StateBytes& bytes,
                      const std::function<const float*(int32_t buffer)>& values);

// Writes what parameters and moments hold before the first step, and PaddingValue into their
// padding. Gradients get their first values from backward.
void FillInitialState(const RunDescription& run, const Placement& placement, const StepPlan& plan,
                      const std::function<float*(int32_t buffer)>& values);

// What a collective's event shows is what the communicator was asked for, not what was planned.
// `place` is, by operation, its place among `calls`; -1 where it was not started.
void ShowCalls(absl::Span<const LedgerEntry> calls, absl::Span<const int32_t> place,
               RankEvents& events);

// Where nothing is trainable nobody does: the loss is part of backward.
bool ComputesLoss(const StepPlan& plan);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_STEP_REPORT_H_
