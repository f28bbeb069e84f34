#include "trainer/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace shardproof {

double Quantile(absl::Span<const double> samples, double q) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const double position = static_cast<double>(sorted.size() - 1) * q;
  const size_t below = static_cast<size_t>(position);
  if (below + 1 >= sorted.size()) return sorted.back();
  const double weight = position - static_cast<double>(below);
  return sorted[below] + weight * (sorted[below + 1] - sorted[below]);
}

double Median(absl::Span<const double> samples) { return Quantile(samples, 0.5); }

double P95(absl::Span<const double> samples) { return Quantile(samples, 0.95); }

double Mean(absl::Span<const double> samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

double StandardDeviation(absl::Span<const double> samples) {
  if (samples.size() < 2) return 0;
  const double mean = Mean(samples);
  double squares = 0;
  for (double sample : samples) squares += (sample - mean) * (sample - mean);
  return std::sqrt(squares / static_cast<double>(samples.size() - 1));
}

double CoefficientOfVariation(absl::Span<const double> samples) {
  const double deviation = StandardDeviation(samples);
  if (deviation == 0) return 0;
  const double mean = std::abs(Mean(samples));
  return mean == 0 ? std::numeric_limits<double>::infinity() : deviation / mean * 100;
}

bool Stable(double cv_percent) { return cv_percent <= kStablePercent; }

Summary Summarize(absl::Span<const double> samples) {
  Summary summary;
  summary.samples = static_cast<int64_t>(samples.size());
  summary.median = Median(samples);
  summary.p95 = P95(samples);
  summary.cv_percent = CoefficientOfVariation(samples);
  summary.unstable = !Stable(summary.cv_percent);
  return summary;
}

absl::StatusOr<Summary> PairedRatio(absl::Span<const double> numerators,
                                    absl::Span<const double> denominators) {
  if (numerators.size() != denominators.size() || numerators.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a ratio of ", numerators.size(), " samples to ",
                                                   denominators.size(),
                                                   "; accepted are pairs, one or more"));
  }
  std::vector<double> ratios(numerators.size());
  for (size_t i = 0; i < ratios.size(); ++i) {
    if (!(denominators[i] > 0)) {
      return absl::InvalidArgumentError(absl::StrCat("a ratio to sample ", i, ", which is ",
                                                     denominators[i], "; accepted is above 0"));
    }
    ratios[i] = numerators[i] / denominators[i];
  }
  return Summarize(ratios);
}

}  // namespace shardproof
