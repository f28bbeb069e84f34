// Figures of timed samples: median, quantiles, spread, and ratios of paired samples.
//
// A time is never reported without its spread. The spread is the coefficient of variation: the
// sample standard deviation (divisor n - 1) over the mean, in percent. Beyond kStablePercent the
// figure is unstable and says so.
#ifndef TRAINER_BENCH_STATISTICS_H_
#define TRAINER_BENCH_STATISTICS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardproof {

inline constexpr double kStablePercent = 5.0;

// All of these need at least one sample, and finite ones.

// The quantile by linear interpolation between order statistics (Hyndman and Fan's type 7, the
// default of NumPy): sorted x[0..n), h = (n - 1) * q, x[floor h] + (h - floor h) * (x[floor h + 1]
// - x[floor h]). 0 <= q <= 1.
double Quantile(absl::Span<const double> samples, double q);
double Median(absl::Span<const double> samples);  // Quantile(samples, 0.5)
double P95(absl::Span<const double> samples);     // Quantile(samples, 0.95)
double Mean(absl::Span<const double> samples);
// Of a sample: divisor n - 1. One sample has 0.
double StandardDeviation(absl::Span<const double> samples);
// StandardDeviation / |Mean| * 100. Samples that are all 0 have 0; others with mean 0, infinity.
double CoefficientOfVariation(absl::Span<const double> samples);
// At most kStablePercent.
bool Stable(double cv_percent);

struct Summary {
  int64_t samples = 0;
  double median = 0;
  double p95 = 0;
  double cv_percent = 0;
  bool unstable = false;
};
Summary Summarize(absl::Span<const double> samples);

// Of numerators[i] / denominators[i], which were measured one right after the other, so that what
// slows the machine down for a while slows both. InvalidArgument for two lengths, no samples, or a
// denominator that is not above 0.
absl::StatusOr<Summary> PairedRatio(absl::Span<const double> numerators,
                                    absl::Span<const double> denominators);

}  // namespace shardproof

#endif  // TRAINER_BENCH_STATISTICS_H_
