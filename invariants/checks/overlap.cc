#include "invariants/checks/overlap.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "invariants/checks/describe.h"
#include "invariants/checks/happens_before.h"

namespace shardproof {
namespace {

bool IsReduction(const Event& event) {
  return event.kind == EventKind::kCollective && event.purpose == Purpose::kReduceGradients;
}

bool IsBackward(const Event& event) {
  return event.kind == EventKind::kCompute && event.phase == Phase::kBackward;
}

class Overlap final : public Check {
 public:
  absl::string_view name() const override { return "overlap"; }
  void Begin(const RunDescription& run) override { run_ = &run; }

  void Step(const StepObservation& observed, const ReferenceStep*) override {
    if (observed.events.empty()) {
      findings_.NotObserved("no events were shown");
      return;
    }
    if (RanksShown(observed.events) != run_->sharding.world_size.value) {
      findings_.NotObserved("the events of some ranks were not shown");
    }
    findings_.Observed();
    if (run_->sharding.prefetch == Prefetch::kNone) {
      findings_.Note("prefetch none waits for each reduction by its rule");
      return;
    }
    order_.Build(observed.events);
    for (size_t entry = 0; entry < observed.events.size(); ++entry) {
      JudgeRank(observed, static_cast<int32_t>(entry));
    }
  }

  CheckResult Finish() override { return findings_.Finish(); }

 private:
  void JudgeRank(const StepObservation& observed, int32_t entry) {
    const RankEvents& events = observed.events[entry];
    int32_t reduction = -1;  // with no backward behind it yet
    for (int32_t i = 0; i < static_cast<int32_t>(events.events.size()); ++i) {
      const Event& event = events.events[i];
      if (IsReduction(event)) reduction = i;
      if (!IsBackward(event)) continue;
      if (reduction >= 0 && Serialised(events, entry, reduction, i)) {
        findings_.Add([&] { return Serial(observed, events, reduction, i); });
      }
      reduction = -1;
    }
  }

  bool Serialised(const RankEvents& events, int32_t entry, int32_t reduction,
                  int32_t compute) const {
    const Event& first = events.events[reduction];
    const Event& second = events.events[compute];
    if (first.micro_batch != second.micro_batch) return false;
    return order_.Before(entry, reduction, compute) && !ShareBuffer(events, first, second);
  }

  static bool ShareBuffer(const RankEvents& events, const Event& first, const Event& second) {
    for (const Access& a : AccessesOf(events, first)) {
      for (const Access& b : AccessesOf(events, second)) {
        if (a.buffer == b.buffer) return true;
      }
    }
    return false;
  }

  Violation Serial(const StepObservation& observed, const RankEvents& events, int32_t reduction,
                   int32_t compute) const {
    const Event& event = events.events[compute];
    Violation violation;
    violation.rule = "computation goes on beside the reduction that was just issued";
    violation.rank = events.ranks.first;
    violation.step = observed.step;
    violation.event = compute;
    violation.unit = SetName(run_->model, event.unit, event.bucket);
    violation.expected =
        absl::StrCat("no order between ", EventText(run_->model, events, reduction),
                     " and what is computed next");
    violation.actual =
        absl::StrCat(EventText(run_->model, events, compute), " waits until it has ended");
    violation.likely_cause =
        "a wait that guards against a race somewhere else, or one stream for both";
    return violation;
  }

  const RunDescription* run_ = nullptr;
  HappensBefore order_;
  Findings findings_{"overlap"};
};

}  // namespace

std::unique_ptr<Check> MakeOverlap() { return std::make_unique<Overlap>(); }

}  // namespace shardproof
