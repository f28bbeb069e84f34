// The update, fill and sum kernels against the functions of the cpu that they stand for, bit for
// bit, at every alignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "trainer/engines/cuda/cuda_kernels.h"
#include "trainer/engines/cuda/device_floats.h"
#include "trainer/engines/cuda/update_factors.h"
#include "trainer/model/data.h"
#include "trainer/optimizer/optimizer.h"

namespace shardproof {
namespace {

constexpr int64_t kSizes[] = {0, 1, 3, 4, 5, 1023, 4097};
// More elements than one pass of the largest grid takes, vectors or not.
constexpr int64_t kBeyondOneGrid = 4 * 4096 * 256 + 5;

std::vector<int64_t> AllSizes() {
  std::vector<int64_t> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.push_back(kBeyondOneGrid);
  return sizes;
}

TEST(Kernels, FillWritesTheBitsAskedForAndNothingElse) {
  constexpr uint32_t kSignallingNan = 0x7fa00001u;
  for (const int64_t count : AllSizes()) {
    for (const int64_t offset : {0, 1}) {
      const DeviceFloats values(count, 1.0f, offset);
      ASSERT_EQ(cuda::Fill(values.get(), count, kSignallingNan, nullptr), cudaSuccess);
      for (const float value : values.Values()) ASSERT_EQ(BitsOf(value), kSignallingNan);
    }
  }
}

TEST(Kernels, ScaleAndScaleByMultiplyEachElementOnce) {
  constexpr float kFactor = 0.3333333f;
  const DeviceFloats factor({kFactor});
  for (const int64_t count : AllSizes()) {
    for (const int64_t offset : {0, 1}) {
      std::vector<float> expected = OddValues(count, 3);
      const DeviceFloats scaled(expected, offset);
      const DeviceFloats scaled_by(expected, offset);
      for (float& value : expected) value *= kFactor;
      ASSERT_EQ(cuda::Scale(scaled.get(), count, kFactor, nullptr), cudaSuccess);
      ASSERT_EQ(cuda::ScaleBy(scaled_by.get(), count, factor.get(), nullptr), cudaSuccess);
      ExpectSameBits(scaled.Values(), expected);
      ExpectSameBits(scaled_by.Values(), expected);
    }
  }
}

TEST(Kernels, AddAddsWhateverTheTwoAlignments) {
  for (const int64_t count : AllSizes()) {
    for (const int64_t to_offset : {0, 1}) {
      for (const int64_t from_offset : {0, 3}) {
        std::vector<float> expected = OddValues(count, 4);
        const std::vector<float> from = OddValues(count, 9);
        const DeviceFloats device_to(expected, to_offset);
        const DeviceFloats device_from(from, from_offset);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += from[i];
        ASSERT_EQ(cuda::Add(device_to.get(), device_from.get(), count, nullptr), cudaSuccess);
        ExpectSameBits(device_to.Values(), expected);
        ExpectSameBits(device_from.Values(), from);
      }
    }
  }
}

// What an update reads and writes; exp_avg_sq is a sum of squares and not negative.
struct State {
  std::vector<float> gradient, parameter, exp_avg, exp_avg_sq;
};

State OddState(int64_t count) {
  State state = {OddValues(count, 11), OddValues(count, 12), OddValues(count, 13),
                 OddValues(count, 14)};
  for (float& value : state.exp_avg_sq) value = std::fabs(value);
  return state;
}

OptimizerDescription OddSettings(OptimizerKind kind, double momentum) {
  OptimizerDescription optimizer;
  optimizer.kind = kind;
  optimizer.learning_rate = 0.0123;
  optimizer.weight_decay = 0.137;
  optimizer.momentum = momentum;
  return optimizer;
}

// Offsets of the four arrays: all aligned, none, and each of them alone not.
constexpr int64_t kOffsets[][4] = {{0, 0, 0, 0}, {1, 1, 1, 1}, {1, 0, 0, 0},
                                   {0, 2, 0, 0}, {0, 0, 3, 0}, {0, 0, 0, 1}};

void ExpectUpdateOfTheCpu(const OptimizerDescription& optimizer, int64_t update, int64_t count,
                          const int64_t (&offsets)[4]) {
  State state = OddState(count);
  const DeviceFloats gradient(state.gradient, offsets[0]);
  const DeviceFloats parameter(state.parameter, offsets[1]);
  const DeviceFloats exp_avg(state.exp_avg, offsets[2]);
  const DeviceFloats exp_avg_sq(state.exp_avg_sq, offsets[3]);
  if (optimizer.kind == OptimizerKind::kAdamW) {
    ASSERT_EQ(cuda::AdamW(AdamWFactorsOf(optimizer, update), count, gradient.get(), parameter.get(),
                          exp_avg.get(), exp_avg_sq.get(), nullptr),
              cudaSuccess);
  } else {
    float* const momentum = optimizer.momentum == 0 ? nullptr : exp_avg.get();
    ASSERT_EQ(cuda::Sgd(SgdFactorsOf(optimizer, update), count, gradient.get(), parameter.get(),
                        momentum, nullptr),
              cudaSuccess);
  }
  const std::vector<float> gradient_before = state.gradient;
  ApplyUpdate(optimizer, update, count, state.gradient.data(), state.parameter.data(),
              state.exp_avg.data(), state.exp_avg_sq.data());
  ExpectSameBits(gradient.Values(), gradient_before);
  ExpectSameBits(parameter.Values(), state.parameter);
  ExpectSameBits(exp_avg.Values(), state.exp_avg);
  ExpectSameBits(exp_avg_sq.Values(), state.exp_avg_sq);
}

void ExpectUpdatesOfTheCpu(const OptimizerDescription& optimizer) {
  for (const int64_t count : kSizes) {
    for (const auto& offsets : kOffsets) {
      for (const int64_t update : {1, 2, 1000}) {
        SCOPED_TRACE(testing::Message() << count << " elements, update " << update);
        ExpectUpdateOfTheCpu(optimizer, update, count, offsets);
      }
    }
  }
  ExpectUpdateOfTheCpu(optimizer, 3, kBeyondOneGrid, kOffsets[0]);
  ExpectUpdateOfTheCpu(optimizer, 3, kBeyondOneGrid, kOffsets[1]);
}

TEST(Kernels, AdamWHasTheBitsOfApplyUpdate) {
  ExpectUpdatesOfTheCpu(OddSettings(OptimizerKind::kAdamW, 0));
}

TEST(Kernels, SgdHasTheBitsOfApplyUpdate) {
  ExpectUpdatesOfTheCpu(OddSettings(OptimizerKind::kSgd, 0));
}

TEST(Kernels, SgdWithMomentumHasTheBitsOfApplyUpdate) {
  ExpectUpdatesOfTheCpu(OddSettings(OptimizerKind::kSgd, 0.613));
}

TEST(Kernels, TheFirstMomentumUpdateDoesNotReadWhatTheBufferHeld) {
  const OptimizerDescription optimizer = OddSettings(OptimizerKind::kSgd, 0.9);
  const DeviceFloats gradient(MixedValues(9, 1));
  const DeviceFloats parameter(MixedValues(9, 2));
  const DeviceFloats poisoned(9, NAN, 0);
  ASSERT_EQ(cuda::Sgd(SgdFactorsOf(optimizer, 1), 9, gradient.get(), parameter.get(),
                      poisoned.get(), nullptr),
            cudaSuccess);
  for (const float value : poisoned.Values()) EXPECT_FALSE(std::isnan(value));
  for (const float value : parameter.Values()) EXPECT_FALSE(std::isnan(value));
}

TEST(Kernels, SeededDataHasTheBitsOfTheCpuWhereverTheCutBegins) {
  constexpr uint64_t kKey = 0x123456789abcdef0u;
  for (const int64_t count : AllSizes()) {
    for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{7}, (int64_t{1} << 40) + 3}) {
      SCOPED_TRACE(testing::Message() << count << " elements from " << first);
      std::vector<float> expected(static_cast<size_t>(count));
      const DeviceFloats values(count, NAN, 1);
      ASSERT_EQ(cuda::FillUniform(kKey, first, count, 0.7f, values.get(), nullptr), cudaSuccess);
      FillUniform(kKey, {first, count}, 0.7f, expected.data());
      ExpectSameBits(values.Values(), expected);
      ASSERT_EQ(cuda::FillMultiplesOf256th(kKey, first, count, values.get(), nullptr), cudaSuccess);
      FillMultiplesOf256th(kKey, {first, count}, expected.data());
      ExpectSameBits(values.Values(), expected);
      ASSERT_EQ(cuda::FillSmallIntegers(kKey, first, count, values.get(), nullptr), cudaSuccess);
      FillSmallIntegers(kKey, {first, count}, expected.data());
      ExpectSameBits(values.Values(), expected);
    }
  }
}

