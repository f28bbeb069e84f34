// Seeded data must not depend on how it is cut, and must differ between ranks.
#include "trainer/model/data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <vector>

namespace shardproof {
namespace {

using Fill = std::function<void(ElementRange, float*)>;

const Fill kUniform = [](ElementRange range, float* values) {
  FillUniform(11, range, 0.3f, values);
};
const Fill kMultiples = [](ElementRange range, float* values) {
  FillMultiplesOf256th(12, range, values);
};
const Fill kIntegers = [](ElementRange range, float* values) {
  FillSmallIntegers(13, range, values);
};

std::vector<float> Values(const Fill& fill, ElementRange range) {
  std::vector<float> values(static_cast<size_t>(range.count));
  fill(range, values.data());
  return values;
}

TEST(Streams, AreTheSameHoweverTheyAreCut) {
  for (const Fill& fill : {kUniform, kMultiples, kIntegers}) {
    const std::vector<float> whole = Values(fill, {0, 40});
    for (int64_t first = 0; first <= 40; ++first) {
      for (int64_t count = 0; first + count <= 40; ++count) {
        EXPECT_EQ(Values(fill, {first, count}),
                  std::vector<float>(whole.begin() + first, whole.begin() + first + count));
      }
    }
  }
}

TEST(Streams, WriteNothingBehindTheirRange) {
  for (const Fill& fill : {kUniform, kMultiples, kIntegers}) {
    for (int64_t first = 0; first < 9; ++first) {
      std::vector<float> values(20, 99.0f);
      fill({first, 11}, values.data());
      EXPECT_EQ(values[11], 99.0f);
    }
  }
}

TEST(Streams, UniformFillsItsIntervalEvenly) {
  const std::vector<float> values = Values(kUniform, {0, 100000});
  int64_t tenths[10] = {};
  for (const float value : values) {
    ASSERT_GE(value, -0.3f);
    ASSERT_LT(value, 0.3f);
    ++tenths[std::min(9, static_cast<int>((value + 0.3f) / 0.06f))];
  }
  for (const int64_t count : tenths) EXPECT_NEAR(count, 10000, 500);  // five deviations
}

TEST(Streams, MultiplesAndIntegersTakeAllTheirValues) {
  std::set<float> multiples, integers;
  for (const float value : Values(kMultiples, {0, 100000})) multiples.insert(value);
  for (const float value : Values(kIntegers, {0, 100000})) integers.insert(value);
  EXPECT_EQ(multiples.size(), 513u);
  EXPECT_EQ(*multiples.begin(), -1.0f);
  EXPECT_EQ(*multiples.rbegin(), 1.0f);
  EXPECT_EQ(integers.size(), 17u);
  EXPECT_EQ(*integers.begin(), -8.0f);
  EXPECT_EQ(*integers.rbegin(), 8.0f);
}

TEST(Streams, NeighbouringElementsAndStreamsAreNotCorrelated) {
  const int64_t count = 100000;
  const auto correlation = [count](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i)
      sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum / static_cast<double>(count) * 3;  // the variance on [-1, 1) is 1/3
  };
  const auto stream = [count](uint64_t index, int64_t first) {
    const uint64_t key = StreamKey(1, StreamPurpose::kInput, index);
    return Values([key](ElementRange r, float* v) { FillUniform(key, r, 1, v); }, {first, count});
  };
  const std::vector<float> base = stream(0, 0);
  EXPECT_NEAR(correlation(base, base), 1, 0.02);
  for (const int64_t lag : {1, 2, 3, 64}) EXPECT_NEAR(correlation(base, stream(0, lag)), 0, 0.02);
  for (const uint64_t index : {1, 2, 1000})
    EXPECT_NEAR(correlation(base, stream(index, 0)), 0, 0.02);
}

TEST(StreamKey, DiffersBySeedPurposeAndIndex) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const StreamPurpose purpose :
         {StreamPurpose::kInput, StreamPurpose::kTarget, StreamPurpose::kInitialValue}) {
      for (uint64_t index = 0; index < 50; ++index) keys.insert(StreamKey(seed, purpose, index));
    }
  }
  EXPECT_EQ(keys.size(), 20u * 3 * 50);
}

TEST(FirstSample, GivesEverySampleToExactlyOneRow) {
  RunDescription run;
  run.data.num_micro_batches = 3;
  run.data.micro_batch_size = 2;
  run.sharding.world_size = WorldSize{4};
  std::set<uint64_t> samples;
  for (int64_t step = 0; step < 5; ++step) {
    for (int32_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
      for (int32_t rank = 0; rank < 4; ++rank) {
        const uint64_t first = FirstSample(run, {step, Rank{rank}, micro_batch});
        samples.insert({first, first + 1});
      }
    }
  }
  EXPECT_EQ(samples.size(), 5u * 3 * 4 * 2);
  EXPECT_EQ(*samples.rbegin(), samples.size() - 1);
}

TEST(InitialValues, LieWithinOneOverTheRootOfFanInAndDifferByTensorAndSeed) {
  RunDescription run;
  run.model.tensors = {{.name = "a", .shape = {100}, .fan_in = 16, .aliases = {}},
                       {.name = "b", .shape = {100}, .fan_in = 16, .aliases = {}}};
  std::vector<float> a(100), b(100), other_seed(100);
  FillInitialValues(run, 0, {0, 100}, a.data());
  FillInitialValues(run, 1, {0, 100}, b.data());
  run.data.seed = 2;
  FillInitialValues(run, 0, {0, 100}, other_seed.data());
  for (const float value : a) EXPECT_LE(std::fabs(value), 0.25f);
  EXPECT_NE(a, b);
  EXPECT_NE(a, other_seed);
}

TEST(InitialValues, AreMultiplesOf256thForAProbe) {
  RunDescription run;
  run.model.kind = ModelKind::kProbe;
  run.model.tensors = {{.name = "a", .shape = {1000}, .fan_in = 1000, .aliases = {}}};
  std::vector<float> values(1000);
  FillInitialValues(run, 0, {0, 1000}, values.data());
  for (const float value : values) {
    EXPECT_LE(std::fabs(value), 1.0f);
    EXPECT_EQ(value * 256, std::round(value * 256));
  }
}

}  // namespace
}  // namespace shardproof
