#include "invariants/checks/aggregate_factors.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/checks/issued_items.h"
#include "invariants/closed_forms/closed_forms.h"

namespace shardproof {
namespace {

// The members of StateBytes, so that one loop treats the five classes.
struct ByteClass {
  absl::string_view name;
  int64_t StateBytes::*bytes;
};

constexpr ByteClass kByteClasses[] = {{"parameter", &StateBytes::parameter},
                                      {"gradient", &StateBytes::gradient},
                                      {"optimizer", &StateBytes::optimizer},
                                      {"padding", &StateBytes::padding},
                                      {"scalar", &StateBytes::scalar}};

double Ratio(int64_t actual, int64_t expected) {
  return expected == 0 ? 0 : static_cast<double>(actual) / static_cast<double>(expected);
}

class AggregateFactors : public Check {
 public:
  absl::string_view name() const override { return "aggregate_factors"; }
  void Begin(const RunDescription& run) override;
  void Step(const StepObservation& observed, const ReferenceStep* reference) override;
  CheckResult Finish() override;

 private:
  void CheckRanks(int64_t step, const RankState& state);
  void CheckSum(int64_t step);
  void CheckSegments(int64_t step, const RankState& state, bool all_classes);
  void AddDifference(int64_t step, int32_t rank, const ByteClass& of, int64_t expected,
                     int64_t actual);
  std::string Cause(const ByteClass& of, bool one_rank, int64_t expected, int64_t actual) const;

