// What the trainer relies on: the documented order of sums, bits that do not depend on
// addresses, and derivatives that are those of the function.
#include "trainer/model/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace shardproof {
namespace {

// Values of mixed signs and sizes, so that another order of sums has other bits.
std::vector<float> MixedValues(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761u + 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Every small shape's kind of remainder, long rows, one row, and both sides of UsesEigen.
std::vector<LinearShape> Shapes() {
  std::vector<LinearShape> shapes;
  for (const int64_t batch : {1, 2, 3, 4, 5, 8}) {
    for (const int64_t in : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33}) {
      for (const int64_t out : {1, 2, 3, 4, 5, 8, 11, 33}) shapes.push_back({batch, in, out});
    }
  }
  const LinearShape large[] = {{1, 2048, 17},  {1, 300, 300},  {7, 300, 300},   {8, 255, 300},
                               {8, 300, 255},  {8, 256, 256},  {9, 257, 259},   {16, 700, 300},
                               {13, 300, 701}, {2, 1, 1000},   {2, 1000, 1},    {33, 260, 270},
                               {64, 17, 300},  {8, 256, 1025}, {16, 1024, 1024}};
  shapes.insert(shapes.end(), std::begin(large), std::end(large));
  return shapes;
}

testing::Message Describe(const LinearShape& shape) {
  return testing::Message() << "batch " << shape.batch << ", in " << shape.in << ", out "
                            << shape.out;
}

struct Results {
  std::vector<float> y;
  std::vector<float> y_without_bias;
  std::vector<float> x_gradient;
  std::vector<float> weight_gradient;
  std::vector<float> bias_gradient;
};

Results ResultsLike(const LinearShape& shape) {
  const auto floats = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count)); };
  return {floats(shape.batch * shape.out), floats(shape.batch * shape.out),
          floats(shape.batch * shape.in), floats(shape.out * shape.in), floats(shape.out)};
}

struct Operands {
  std::vector<float> x, weight, bias, y_gradient;
};

Operands OperandsFor(const LinearShape& shape) {
  return {MixedValues(shape.batch * shape.in, 1), MixedValues(shape.out * shape.in, 2),
          MixedValues(shape.out, 3), MixedValues(shape.batch * shape.out, 4)};
}

// A copy of `values` that begins `misalignment` floats behind a 64-byte boundary.
class Placed {
 public:
  Placed(const std::vector<float>& values, int misalignment)
      : storage_(values.size() + 32), count_(values.size()) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(storage_.data());
    const uintptr_t aligned = (address + 63) / 64 * 64;
    start_ = storage_.data() + (aligned - address) / sizeof(float) + misalignment;
    std::copy(values.begin(), values.end(), start_);
  }
  float* data() { return start_; }
  std::vector<float> values() const { return {start_, start_ + count_}; }

 private:
  std::vector<float> storage_;
  size_t count_;
  float* start_;
};

// All five calls with each buffer at its own misalignment, all shifted by `shift`.
Results RunAt(const LinearShape& shape, const Operands& operands, int shift) {
  const auto at = [shift](int buffer) { return (buffer * 3 + shift * (buffer + 1)) % 16; };
  Placed x(operands.x, at(0)), weight(operands.weight, at(1)), bias(operands.bias, at(2));
  Placed y_gradient(operands.y_gradient, at(3));
  const Results empty = ResultsLike(shape);
  Placed y(empty.y, at(4)), plain(empty.y_without_bias, at(5)), dx(empty.x_gradient, at(6));
  Placed dw(empty.weight_gradient, at(7)), db(empty.bias_gradient, at(8));
  LinearForward(shape, x.data(), weight.data(), bias.data(), y.data());
  LinearForward(shape, x.data(), weight.data(), nullptr, plain.data());
  LinearInputGradient(shape, weight.data(), y_gradient.data(), dx.data());
  LinearWeightGradient(shape, x.data(), y_gradient.data(), dw.data());
  LinearBiasGradient(shape, y_gradient.data(), db.data());
  return {y.values(), plain.values(), dx.values(), dw.values(), db.values()};
}

void ExpectSameBits(const Results& a, const Results& b) {
  EXPECT_TRUE(SameBits(a.y, b.y)) << "forward";
  EXPECT_TRUE(SameBits(a.y_without_bias, b.y_without_bias)) << "forward without bias";
  EXPECT_TRUE(SameBits(a.x_gradient, b.x_gradient)) << "input gradient";
  EXPECT_TRUE(SameBits(a.weight_gradient, b.weight_gradient)) << "weight gradient";
  EXPECT_TRUE(SameBits(a.bias_gradient, b.bias_gradient)) << "bias gradient";
}

TEST(Linear, BitsDoNotDependOnWhereBuffersLie) {
  for (const LinearShape& shape : Shapes()) {
    SCOPED_TRACE(Describe(shape));
    const Operands operands = OperandsFor(shape);
    const Results expected = RunAt(shape, operands, 0);
    for (const int shift : {1, 2, 3, 5, 8}) ExpectSameBits(RunAt(shape, operands, shift), expected);
  }
}

