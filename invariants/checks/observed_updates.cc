#include "invariants/checks/observed_updates.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/checks/describe.h"
#include "invariants/checks/optimizer_rule.h"

namespace shardproof {
namespace {

// In the order in which an update computes them.
constexpr StateClass kRemembered[] = {StateClass::kExpAvg, StateClass::kExpAvgSq,
                                      StateClass::kParameter};

size_t At(StateClass state) { return static_cast<size_t>(state); }

double& Member(ElementState& element, StateClass state) {
  switch (state) {
    case StateClass::kExpAvg:
      return element.exp_avg;
    case StateClass::kExpAvgSq:
      return element.exp_avg_sq;
    default:
      return element.parameter;
  }
}

}  // namespace

void ObservedUpdates::Begin(const RunDescription& run) {
  run_ = &run;
  elements_ = TensorElements(run.model);
  has_moments_ = run.optimizer.kind == OptimizerKind::kAdamW || run.optimizer.momentum != 0;
}

void ObservedUpdates::Forget() {
  first_step_ = false;
  past_.clear();
}

std::vector<ObservedUpdates::Deviation> ObservedUpdates::Step(const StepObservation& observed,
                                                              const ReferenceStep& reference) {
  step_ = observed.step;
  initial_ = first_step_ && step_ == 0;
  reference_ = &reference;
  missing_.clear();
  max_share_ = 0;
  deviations_.clear();
  next_.clear();
  for (const RankState& state : observed.states) {
    rank_ = state.ranks.first;
    now_ = Collect(state);
    const auto past = std::find_if(past_.begin(), past_.end(),
                                   [&](const Past& past) { return past.rank == rank_; });
    static const Classes kNothing;
    for (size_t of = 0; of < now_.size(); ++of) {
      now_readers_[of] = {&now_[of]};
      past_readers_[of] = {past == past_.end() ? &kNothing[of] : &past->pieces[of]};
    }
    for (const StateClass judged : kRemembered) {
      for (const Piece& piece : now_[At(judged)]) JudgePiece(piece, judged);
    }
    Remember(state, now_);
  }
  past_ = std::move(next_);
  first_step_ = false;
  std::stable_sort(
      deviations_.begin(), deviations_.end(), [](const Deviation& a, const Deviation& b) {
        // Moments come before the parameters that they move.
        return (a.state == StateClass::kParameter) < (b.state == StateClass::kParameter);
      });
  return std::move(deviations_);
}

ObservedUpdates::Classes ObservedUpdates::Collect(const RankState& state) const {
  Classes pieces;
  for (const StateSegment& segment : state.segments) {
    if (segment.tensor < 0 || segment.range.count <= 0 || segment.values == nullptr) continue;
    if (!LiesInTensor(segment, elements_)) continue;
    if (!run_->model.tensors[segment.tensor].trainable) continue;
    pieces[At(segment.state)].push_back({segment.tensor, segment.range, segment.values});
  }
  for (std::vector<Piece>& of_class : pieces) {
    std::sort(of_class.begin(), of_class.end(), [](const Piece& a, const Piece& b) {
      return std::pair(a.tensor, a.range.first) < std::pair(b.tensor, b.range.first);
    });
  }
  return pieces;
}

// Elements are asked for in order, so that the piece found last mostly has the next one too.
const float* ObservedUpdates::Reader::Find(int32_t tensor, int64_t element) {
  const auto has = [&](const Piece& piece) {
    return piece.tensor == tensor && piece.range.first <= element && element < piece.range.end();
  };
  if (last == nullptr || !has(*last)) {
    const auto after =
        std::upper_bound(pieces->begin(), pieces->end(), std::pair(tensor, element),
                         [](const std::pair<int32_t, int64_t>& place, const Piece& piece) {
                           return place < std::pair(piece.tensor, piece.range.first);
                         });
    if (after == pieces->begin() || !has(*(after - 1))) return nullptr;
    last = &*(after - 1);
  }
  return last->values + (element - last->range.first);
}

void ObservedUpdates::Miss(const char* what, const Piece& piece) {
  if (!missing_.empty()) return;
  missing_ = absl::StrCat("rank ", rank_, " showed no ", what, " of ",
                          TensorName(run_->model, piece.tensor));
}

// What the rank had of the element before the step. False: something needed was not shown.
bool ObservedUpdates::ReadBefore(const Piece& piece, int64_t element, ElementState* before) {
  if (initial_) {
    const float* const values = reference_->tensors[piece.tensor].previous_parameter;
    if (values == nullptr) return false;
    before->parameter = values[element];
    return true;
  }
  for (const StateClass of : kRemembered) {
    if (now_readers_[At(of)].Find(piece.tensor, element) == nullptr) continue;
    const float* const value = past_readers_[At(of)].Find(piece.tensor, element);
    if (value == nullptr) return false;
    Member(*before, of) = *value;
  }
  return true;
}

// Whether the rank shows all of the element that the formula reads; says what is missing.
bool ObservedUpdates::HasAll(const Piece& piece, int64_t element, bool used) {
  const auto shows = [&](StateClass of) {
    return now_readers_[At(of)].Find(piece.tensor, element) != nullptr;
  };
  const bool adam = run_->optimizer.kind == OptimizerKind::kAdamW;
  const char* missing = nullptr;
  if (used && !shows(StateClass::kReducedGradient)) missing = "reduced gradient";
  if (adam && !shows(StateClass::kExpAvgSq)) missing = "exp_avg_sq";
  if (!shows(StateClass::kParameter)) missing = "parameter";
  if (missing != nullptr) Miss(missing, piece);
  return missing == nullptr;
}

void ObservedUpdates::JudgePiece(const Piece& piece, StateClass state) {
  const bool used = IsUsedInStep(*run_, piece.tensor, step_);
  const OptimizerRule rule(HyperParametersOf(run_->optimizer, piece.tensor),
                           std::max<int64_t>(reference_->tensors[piece.tensor].updates, 1));
  for (int64_t i = 0; i < piece.range.count; ++i) {
    const int64_t element = piece.range.first + i;
    const auto now = [&](StateClass of) {
      return now_readers_[At(of)].Find(piece.tensor, element);
    };
    // Another rank updated it. Without moments, the gradient tells who does.
    const StateClass of_updater = has_moments_ ? StateClass::kExpAvg : StateClass::kReducedGradient;
    if ((has_moments_ || used) && now(of_updater) == nullptr) continue;
    if (!HasAll(piece, element, used)) return;
    ElementState before;
    if (!ReadBefore(piece, element, &before)) return Miss("values before the step", piece);
    UpdatedElement expected{before, {}};
    if (used) expected = rule.Apply(*now(StateClass::kReducedGradient), before);
    const double value = Member(expected.value, state);
    // Training that diverged proves nothing here; numeric_equivalence says so.
    if (!std::isfinite(value)) continue;
    const double tolerance = Member(expected.tolerance, state);
    const double apart = static_cast<double>(piece.values[i]) - value;
    if (tolerance > 0 && std::isfinite(apart)) {
      max_share_ = std::max(max_share_, std::abs(apart) / tolerance);
    }
    if (std::abs(apart) <= tolerance) continue;
    deviations_.push_back({state, rank_, piece.tensor, element, piece.values[i], value,
                           Member(before, state), tolerance});
    return;
  }
}

void ObservedUpdates::Remember(const RankState& state, const Classes& now) {
  Past past;
  past.rank = state.ranks.first;
  for (const StateClass of : kRemembered) {
    for (const Piece& piece : now[At(of)]) {
      past.storage.emplace_back(piece.values, piece.values + piece.range.count);
      past.pieces[At(of)].push_back({piece.tensor, piece.range, past.storage.back().data()});
    }
  }
  next_.push_back(std::move(past));
}

}  // namespace shardproof