double SumOfSquares(const std::vector<float>& values, int64_t offset, double before) {
  const DeviceFloats device(values, offset);
  const DeviceDouble sum(before);
  EXPECT_EQ(cuda::AddSquares(device.get(), static_cast<int64_t>(values.size()), sum.get(), nullptr),
            cudaSuccess);
  return sum.Value();
}

TEST(Kernels, AddSquaresOfIntegersIsExactAndAddsToWhatIsThere) {
  for (const int64_t count : AllSizes()) {
    std::vector<float> values(static_cast<size_t>(count));
    FillSmallIntegers(5, {0, count}, values.data());
    double expected = 1000;
    for (const float value : values) {
      expected += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_EQ(SumOfSquares(values, 0, 1000), expected) << count << " elements";
    EXPECT_EQ(SumOfSquares(values, 1, 1000), expected) << count << " elements";
  }
}

TEST(Kernels, AddSquaresHasTheSameBitsAtEveryAlignmentAndTime) {
  for (const int64_t count : AllSizes()) {
    const std::vector<float> values = MixedValues(count, 21);
    long double exact = 0;
    for (const float value : values) exact += static_cast<long double>(value) * value;
    const double sum = SumOfSquares(values, 0, 0);
    // A sum of n positive terms in any order is off by at most n units of 2^-53 of itself. The
    // squares of floats are exact in double.
    EXPECT_LE(std::fabs(static_cast<double>(sum - exact)),
              static_cast<double>(count) * 0x1p-53 * static_cast<double>(exact));
    for (const int64_t offset : {0, 1, 2, 3}) {
      EXPECT_EQ(SumOfSquares(values, offset, 0), sum) << count << " elements at " << offset;
    }
  }
}

TEST(Kernels, AddSquaresKeepsANan) {
  for (const size_t position : {0u, 4096u}) {
    std::vector<float> values = MixedValues(4097, 22);
    values[position] = NAN;
    EXPECT_TRUE(std::isnan(SumOfSquares(values, 0, 0)));
  }
}

TEST(Kernels, ClipCoefficientIsTheCpusForEveryNorm) {
  for (const double sum : {0.0, 0x1p-1074, 1e-12, 0.25, 1.0, 2.0, 123456.7, 1e300,
                           std::numeric_limits<double>::infinity()}) {
    for (const float max_norm : {0.5f, 1.0f, 300.0f}) {
      const double found = static_cast<double>(max_norm) / (std::sqrt(sum) + 1e-6);
      const DeviceDouble device_sum(sum);
      const DeviceFloats coefficient(1, NAN, 0);
      ASSERT_EQ(cuda::ClipCoefficient(device_sum.get(), max_norm, coefficient.get(), nullptr),
                cudaSuccess);
      ExpectSameBits(coefficient.Values(), {static_cast<float>(std::min(found, 1.0))});
    }
  }
}

TEST(Kernels, ClipCoefficientOfANanIsNan) {
  const DeviceDouble sum(std::numeric_limits<double>::quiet_NaN());
  const DeviceFloats coefficient(1, 0.0f, 0);
  ASSERT_EQ(cuda::ClipCoefficient(sum.get(), 1.0f, coefficient.get(), nullptr), cudaSuccess);
  EXPECT_TRUE(std::isnan(coefficient.Values()[0]));
}

}  // namespace
}  // namespace shardproof