// The header's order, written as plainly as it can be.
Results InDocumentedOrder(const LinearShape& s, const Operands& operands) {
  Results r = ResultsLike(s);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t o = 0; o < s.out; ++o) {
      const float* x = &operands.x[b * s.in];
      const float* weight = &operands.weight[o * s.in];
      float partial[4] = {};
      const int64_t whole = s.in / 4 * 4;
      for (int64_t i = 0; i < whole; ++i) partial[i % 4] += x[i] * weight[i];
      float sum = (partial[0] + partial[2]) + (partial[1] + partial[3]);
      for (int64_t i = whole; i < s.in; ++i) sum += x[i] * weight[i];
      r.y_without_bias[b * s.out + o] = sum;
      r.y[b * s.out + o] = sum + operands.bias[o];
    }
    for (int64_t i = 0; i < s.in; ++i) {
      float sum = 0;
      for (int64_t o = 0; o < s.out; ++o) {
        sum += operands.y_gradient[b * s.out + o] * operands.weight[o * s.in + i];
      }
      r.x_gradient[b * s.in + i] = sum;
    }
  }
  for (int64_t o = 0; o < s.out; ++o) {
    for (int64_t i = 0; i < s.in; ++i) {
      float sum = 0;
      for (int64_t b = 0; b < s.batch; ++b) {
        sum += operands.y_gradient[b * s.out + o] * operands.x[b * s.in + i];
      }
      r.weight_gradient[o * s.in + i] = sum;
    }
    r.bias_gradient[o] = operands.y_gradient[o];
    for (int64_t b = 1; b < s.batch; ++b) {
      r.bias_gradient[o] += operands.y_gradient[b * s.out + o];
    }
  }
  return r;
}

TEST(Linear, LoopsAddInTheDocumentedOrder) {
  for (const LinearShape& shape : Shapes()) {
    if (UsesEigen(shape)) continue;
    SCOPED_TRACE(Describe(shape));
    const Operands operands = OperandsFor(shape);
    ExpectSameBits(RunAt(shape, operands, 0), InDocumentedOrder(shape, operands));
  }
}

// |error| <= terms * 2^-23 * terms, for factors in [-1, 1]: twice the textbook bound.
void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected,
                 int64_t terms) {
  const double bound = static_cast<double>(terms * terms) * 0x1p-23;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], bound) << "element " << i;
  }
}

TEST(Linear, EigenComputesTheSameProducts) {
  int compared = 0;
  for (const LinearShape& shape : Shapes()) {
    if (!UsesEigen(shape)) continue;
    ++compared;
    SCOPED_TRACE(Describe(shape));
    const Operands operands = OperandsFor(shape);
    const Results actual = RunAt(shape, operands, 0);
    const Results expected = InDocumentedOrder(shape, operands);
    ExpectClose(actual.y, expected.y, shape.in + 1);
    ExpectClose(actual.y_without_bias, expected.y_without_bias, shape.in);
    ExpectClose(actual.x_gradient, expected.x_gradient, shape.out);
    ExpectClose(actual.weight_gradient, expected.weight_gradient, shape.batch);
    EXPECT_TRUE(SameBits(actual.bias_gradient, expected.bias_gradient));
  }
  EXPECT_GE(compared, 5);
}

// The derivative of sum(y_gradient * y) by element `index` of `operand`. The function is
// linear in each operand, so that a difference over a step of 2 has no truncation error.
double FiniteDifference(const LinearShape& shape, Operands operands,
                        std::vector<float> Operands::*operand, size_t index) {
  double values[2];
  const float centre = (operands.*operand)[index];
  for (const int side : {0, 1}) {
    (operands.*operand)[index] = centre + (side == 0 ? 1.0f : -1.0f);
    std::vector<float> y = ResultsLike(shape).y;
    LinearForward(shape, operands.x.data(), operands.weight.data(), operands.bias.data(), y.data());
    values[side] = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      values[side] += static_cast<double>(y[i]) * static_cast<double>(operands.y_gradient[i]);
    }
  }
  return (values[0] - values[1]) / 2;
}

TEST(Linear, GradientsAreTheFiniteDifferencesOfForward) {
  for (const LinearShape& shape :
       {LinearShape{1, 1, 1}, {1, 5, 3}, {3, 4, 9}, {4, 17, 6}, {8, 256, 256}}) {
    SCOPED_TRACE(Describe(shape));
    const Operands operands = OperandsFor(shape);
    const Results r = RunAt(shape, operands, 0);
    const auto expect_gradient = [&](std::vector<float> Operands::*operand,
                                     const std::vector<float>& gradient) {
      const size_t stride = std::max<size_t>(1, gradient.size() / 50);
      for (size_t i = 0; i < gradient.size(); i += stride) {
        ASSERT_NEAR(gradient[i], FiniteDifference(shape, operands, operand, i), 1e-3) << i;
      }
    };
    expect_gradient(&Operands::x, r.x_gradient);
    expect_gradient(&Operands::weight, r.weight_gradient);
    expect_gradient(&Operands::bias, r.bias_gradient);
  }
}

TEST(Relu, KeepsPositivesAndNaNsAndMakesTheRestZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values = {-1, 0, 2, nan, -0x1p-149f, 0x1p-149f, 7};
  Relu(static_cast<int64_t>(values.size()), values.data());
  EXPECT_TRUE(std::isnan(values[3]));
  values[3] = 0;
  EXPECT_EQ(values, (std::vector<float>{0, 0, 2, 0, 0, 0x1p-149f, 7}));
}

TEST(Relu, GradientPassesWhereTheOutputIsPositive) {
  const std::vector<float> output = {0, 2, 0, 1, 5};
  std::vector<float> gradient = {1, 2, -3, -4, 0};
  ReluGradient(static_cast<int64_t>(output.size()), output.data(), gradient.data());
  EXPECT_EQ(gradient, (std::vector<float>{0, 2, 0, -4, 0}));
}

TEST(MeanSquaredError, IsTheMeanAndItsDerivative) {
  const std::vector<float> output = {1, 2, -1, 0};
  std::vector<float> gradient = {1, 0, 1, 1};  // the targets
  EXPECT_EQ(MeanSquaredError(4, output.data(), gradient.data()), (0.0 + 4 + 4 + 1) / 4);
  EXPECT_EQ(gradient, (std::vector<float>{0, 1, -1, -0.5}));
}

}  // namespace
}  // namespace shardproof
