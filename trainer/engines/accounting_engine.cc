#include "trainer/engines/accounting_engine.h"

#include <utility>

#include "invariants/run_description/status_macros.h"
#include "trainer/engines/plan_observer.h"
#include "trainer/plan/planner.h"

namespace shardproof {
namespace {

class AccountingEngine : public Engine {
 public:
  explicit AccountingEngine(const RunDescription& run)
      : run_(run), placement_(MakePlacement(run)) {}

  absl::StatusOr<const StepObservation*> Step() override {
    const int64_t step = next_step_++;
    // The third step repeats the second: only the first has no gradients to free.
    if (step <= 1) Observe(/*first_step=*/step == 0);
    observation_.step = step;
    return &observation_;
  }

 private:
  void Observe(bool first_step) {
    observation_.events.clear();
    observation_.states.clear();
    const int32_t ranks = run_.sharding.world_size.value;
    const bool ranks_differ = RanksDiffer();
    const bool states_alike = run_.sharding.mode == Mode::kReplicated;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const bool plans = rank == 0 || ranks_differ;
      const StepPlan plan = plans ? PlanStep(run_, placement_, Rank{rank}, first_step)
                                  : PlanState(run_, placement_, Rank{rank});
      if (plans) {
        observation_.events.push_back(EventsOfPlan(plan, {rank, 1, ranks_differ ? 1 : ranks}));
      }
      observation_.states.push_back(StateOf(plan, {rank, 1, states_alike ? ranks : 1}));
      if (states_alike) break;
    }
  }

  // Whether some set belongs to one rank alone, so that ranks issue different updates.
  bool RanksDiffer() const {
    for (const TensorSet& set : placement_.sets) {
      if (set.owner >= 0) return true;
    }
    return false;
  }

  RankState StateOf(const StepPlan& plan, Group ranks) const {
    RankState state;
    state.ranks = ranks;
    state.bytes = BytesOfPlan(placement_, plan);
    ForEachStateSegment(
        placement_, plan, [&](StateClass cls, int32_t buffer, int64_t offset, const Segment& s) {
          if (cls != StateClass::kExpAvg) return;
          state.segments.push_back({cls, s.tensor, {s.first, s.count}, buffer, offset, nullptr});
        });
    return state;
  }

  const RunDescription& run_;
  const Placement placement_;
  int64_t next_step_ = 0;
  StepObservation observation_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeAccountingEngine(const RunDescription& run) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  return std::make_unique<AccountingEngine>(run);
}

}  // namespace shardproof