  Findings findings_{"aggregate_factors"};
  const RunDescription* run_ = nullptr;
  absl::string_view undefined_;
  std::vector<StateBytes> expected_;  // by rank
  StateBytes expected_sum_;
  StateBytes whole_;  // what one rank without any sharding holds
  RankCoverage coverage_;
  StateBytes sum_;  // of the step at hand
};

void AggregateFactors::Begin(const RunDescription& run) {
  run_ = &run;
  undefined_ = NoStateRule(run);
  const int32_t ranks = run.sharding.world_size.value;
  coverage_.Begin(ranks);
  const ClosedForms forms(run);
  expected_.reserve(ranks);
  for (int32_t r = 0; r < ranks; ++r) {
    expected_.push_back(forms.State(Rank{r}));
    for (const ByteClass& of : kByteClasses) expected_sum_.*of.bytes += expected_[r].*of.bytes;
  }
  whole_.parameter = 4 * ParameterElements(run.model);
  whole_.gradient = 4 * TrainableElements(run.model);
  whole_.optimizer = whole_.gradient * MomentsOf(run.optimizer);
}

void AggregateFactors::Step(const StepObservation& observed, const ReferenceStep*) {
  if (!undefined_.empty()) return;
  if (observed.states.empty()) {
    findings_.NotObserved(absl::StrCat("step ", observed.step, " showed no state of its ranks"));
    return;
  }
  findings_.Observed();
  coverage_.Clear();
  sum_ = StateBytes();
  bool all_classes = false;  // more than who owns what
  for (const RankState& state : observed.states) {
    const int32_t bad = coverage_.Add(state.ranks);
    if (bad >= 0) {
      findings_.Add([&] {
        return Violation{.rule = "the states stand for every rank of the run, each once",
                         .rank = bad,
                         .step = observed.step,
                         .expected = absl::StrCat("ranks 0 to ", expected_.size() - 1, ", once"),
                         .actual = absl::StrCat("rank ", bad, " again, or no rank of the run")};
      });
      return;  // the sums of such a step mean nothing
    }
    CheckRanks(observed.step, state);
    for (const StateSegment& segment : state.segments) {
      all_classes = all_classes || segment.state != StateClass::kExpAvg;
    }
  }
  for (const RankState& state : observed.states) {
    if (!state.segments.empty()) CheckSegments(observed.step, state, all_classes);
  }
  if (const int32_t missing = coverage_.Missing(); missing >= 0) {
    findings_.Add([&] {
      return Violation{.rule = "the states stand for every rank of the run, each once",
                       .rank = missing,
                       .step = observed.step,
                       .expected = "a state",
                       .actual = "none"};
    });
    return;
  }
  CheckSum(observed.step);
}

void AggregateFactors::CheckRanks(int64_t step, const RankState& state) {
  for (int32_t i = 0; i < state.ranks.count; ++i) {
    const int32_t rank = state.ranks.member(i).value;
    for (const ByteClass& of : kByteClasses) {
      const int64_t actual = state.bytes.*of.bytes;
      sum_.*of.bytes += actual;
      const int64_t expected = expected_[rank].*of.bytes;
      if (actual != expected) AddDifference(step, rank, of, expected, actual);
    }
  }
}

void AggregateFactors::CheckSum(int64_t step) {
  for (const ByteClass& of : kByteClasses) {
    const int64_t expected = expected_sum_.*of.bytes;
    const int64_t actual = sum_.*of.bytes;
    if (actual != expected) AddDifference(step, /*rank=*/-1, of, expected, actual);
  }
}

void AggregateFactors::AddDifference(int64_t step, int32_t rank, const ByteClass& of,
                                     int64_t expected, int64_t actual) {
  findings_.Add([&] {
    const bool one_rank = rank >= 0;
    return Violation{.rule = absl::StrCat(
                         of.name, " bytes ", one_rank ? "on each rank" : "in sum over the ranks",
                         " equal the closed form of ", ModeRowName(run_->sharding)),
                     .rank = rank,
                     .step = step,
                     .expected = absl::StrCat(expected, " bytes"),
                     .actual = absl::StrCat(actual, " bytes"),
                     .ratio = Ratio(actual, expected),
                     .likely_cause = Cause(of, one_rank, expected, actual)};
  });
}

std::string AggregateFactors::Cause(const ByteClass& of, bool one_rank, int64_t expected,
                                    int64_t actual) const {
  const int64_t whole = one_rank ? whole_.*of.bytes : whole_.*of.bytes * expected_.size();
  if (actual == whole && expected < whole) {
    return absl::StrCat(of.name,
                        " is not sharded: ", one_rank ? "the rank holds" : "every rank holds",
                        " all of it; look at who owns its segments");
  }
  if (actual == 0) return absl::StrCat("no ", of.name, " was kept, or it was not counted");
  if (of.bytes == &StateBytes::padding) {
    return "another layout, or padding to another multiple, than the run description says";
  }
  if (of.bytes == &StateBytes::scalar) {
    return "step counters are not one for each tensor with state on the rank";
  }
  if (of.bytes == &StateBytes::optimizer && 2 * actual == expected) {
    return "one of the two moments is missing";
  }
  const std::string ratio = NameRatio(Ratio(actual, expected), *run_);
  if (!ratio.empty()) {
    return absl::StrCat(ratio, " times the bytes: sharded over another number of ranks?");
  }
  return one_rank ? "other elements than the layout gives to this rank; compare its segments with "
                    "the layout"
                  : "the ranks named above";
}

void AggregateFactors::CheckSegments(int64_t step, const RankState& state, bool all_classes) {
  StateBytes shown;
  int64_t exp_avg = 0;
  for (const StateSegment& segment : state.segments) {
    const int64_t bytes = 4 * segment.range.count;
    if (segment.tensor < 0) {
      shown.padding += bytes;
      continue;
    }
    switch (segment.state) {
      case StateClass::kParameter:
        shown.parameter += bytes;
        break;
      case StateClass::kReducedGradient:
        shown.gradient += bytes;
        break;
      case StateClass::kExpAvg:
        exp_avg += bytes;
        shown.optimizer += bytes;
        break;
      case StateClass::kExpAvgSq:
        shown.optimizer += bytes;
        break;
    }
  }
  const int64_t moments = MomentsOf(run_->optimizer);
  // Exp_avg alone says who owns what, and stands for all moments. An optimizer without moments
  // has none to show: there exp_avg counts like any other class.
  if (!all_classes && moments > 0) shown.optimizer = moments * exp_avg;
  for (const ByteClass& of : kByteClasses) {
    if (of.bytes == &StateBytes::scalar) continue;  // counters have no segments
    if (!all_classes && of.bytes != &StateBytes::optimizer) continue;
    const int64_t stated = state.bytes.*of.bytes;
    const int64_t found = shown.*of.bytes;
    if (found == stated) continue;
    findings_.Add([&] {
      return Violation{
          .rule = absl::StrCat("the segments of a rank add up to its stated ", of.name, " bytes"),
          .rank = state.ranks.first,
          .step = step,
          .expected = absl::StrCat(stated, " bytes, as stated"),
          .actual = absl::StrCat(found, " bytes in segments"),
          .ratio = Ratio(found, stated),
          .likely_cause = "the inventory is counted from something else than the buffers it shows"};
    });
  }
}

CheckResult AggregateFactors::Finish() {
  if (!undefined_.empty()) findings_.NotObserved(undefined_);
  return findings_.Finish();
}

}  // namespace

std::unique_ptr<Check> MakeAggregateFactors() { return std::make_unique<AggregateFactors>(); }

}  // namespace shardproof
