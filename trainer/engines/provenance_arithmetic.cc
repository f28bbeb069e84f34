#include "trainer/engines/provenance_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trainer/engines/provenance_memory.h"

namespace shardproof {
namespace {

constexpr double kLargest = std::numeric_limits<double>::max();

bool SameButCount(OriginTerm a, const OriginTerm& b) {
  a.count = b.count;
  return a == b;
}

// Terms that differ only in their count become one.
void AddCounts(std::vector<OriginTerm>& terms) {
  std::sort(terms.begin(), terms.end());
  size_t kept = 0;
  for (size_t i = 1; i < terms.size(); ++i) {
    if (SameButCount(terms[kept], terms[i])) {
      terms[kept].count += terms[i].count;
    } else {
      terms[++kept] = terms[i];
    }
  }
  if (!terms.empty()) terms.resize(kept + 1);
}

// Which of two says more about memory that holds nothing.
int Gravity(OriginKind kind) {
  return kind == OriginKind::kFreed ? 2 : (kind == OriginKind::kNeverWritten ? 1 : 0);
}

}  // namespace

OriginArithmetic::OriginArithmetic(StepOrigins* origins) : origins_(origins) { Clear(); }

void OriginArithmetic::Clear() {
  origins_->term_sets.clear();
  origins_->mixtures.clear();
  known_terms_.clear();
  known_mixtures_.clear();
  sums_.clear();
  scaled_.clear();
  clipped_.clear();
  Intern({});
}

void OriginArithmetic::Keep(const std::vector<std::vector<OriginTerm>>& old_sets,
                            const std::vector<OriginMixture>& old_mixtures, Origin& origin) {
  if (origin.terms >= 0) origin.terms = Intern(old_sets[origin.terms]);
  if (origin.mixture < 0) return;
  OriginMixture mixture = old_mixtures[origin.mixture];
  // What was mixed is kept as it was seen; neither side is a mixture itself.
  if (mixture.left.terms >= 0) mixture.left.terms = Intern(old_sets[mixture.left.terms]);
  if (mixture.right.terms >= 0) mixture.right.terms = Intern(old_sets[mixture.right.terms]);
  origin = Mixed(mixture.by, mixture.left, mixture.right);
}

int32_t OriginArithmetic::Intern(std::vector<OriginTerm> terms) {
  const auto [entry, inserted] =
      known_terms_.try_emplace(terms, static_cast<int32_t>(origins_->term_sets.size()));
  if (inserted) origins_->term_sets.push_back(std::move(terms));
  return entry->second;
}

int32_t OriginArithmetic::OneTerm(const OriginTerm& term) { return Intern({term}); }

int32_t OriginArithmetic::SumOfTerms(int32_t left, int32_t right) {
  if (left == NoTerms()) return right;
  if (right == NoTerms()) return left;
  const auto [entry, inserted] =
      sums_.try_emplace({std::min(left, right), std::max(left, right)}, 0);
  if (inserted) {
    std::vector<OriginTerm> terms = origins_->term_sets[left];
    const std::vector<OriginTerm>& more = origins_->term_sets[right];
    terms.insert(terms.end(), more.begin(), more.end());
    AddCounts(terms);
    entry->second = Intern(std::move(terms));
  }
  return entry->second;
}

int32_t OriginArithmetic::ScaledTerms(int32_t terms, double scale) {
  const auto [entry, inserted] = scaled_.try_emplace({terms, scale}, 0);
  if (inserted) {
    std::vector<OriginTerm> scaled = origins_->term_sets[terms];
    for (OriginTerm& term : scaled) {
      // Finite, so that terms have an order whatever an edited plan multiplies by.
      term.scale = std::clamp(term.scale * scale, -kLargest, kLargest);
      ++term.scalings;
    }
    AddCounts(scaled);
    entry->second = Intern(std::move(scaled));
  }
  return entry->second;
}

int32_t OriginArithmetic::ClippedTerms(int32_t terms) {
  const auto [entry, inserted] = clipped_.try_emplace(terms, 0);
  if (inserted) {
    std::vector<OriginTerm> clipped = origins_->term_sets[terms];
    for (OriginTerm& term : clipped) ++term.clips;
    AddCounts(clipped);
    entry->second = Intern(std::move(clipped));
  }
  return entry->second;
}

Origin OriginArithmetic::Mixed(MixedBy by, const Origin& left, const Origin& right) {
  // What was mixed once stays that first mixture, which is the cause.
  if (left.kind == OriginKind::kMixed) return left;
  if (right.kind == OriginKind::kMixed) return right;
  const OriginMixture mixture = {by, left, right};
  const auto [entry, inserted] =
      known_mixtures_.try_emplace(mixture, static_cast<int32_t>(origins_->mixtures.size()));
  if (inserted) origins_->mixtures.push_back(mixture);
  Origin origin;
  origin.kind = OriginKind::kMixed;
  origin.mixture = entry->second;
  return origin;
}

Origin OriginArithmetic::Sum(const Origin& left, const Origin& right) {
  if (IsInert(left.kind) && IsInert(right.kind)) {
    return Gravity(left.kind) >= Gravity(right.kind) ? left : right;
  }
  const bool gradients = left.kind == OriginKind::kGradient && right.kind == left.kind &&
                         left.tensor == right.tensor && left.element == right.element;
  const bool norms = left.kind == OriginKind::kNorm && right.kind == left.kind;
  if (!gradients && !norms) return Mixed(MixedBy::kSum, left, right);
  Origin sum = left;
  sum.terms = SumOfTerms(left.terms, right.terms);
  return sum;
}

std::vector<OriginRun> OriginArithmetic::Sum(absl::Span<const OriginRun> left,
                                             absl::Span<const OriginRun> right) {
  std::vector<OriginRun> sum;
  size_t i = 0;
  size_t j = 0;
  int64_t used_left = 0;
  int64_t used_right = 0;
  while (i < left.size() && j < right.size()) {
    const int64_t count = std::min(left[i].count - used_left, right[j].count - used_right);
    AppendRun(
        {count, Sum(Advanced(left[i].origin, used_left), Advanced(right[j].origin, used_right))},
        /*begin=*/0, sum);
    used_left += count;
    used_right += count;
    if (used_left == left[i].count) ++i, used_left = 0;
    if (used_right == right[j].count) ++j, used_right = 0;
  }
  return sum;
}

Origin OriginArithmetic::Scaled(const Origin& value, double scale) {
  if (IsInert(value.kind)) return value;
  if (value.kind != OriginKind::kGradient || !std::isfinite(scale)) {
    return Mixed(MixedBy::kScale, value, Origin());
  }
  Origin scaled = value;
  scaled.terms = ScaledTerms(value.terms, scale);
  return scaled;
}

Origin OriginArithmetic::ScaledBy(const Origin& value, const Origin& factor) {
  if (IsInert(value.kind)) return value;
  if (value.kind != OriginKind::kGradient || factor.kind != OriginKind::kCoefficient) {
    return Mixed(MixedBy::kScaleBy, value, factor);
  }
  Origin clipped = value;
  clipped.terms = ClippedTerms(value.terms);
  return clipped;
}

Origin OriginArithmetic::CoefficientOf(const Origin& norm) {
  if (norm.kind != OriginKind::kNorm) return Mixed(MixedBy::kCoefficient, norm, Origin());
  Origin coefficient = norm;
  coefficient.kind = OriginKind::kCoefficient;
  return coefficient;
}

Origin OriginArithmetic::Updated(Origin value) {
  if (value.kind == OriginKind::kParameter || value.kind == OriginKind::kExpAvg ||
      value.kind == OriginKind::kExpAvgSq) {
    ++value.version;
  }
  return value;
}

}  // namespace shardproof
