#include "trainer/engines/accounting_engine.h"

#include <algorithm>
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
    if (step == 0) ObserveStates();
    // The third step repeats the second: only the first has no gradients to free.
    if (step <= 1) ObserveEvents(/*first_step=*/step == 0);
    observation_.step = step;
    return &observation_;
  }

 private:
  void ObserveEvents(bool first_step) {
    const Group all = {0, 1, run_.sharding.world_size.value};
    observation_.events.clear();
    observation_.events.push_back(
        EventsOfPlan(PlanStep(run_, placement_, Rank{0}, first_step), all));
  }

  void ObserveStates() {
    const int32_t ranks = run_.sharding.world_size.value;
    const bool alike = run_.sharding.mode == Mode::kReplicated;
    const bool owners = HasOwners();
    StepPlan plan = PlanState(run_, placement_, Rank{0});
    for (int32_t rank = 0; rank < (alike ? 1 : ranks); ++rank) {
      if (rank > 0 && owners) plan = PlanState(run_, placement_, Rank{rank});
      // Owners have buffers of their own, and the events shown know only rank 0's.
      const bool buffers_known = rank == 0 || !owners;
      RankState state;
      state.ranks = {rank, 1, alike ? ranks : 1};
      state.bytes = BytesOfRank(placement_, Rank{rank});
      ForEachStateSegment(placement_, plan.homes, Rank{rank}, StateClass::kExpAvg,
                          [&](int32_t buffer, int64_t offset, const Segment& segment) {
                            state.segments.push_back({StateClass::kExpAvg,
                                                      segment.tensor,
                                                      {segment.first, segment.count},
                                                      buffers_known ? buffer : -1,
                                                      offset,
                                                      nullptr});
                          });
      observation_.states.push_back(std::move(state));
    }
  }

  // Whether moments of some set are on one rank alone, so that ranks have other buffers.
  bool HasOwners() const {
    return std::any_of(placement_.sets.begin(), placement_.sets.end(),
                       [](const TensorSet& set) { return set.owner >= 0; });
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
