#include "trainer/model/layers.h"

// Nothing else here includes Eigen: its templates, compiled elsewhere with other flags, would
// share names with these and the linker would keep either.
#include <Eigen/Core>
#include <algorithm>
#include <cstring>

namespace shardproof {
namespace {

// Four floats of an SSE register; the compiler's own vectors, so that any target has them.
// They are only ever loaded and stored unaligned: no path depends on an address.
constexpr int kLanes = 4;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

inline Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

inline void Store(Lanes lanes, float* to) { std::memcpy(to, &lanes, sizeof(lanes)); }

inline Lanes Broadcast(float value) { return Lanes{value, value, value, value}; }

// (0 + 2) + (1 + 3) of one vector.
inline float SumLanes(Lanes lanes) { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }

// The same sum of four vectors, each result in its own lane.
inline Lanes SumLanesOfFour(Lanes a, Lanes b, Lanes c, Lanes d) {
  const Lanes ab =
      __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Lanes cd =
      __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

// Partial sums of y[r, o] for kRows rows of x and kOutputs rows of weight, over the first
// in - in % 4 inputs. More rows and outputs only keep more sums in registers: the order of
// the additions to one sum is the header's for every block.
template <int kRows, int kOutputs>
inline void ForwardSums(const LinearShape& shape, const float* x, const float* weight,
                        Lanes (&sums)[kRows][kOutputs]) {
  for (int64_t i = 0; i + kLanes <= shape.in; i += kLanes) {
    Lanes inputs[kRows];
    for (int row = 0; row < kRows; ++row) inputs[row] = Load(x + row * shape.in + i);
    for (int output = 0; output < kOutputs; ++output) {
      const Lanes weights = Load(weight + output * shape.in + i);
      for (int row = 0; row < kRows; ++row) sums[row][output] += inputs[row] * weights;
    }
  }
}

// y[r, o] for kRows rows of x and four outputs.
template <int kRows>
inline void ForwardFourOutputs(const LinearShape& shape, const float* x, const float* weight,
                               const float* bias, float* y) {
  Lanes sums[kRows][4] = {};
  ForwardSums<kRows, 4>(shape, x, weight, sums);
  for (int row = 0; row < kRows; ++row) {
    Lanes sum = SumLanesOfFour(sums[row][0], sums[row][1], sums[row][2], sums[row][3]);
    for (int64_t i = shape.in - shape.in % kLanes; i < shape.in; ++i) {
      const Lanes weights = {weight[i], weight[shape.in + i], weight[2 * shape.in + i],
                             weight[3 * shape.in + i]};
      sum += Broadcast(x[row * shape.in + i]) * weights;
    }
    if (bias != nullptr) sum += Load(bias);
    Store(sum, y + row * shape.out);
  }
}

// y[r, o] for kRows rows of x and one output.
template <int kRows>
inline void ForwardOneOutput(const LinearShape& shape, const float* x, const float* weight,
                             const float* bias, float* y) {
  Lanes sums[kRows][1] = {};
  ForwardSums<kRows, 1>(shape, x, weight, sums);
  for (int row = 0; row < kRows; ++row) {
    float sum = SumLanes(sums[row][0]);
    for (int64_t i = shape.in - shape.in % kLanes; i < shape.in; ++i) {
      sum += x[row * shape.in + i] * weight[i];
    }
    y[row * shape.out] = bias == nullptr ? sum : sum + bias[0];
  }
}

template <int kRows>
void ForwardRows(const LinearShape& shape, const float* x, const float* weight, const float* bias,
                 float* y) {
  int64_t output = 0;
  for (; output + 4 <= shape.out; output += 4) {
    ForwardFourOutputs<kRows>(shape, x, weight + output * shape.in,
                              bias == nullptr ? nullptr : bias + output, y + output);
  }
  for (; output < shape.out; ++output) {
    ForwardOneOutput<kRows>(shape, x, weight + output * shape.in,
                            bias == nullptr ? nullptr : bias + output, y + output);
  }
}

// out[r, c] = sum over terms k, in order, of a[k * a_term_stride + r * a_row_stride] * b[k, c].
// Input and weight gradients are both this product. A block computes kRows rows of the
// columns from its pointers on, for terms [first, end); from the second term block on it
// adds to what `out` holds.
struct Product {
  int64_t rows = 0;
  int64_t columns = 0;  // also the row length of b and out
  int64_t a_term_stride = 0;
  int64_t a_row_stride = 0;
  const float* b = nullptr;
};

struct Terms {
  int64_t first = 0;
  int64_t end = 0;
};

template <int kRows, int kVectors>
inline void ProductVectors(const Product& product, Terms terms, const float* a, int64_t column,
                           float* out) {
  Lanes sums[kRows][kVectors] = {};
  if (terms.first > 0) {
    for (int row = 0; row < kRows; ++row) {
      for (int v = 0; v < kVectors; ++v) {
        sums[row][v] = Load(out + row * product.columns + column + v * kLanes);
      }
    }
  }
  for (int64_t term = terms.first; term < terms.end; ++term) {
    Lanes columns[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = Load(product.b + term * product.columns + column + v * kLanes);
    }
    for (int row = 0; row < kRows; ++row) {
      const Lanes factor = Broadcast(a[term * product.a_term_stride + row * product.a_row_stride]);
      for (int v = 0; v < kVectors; ++v) sums[row][v] += factor * columns[v];
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      Store(sums[row][v], out + row * product.columns + column + v * kLanes);
    }
  }
}

template <int kRows>
inline void ProductOneColumn(const Product& product, Terms terms, const float* a, int64_t column,
                             float* out) {
  float sums[kRows] = {};
  if (terms.first > 0) {
    for (int row = 0; row < kRows; ++row) sums[row] = out[row * product.columns + column];
  }
  for (int64_t term = terms.first; term < terms.end; ++term) {
    const float factor = product.b[term * product.columns + column];
    for (int row = 0; row < kRows; ++row) {
      sums[row] += a[term * product.a_term_stride + row * product.a_row_stride] * factor;
    }
  }
  for (int row = 0; row < kRows; ++row) out[row * product.columns + column] = sums[row];
}

template <int kRows>
void ProductRows(const Product& product, Terms terms, const float* a, float* out) {
  int64_t column = 0;
  for (; column + 2 * kLanes <= product.columns; column += 2 * kLanes) {
    ProductVectors<kRows, 2>(product, terms, a, column, out);
  }
  for (; column + kLanes <= product.columns; column += kLanes) {
    ProductVectors<kRows, 1>(product, terms, a, column, out);
  }
  for (; column < product.columns; ++column) {
    ProductOneColumn<kRows>(product, terms, a, column, out);
  }
}

void Multiply(const Product& product, int64_t terms, const float* a, float* out) {
  // Long rows of b are read a few at a time from start to end, as memory likes it, and the
  // sums wait in `out` meanwhile. Adding to a stored float rounds as adding to a register
  // does, so the bits do not depend on this.
  const int64_t block = product.columns >= 256 ? 4 : terms;
  for (int64_t first = 0; first < terms; first += block) {
    const Terms part = {first, std::min(first + block, terms)};
    int64_t row = 0;
    for (; row + 4 <= product.rows; row += 4) {
      ProductRows<4>(product, part, a + row * product.a_row_stride, out + row * product.columns);
    }
    for (; row < product.rows; ++row) {
      ProductRows<1>(product, part, a + row * product.a_row_stride, out + row * product.columns);
    }
  }
}

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixMap = Eigen::Map<Matrix>;
using ConstMatrixMap = Eigen::Map<const Matrix>;

void AddBias(const LinearShape& shape, const float* bias, float* y) {
  for (int64_t row = 0; row < shape.batch; ++row) {
    for (int64_t output = 0; output < shape.out; ++output)
      y[row * shape.out + output] += bias[output];
  }
}

// Eigen cuts long sums into blocks that fit the caches it finds, so that the last bits would
// depend on the machine. These sizes are a common core's, fixed.
void FixEigenBlockSizes() {
  static const bool fixed = [] {
    Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 4 << 20);
    return true;
  }();
  static_cast<void>(fixed);
}

}  // namespace

bool UsesEigen(const LinearShape& shape) {
  // All three extents are far from those at which Eigen itself turns to other algorithms: a
  // matrix-vector product when one is 1, and a product by coefficients, whose order of sums
  // depends on alignment, when their sum is below 20. Below these extents the loops are as
  // quick as Eigen, or quicker.
  return shape.batch >= 8 && shape.in >= 256 && shape.out >= 256;
}

void LinearForward(const LinearShape& shape, const float* x, const float* weight, const float* bias,
                   float* y) {
  if (UsesEigen(shape)) {
    FixEigenBlockSizes();
    MatrixMap result(y, shape.batch, shape.out);
    result.noalias() = ConstMatrixMap(x, shape.batch, shape.in) *
                       ConstMatrixMap(weight, shape.out, shape.in).transpose();
    if (bias != nullptr) AddBias(shape, bias, y);
    return;
  }
  int64_t row = 0;
  for (; row + 2 <= shape.batch; row += 2) {
    ForwardRows<2>(shape, x + row * shape.in, weight, bias, y + row * shape.out);
  }
  for (; row < shape.batch; ++row) {
    ForwardRows<1>(shape, x + row * shape.in, weight, bias, y + row * shape.out);
  }
}

void LinearInputGradient(const LinearShape& shape, const float* weight, const float* y_gradient,
                         float* x_gradient) {
  if (UsesEigen(shape)) {
    FixEigenBlockSizes();
    MatrixMap result(x_gradient, shape.batch, shape.in);
    result.noalias() = ConstMatrixMap(y_gradient, shape.batch, shape.out) *
                       ConstMatrixMap(weight, shape.out, shape.in);
    return;
  }
  Multiply({.rows = shape.batch,
            .columns = shape.in,
            .a_term_stride = 1,
            .a_row_stride = shape.out,
            .b = weight},
           shape.out, y_gradient, x_gradient);
}

void LinearWeightGradient(const LinearShape& shape, const float* x, const float* y_gradient,
                          float* weight_gradient) {
  if (UsesEigen(shape)) {
    FixEigenBlockSizes();
    MatrixMap result(weight_gradient, shape.out, shape.in);
    result.noalias() = ConstMatrixMap(y_gradient, shape.batch, shape.out).transpose() *
                       ConstMatrixMap(x, shape.batch, shape.in);
    return;
  }
  Multiply({.rows = shape.out,
            .columns = shape.in,
            .a_term_stride = shape.out,
            .a_row_stride = 1,
            .b = x},
           shape.batch, y_gradient, weight_gradient);
}

void LinearBiasGradient(const LinearShape& shape, const float* y_gradient, float* bias_gradient) {
  for (int64_t output = 0; output < shape.out; ++output) bias_gradient[output] = y_gradient[output];
  for (int64_t row = 1; row < shape.batch; ++row) {
    const float* gradient = y_gradient + row * shape.out;
    for (int64_t output = 0; output < shape.out; ++output)
      bias_gradient[output] += gradient[output];
  }
}

void Relu(int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = values[i] < 0 ? 0 : values[i];
}

void ReluGradient(int64_t count, const float* output, float* gradient) {
  for (int64_t i = 0; i < count; ++i) gradient[i] = output[i] <= 0 ? 0 : gradient[i];
}

double MeanSquaredError(int64_t count, const float* output, float* gradient) {
  const float scale = static_cast<float>(2.0 / static_cast<double>(count));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float difference = output[i] - gradient[i];
    gradient[i] = scale * difference;
    sum += static_cast<double>(difference) * static_cast<double>(difference);
  }
  return sum / static_cast<double>(count);
}

}  // namespace shardproof
