#include "invariants/checks/clip_equivalence.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "invariants/checks/any_order.h"
#include "invariants/checks/describe.h"

namespace shardproof {
namespace {

// No number is within anything.
bool Within(double actual, double expected, double bound) {
  return std::abs(actual - expected) <= bound;
}

bool SameBits(const ClipObservation& a, const ClipObservation& b) {
  return std::bit_cast<uint64_t>(a.norm) == std::bit_cast<uint64_t>(b.norm) &&
         std::bit_cast<uint32_t>(a.coefficient) == std::bit_cast<uint32_t>(b.coefficient);
}

// How far off a right trainer's numbers may be.
struct Bounds {
  double norm = 0;
  double coefficient = 0;
};

// The norm of what the elements of the gradient may be off by before clipping. Nothing where the
// magnitudes are not known.
std::optional<double> NormOfErrors(const RunDescription& run, const ReferenceStep& reference) {
  const std::vector<int64_t> elements = TensorElements(run.model);
  double squares = 0;
  for (size_t t = 0; t < elements.size(); ++t) {
    const ReferenceTensor& tensor = reference.tensors[t];
    if (tensor.gradient == nullptr) continue;
    if (tensor.gradient_magnitude == nullptr) return std::nullopt;
    for (int64_t i = 0; i < elements[t]; ++i) {
      const double error = GradientTolerance(run, tensor.gradient_magnitude[i]);
      squares += error * error;
    }
  }
  // Magnitudes are shown clipped, like the gradients.
  return reference.used_coefficient > 0 ? std::sqrt(squares) / reference.used_coefficient : 0;
}

// The coefficient falls as the norm grows: the ends of the norm's range are those of its own.
Bounds BoundsOf(const RunDescription& run, const ReferenceStep& reference, double norm_error) {
  if (run.clip_grad_norm <= 0) return {0, kClipTolerance};
  const double norm = reference.gradient_norm;
  const auto coefficient = [&](double of) {
    return std::min(1.0, run.clip_grad_norm / (std::max(of, 0.0) + 1e-6));
  };
  const double expected = coefficient(norm);
  return {norm_error + kClipTolerance * norm, std::max(coefficient(norm - norm_error) - expected,
                                                       expected - coefficient(norm + norm_error)) +
                                                  kClipTolerance * reference.clip_coefficient};
}

Violation Numbers(const char* rule, int32_t rank, int64_t step, double tolerance, double expected,
                  double actual) {
  Violation violation;
  violation.rule = rule;
  violation.rank = rank;
  violation.step = step;
  violation.expected = absl::StrFormat("%.17g", expected);
  violation.actual = absl::StrFormat("%.17g", actual);
  if (expected != 0 && std::isfinite(actual)) {
    violation.ratio = actual / expected;
    if (tolerance > 0) violation.tolerance_share = std::abs(actual - expected) / tolerance;
  }
  return violation;
}

// What the ratio of a wrong norm most often means. Squares are summed, so that what is counted
// n times too often shows as sqrt(n).
std::string CauseOfNorm(const RunDescription& run, double ratio, double actual) {
  const double n = ShardCount(run.sharding);
  const double k = static_cast<double>(run.data.num_micro_batches);
  constexpr double kNear = 0.01;
  struct Known {
    double ratio;
    const char* cause;
  };
  const Known known[] = {
      {std::sqrt(n),
       "sqrt(N): every square was counted N times; what went into the sum over ranks "
       "was of whole gradients, or summed already"},
      {1 / std::sqrt(n),
       "1/sqrt(N): the norm of the rank's own shards alone; the squares were not "
       "summed over the ranks"},
      {n,
       "N: norms were added in place of their squares, or the gradients were not divided by N "
       "yet"},
      {1 / n, "1/N: the sum over ranks was averaged, or the gradients were divided by N again"},
      {k, "K: the gradients were not divided by K yet"},
      {n * k, "NK: the gradients were not divided by N*K yet"}};
  for (const Known& one : known) {
    if (one.ratio != 1 && Within(ratio, one.ratio, kNear * one.ratio)) {
      return absl::StrCat("the ratio is ", one.cause);
    }
  }
  if (std::isnan(actual)) {
    return "something that is no number was counted: padding, or memory never written";
  }
  return ratio > 1 ? "something was counted twice or is no gradient: a tied tensor's copy, "
                     "padding, or a frozen or stale buffer"
                   : "a part was left out: the shards of other ranks, a unit or bucket, or some "
                     "uses of a tied tensor";
}

const char* CauseOfCoefficient(double actual, double expected, bool norm_is_right) {
  if (!norm_is_right) return "it follows from the norm, which is wrong";
  if (actual == 1) return "gradients are not clipped though their norm is above clip_grad_norm";
  if (expected == 1) return "gradients are clipped though their norm is below clip_grad_norm";
  return "the norm is right and the division is not: 1e-6 left out or large, another limit, the "
         "norm's square, or applied twice";
}

}  // namespace

double CoefficientError(const RunDescription& run, const StepObservation& observed,
                        const ReferenceStep& reference) {
  const double used = reference.used_coefficient;
  if (observed.clips.empty() || run.clip_grad_norm <= 0 || used <= 0) return 0;
  const double norm_error = observed.any_order ? NormOfErrors(run, reference).value_or(0) : 0;
  const double accepted = BoundsOf(run, reference, norm_error).coefficient;
  const double error = std::abs(observed.clips[0].coefficient - used);
  return std::isfinite(error) ? std::min(error, accepted) / used : 0;
}

void JudgeClips(const RunDescription& run, const StepObservation& observed,
                const ReferenceStep& reference, Findings& findings) {
  const std::vector<ClipObservation>& clips = observed.clips;
  const bool clipping = run.clip_grad_norm > 0;
  if (TrainableElements(run.model) == 0) return;  // no update, and nothing to clip
  if (clips.empty()) {
    if (clipping) findings.Note("clipping was not observed: no norm or coefficient was shown");
    return;
  }
  if (clips.size() != static_cast<size_t>(run.sharding.world_size.value)) {
    findings.NotObserved("the clip coefficients of some ranks were not shown");
  }
  if (!std::isfinite(reference.gradient_norm)) return;  // its gradients say so
  const std::optional<double> norm_error =
      clipping && observed.any_order ? NormOfErrors(run, reference) : 0;
  const Bounds bounds = BoundsOf(run, reference, norm_error.value_or(0));
  std::vector<char> right(clips.size(), 1);
  for (size_t i = 0; i < clips.size(); ++i) {
    const int32_t rank = static_cast<int32_t>(i);
    const ClipObservation& clip = clips[i];
    const bool norm_is_right = !clipping || Within(clip.norm, reference.gradient_norm, bounds.norm);
    const double expected = clipping ? reference.clip_coefficient : 1;
    const bool coefficient_is_right = Within(clip.coefficient, expected, bounds.coefficient);
    if (!norm_error.has_value() && !(norm_is_right && coefficient_is_right)) {
      findings.NotObserved("sums in any order need the magnitudes of gradients to bound the norm");
      return;
    }
    if (!norm_is_right) {
      right[i] = 0;
      findings.Add([&] {
        Violation violation =
            Numbers("every rank clips by the norm of replicated training", rank, observed.step,
                    bounds.norm, reference.gradient_norm, clip.norm);
        violation.likely_cause = CauseOfNorm(run, violation.ratio, clip.norm);
        return violation;
      });
    }
    if (!coefficient_is_right) {
      right[i] = 0;
      findings.Add([&] {
        Violation violation =
            Numbers(clipping ? "every rank's clip coefficient is that of replicated training"
                             : "a run without clip_grad_norm multiplies its gradients by 1",
                    rank, observed.step, bounds.coefficient, expected, clip.coefficient);
        violation.likely_cause =
            clipping ? CauseOfCoefficient(clip.coefficient, expected, norm_is_right)
                     : "gradients are clipped by a setting that the run description does not have";
        return violation;
      });
    }
    if (!right[0] || !right[i] || SameBits(clips[0], clip)) continue;
    findings.Add([&] {
      Violation violation = Numbers("every rank clips with the same bits", rank, observed.step,
                                    bounds.norm, clips[0].norm, clip.norm);
      absl::StrAppend(&violation.expected, " and coefficient ",
                      absl::StrFormat("%.9g", clips[0].coefficient), ", as on rank 0");
      absl::StrAppend(&violation.actual, " and coefficient ",
                      absl::StrFormat("%.9g", clip.coefficient));
      violation.likely_cause =
          "each rank sums the squares by itself, in an order of its own: the models drift apart";
      return violation;
    });
  }
}

}  // namespace shardproof
