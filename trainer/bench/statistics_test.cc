// Every figure is computed by hand: a benchmark whose median or spread is wrong misleads whoever
// compares two of them.
#include "trainer/bench/statistics.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

TEST(Statistics, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(Median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(Median({4.0, 1.0, 3.0, 2.0}), 2.5);
  EXPECT_EQ(Median({7.0}), 7.0);
}

TEST(Statistics, QuantilesInterpolateBetweenNeighbours) {
  std::vector<double> to_twenty;
  for (int i = 20; i >= 1; --i) to_twenty.push_back(i);
  // h = 19 * 0.95 = 18.05: a twentieth of the way from 19 to 20.
  EXPECT_NEAR(P95(to_twenty), 19.05, 1e-12);
  std::vector<double> to_hundred_and_one;
  for (int i = 0; i <= 100; ++i) to_hundred_and_one.push_back(i);
  EXPECT_NEAR(P95(to_hundred_and_one), 95.0, 1e-12);
  EXPECT_EQ(Quantile({5.0, 1.0, 3.0}, 0.0), 1.0);
  EXPECT_EQ(Quantile({5.0, 1.0, 3.0}, 1.0), 5.0);
  EXPECT_EQ(P95({7.0}), 7.0);
}

TEST(Statistics, TheDeviationIsThatOfASample) {
  // Squares of differences from 5: 9 + 1 + 1 + 1 + 0 + 0 + 4 + 16 = 32, over 7.
  const std::vector<double> samples = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_EQ(Mean(samples), 5.0);
  EXPECT_NEAR(StandardDeviation(samples), std::sqrt(32.0 / 7.0), 1e-12);
  EXPECT_NEAR(CoefficientOfVariation(samples), std::sqrt(32.0 / 7.0) * 20, 1e-12);
}

TEST(Statistics, NoSpreadWithoutDifferences) {
  EXPECT_EQ(StandardDeviation({4.0}), 0.0);
  EXPECT_EQ(CoefficientOfVariation({4.0, 4.0, 4.0}), 0.0);
  EXPECT_EQ(CoefficientOfVariation({0.0, 0.0}), 0.0);
  EXPECT_EQ(CoefficientOfVariation({-1.0, 1.0}), std::numeric_limits<double>::infinity());
}

TEST(Statistics, StableUpToFivePercent) {
  EXPECT_TRUE(Stable(5.0));
  EXPECT_FALSE(Stable(5.0001));
  EXPECT_FALSE(Stable(std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(Stable(std::numeric_limits<double>::quiet_NaN()));
}

TEST(Statistics, ASummaryHoldsAllFigures) {
  const Summary summary = Summarize({100.0, 101.0, 99.0});
  EXPECT_EQ(summary.samples, 3);
  EXPECT_EQ(summary.median, 100.0);
  EXPECT_NEAR(summary.p95, 100.9, 1e-9);
  EXPECT_NEAR(summary.cv_percent, 1.0, 1e-9);  // deviation sqrt((0 + 1 + 1) / 2) = 1
  EXPECT_FALSE(summary.unstable);
  EXPECT_TRUE(Summarize({100.0, 110.0, 90.0}).unstable);
}

TEST(Statistics, PairsTakeADriftOutOfTheirRatio) {
  // Both slow down by half on the way: each has a spread far over 5 %, their ratio none.
  const std::vector<double> steps = {6, 7, 8, 9};
  const std::vector<double> floors = {4, 14.0 / 3.0, 16.0 / 3.0, 6};
  EXPECT_TRUE(Summarize(steps).unstable);
  const absl::StatusOr<Summary> ratio = PairedRatio(steps, floors);
  ASSERT_TRUE(ratio.ok()) << ratio.status();
  EXPECT_NEAR(ratio->median, 1.5, 1e-12);
  EXPECT_NEAR(ratio->cv_percent, 0.0, 1e-9);
  EXPECT_FALSE(ratio->unstable);
}

TEST(Statistics, ARatioThatVariesIsUnstable) {
  const absl::StatusOr<Summary> ratio = PairedRatio({1, 2, 3}, {1, 1, 1});
  ASSERT_TRUE(ratio.ok()) << ratio.status();
  EXPECT_EQ(ratio->median, 2.0);
  EXPECT_NEAR(ratio->cv_percent, 50.0, 1e-12);
  EXPECT_TRUE(ratio->unstable);
}

TEST(Statistics, RatiosThatAreNoneAreRefused) {
  EXPECT_THAT(std::string(PairedRatio({1, 2}, {1}).status().message()),
              HasSubstr("2 samples to 1"));
  EXPECT_FALSE(PairedRatio({}, {}).ok());
  EXPECT_THAT(std::string(PairedRatio({1, 2}, {1, 0}).status().message()), HasSubstr("sample 1"));
  EXPECT_FALSE(PairedRatio({1}, {std::numeric_limits<double>::quiet_NaN()}).ok());
}

}  // namespace
}  // namespace shardproof
