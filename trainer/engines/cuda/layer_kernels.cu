#include "trainer/engines/cuda/launch.cuh"
#include "trainer/engines/cuda/layer_kernels.h"
#include "trainer/engines/cuda/stream_hash.cuh"

namespace shardproof::cuda {
namespace {

// out[r, c] = sum over terms k of a[r * a_row + k * a_term] * b[k * b_term + c * b_column],
// plus bias[c] unless bias is null; out is row-major with rows of `columns`.
struct Product {
  int64_t rows, columns, terms;
  const float* a;
  int64_t a_row, a_term;
  const float* b;
  int64_t b_term, b_column;
  const float* bias;
  float* out;
};

// A block computes tiles of kTile x kTile outputs, a thread one output of each of kThreadRows
// rows, from tiles of as many terms in shared memory.
constexpr int kTile = 32;
constexpr int kTileThreads = 256;
constexpr int kThreadRows = kTile * kTile / kTileThreads;
constexpr int kRowStep = kTile / kThreadRows;

// tile[k][i] = from[(first + i) * stride + (first_term + k) * term_stride]; zero outside.
// Neighbouring threads read along whichever stride is 1.
__device__ void LoadTile(const float* from, int64_t first, int64_t count, int64_t stride,
                         int64_t first_term, int64_t terms, int64_t term_stride,
                         float (&tile)[kTile][kTile + 1]) {
  for (int step = 0; step < kThreadRows; ++step) {
    const int fast = static_cast<int>(threadIdx.x) % kTile;
    const int slow = static_cast<int>(threadIdx.x) / kTile + step * kRowStep;
    const int i = term_stride == 1 ? slow : fast;
    const int k = term_stride == 1 ? fast : slow;
    const bool inside = first + i < count && first_term + k < terms;
    tile[k][i] = inside ? from[(first + i) * stride + (first_term + k) * term_stride] : 0.0f;
  }
}

// With four lanes, term k is added to partial sum k % 4, and the last terms % 4 to the sum of
// the partial sums, as layers.cc's forward does; with one lane all terms are added in order.
template <int kLanes>
__global__ __launch_bounds__(kTileThreads) void MultiplyTiles(Product product, int64_t tiles_a_row,
                                                              int64_t tiles) {
  __shared__ float a_tile[kTile][kTile + 1];
  __shared__ float b_tile[kTile][kTile + 1];
  const int lane_terms_end = static_cast<int>(product.terms % kLanes);
  const int64_t full_terms = product.terms - lane_terms_end;
  const int tile_column = static_cast<int>(threadIdx.x) % kTile;
  const int tile_row = static_cast<int>(threadIdx.x) / kTile;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t first_row = tile / tiles_a_row * kTile;
    const int64_t first_column = tile % tiles_a_row * kTile;
    float sums[kThreadRows][kLanes] = {};
    for (int64_t first_term = 0; first_term < full_terms; first_term += kTile) {
      LoadTile(product.a, first_row, product.rows, product.a_row, first_term, full_terms,
               product.a_term, a_tile);
      LoadTile(product.b, first_column, product.columns, product.b_column, first_term, full_terms,
               product.b_term, b_tile);
      __syncthreads();
      const int64_t left = full_terms - first_term;
      const int terms = left < kTile ? static_cast<int>(left) : kTile;
      for (int term = 0; term < terms; term += kLanes) {
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          const float factor = b_tile[term + lane][tile_column];
#pragma unroll
          for (int step = 0; step < kThreadRows; ++step) {
            sums[step][lane] += a_tile[term + lane][tile_row + step * kRowStep] * factor;
          }
        }
      }
      __syncthreads();
    }
    const int64_t column = first_column + tile_column;
    if (column >= product.columns) continue;
    for (int step = 0; step < kThreadRows; ++step) {
      const int64_t row = first_row + tile_row + step * kRowStep;
      if (row >= product.rows) continue;
      float sum = sums[step][0];
      if constexpr (kLanes == 4) {
        sum = (sums[step][0] + sums[step][2]) + (sums[step][1] + sums[step][3]);
      }
      for (int64_t term = full_terms; term < product.terms; ++term) {
        sum += product.a[row * product.a_row + term * product.a_term] *
               product.b[term * product.b_term + column * product.b_column];
      }
      if (product.bias != nullptr) sum += product.bias[column];
      product.out[row * product.columns + column] = sum;
    }
  }
}

template <int kLanes>
cudaError_t LaunchProduct(const Product& product, cudaStream_t stream) {
  if (product.rows == 0 || product.columns == 0) return cudaSuccess;
  const int64_t tiles_a_row = CeilDivide(product.columns, kTile);
  const int64_t tiles = CeilDivide(product.rows, kTile) * tiles_a_row;
  const unsigned blocks = static_cast<unsigned>(tiles < kMaxBlocks ? tiles : kMaxBlocks);
  return Launch(MultiplyTiles<kLanes>, blocks, kTileThreads, stream, product, tiles_a_row, tiles);
}

__global__ void AddBiasToRows(const float* bias, int64_t width, int64_t count, float* y) {
  for (int64_t i = GridThread(); i < count; i += GridThreads()) y[i] += bias[i % width];
}

// A block sums kTile columns in row order: all its threads load kSumRows rows at a time into
// shared memory, where one warp adds them. The loads, not the additions, are what takes time.
constexpr int kSumThreads = 1024;
constexpr int kSumRows = 128;

__global__ __launch_bounds__(kSumThreads) void SumRows(int64_t rows, int64_t columns,
                                                       const float* from, float* to) {
  __shared__ float tile[kSumRows][kTile];
  const int tile_column = static_cast<int>(threadIdx.x) % kTile;
  const int tile_row = static_cast<int>(threadIdx.x) / kTile;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kTile; first < columns;
       first += static_cast<int64_t>(gridDim.x) * kTile) {
    const int64_t column = first + tile_column;
    float sum = 0;
    for (int64_t first_row = 0; first_row < rows; first_row += kSumRows) {
#pragma unroll
      for (int row = tile_row; row < kSumRows; row += kSumThreads / kTile) {
        const bool inside = first_row + row < rows && column < columns;
        tile[row][tile_column] = inside ? from[(first_row + row) * columns + column] : 0.0f;
      }
      __syncthreads();
      if (tile_row == 0) {
        const int64_t left = rows - first_row;
        const int tile_rows = left < kSumRows ? static_cast<int>(left) : kSumRows;
        int row = 0;
        // The first row as it is: 0 + -0 would be 0.
        if (first_row == 0) sum = tile[row++][tile_column];
        for (; row < tile_rows; ++row) sum += tile[row][tile_column];
      }
      __syncthreads();
    }
    if (tile_row == 0 && column < columns) to[column] = sum;
  }
}

__global__ void ReluInPlace(int64_t count, float* values) {
  for (int64_t i = GridThread(); i < count; i += GridThreads()) {
    const float value = values[i];
    values[i] = value < 0 ? 0 : value;  // not fmaxf, which drops NaNs
  }
}

__global__ void ReluGradientInPlace(int64_t count, const float* output, float* gradient) {
  for (int64_t i = GridThread(); i < count; i += GridThreads()) {
    gradient[i] = output[i] <= 0 ? 0 : gradient[i];
  }
}

__global__ __launch_bounds__(kThreads) void SquareErrors(int64_t count, float scale,
                                                         const float* output, float* gradient,
                                                         double* partials) {
  double sum = 0;
  for (int64_t i = GridThread(); i < count; i += GridThreads()) {
    const float difference = output[i] - gradient[i];
    gradient[i] = scale * difference;
    sum += static_cast<double>(difference) * static_cast<double>(difference);
  }
  sum = BlockSum<kThreads>(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ __launch_bounds__(kThreads) void AddMean(int64_t count, int partial_count,
                                                    const double* partials, double* loss) {
  const int thread = static_cast<int>(threadIdx.x);
  const double sum = BlockSum<kThreads>(thread < partial_count ? partials[thread] : 0.0);
  if (thread == 0) *loss += sum / static_cast<double>(count);
}

__global__ void FillSampleBlocks(uint64_t purpose_hash, uint64_t first_sample, int64_t width,
                                 int64_t row_blocks, int64_t blocks, float* values) {
  for (int64_t i = GridThread(); i < blocks; i += GridThreads()) {
    const int64_t row = i / row_blocks;
    const uint64_t sample = first_sample + static_cast<uint64_t>(row);
    const uint64_t key = Mix64(purpose_hash ^ Mix64(sample));  // StreamKey
    WriteBlock(key, i % row_blocks, 0, width, Uniform{0x1p-23f}, values + row * width);
  }
}

}  // namespace

cudaError_t LoadLayerKernels() {
  return Load(MultiplyTiles<1>, MultiplyTiles<4>, AddBiasToRows, SumRows, ReluInPlace,
              ReluGradientInPlace, SquareErrors, AddMean, FillSampleBlocks);
}

cudaError_t TiledForward(const LinearShape& shape, const float* x, const float* weight,
                         const float* bias, float* y, cudaStream_t stream) {
  return LaunchProduct<4>({.rows = shape.batch,
                           .columns = shape.out,
                           .terms = shape.in,
                           .a = x,
                           .a_row = shape.in,
                           .a_term = 1,
                           .b = weight,
                           .b_term = 1,
                           .b_column = shape.in,
                           .bias = bias,
                           .out = y},
                          stream);
}

cudaError_t TiledInputGradient(const LinearShape& shape, const float* weight,
                               const float* y_gradient, float* x_gradient, cudaStream_t stream) {
  return LaunchProduct<1>({.rows = shape.batch,
                           .columns = shape.in,
                           .terms = shape.out,
                           .a = y_gradient,
                           .a_row = shape.out,
                           .a_term = 1,
                           .b = weight,
                           .b_term = shape.in,
                           .b_column = 1,
                           .bias = nullptr,
                           .out = x_gradient},
                          stream);
}

cudaError_t TiledWeightGradient(const LinearShape& shape, const float* x, const float* y_gradient,
                                float* weight_gradient, cudaStream_t stream) {
  return LaunchProduct<1>({.rows = shape.out,
                           .columns = shape.in,
                           .terms = shape.batch,
                           .a = y_gradient,
                           .a_row = 1,
                           .a_term = shape.out,
                           .b = x,
                           .b_term = shape.in,
                           .b_column = 1,
                           .bias = nullptr,
                           .out = weight_gradient},
                          stream);
}

cudaError_t AddBias(const LinearShape& shape, const float* bias, float* y, cudaStream_t stream) {
  const int64_t count = shape.batch * shape.out;
  if (count == 0) return cudaSuccess;
  return Launch(AddBiasToRows, BlocksFor(count), kThreads, stream, bias, shape.out, count, y);
}

cudaError_t BiasGradient(const LinearShape& shape, const float* y_gradient, float* bias_gradient,
                         cudaStream_t stream) {
  if (shape.out == 0) return cudaSuccess;
  const int64_t tiles = CeilDivide(shape.out, kTile);
  return Launch(SumRows, static_cast<unsigned>(tiles < kMaxBlocks ? tiles : kMaxBlocks),
                kSumThreads, stream, shape.batch, shape.out, y_gradient, bias_gradient);
}

cudaError_t Relu(int64_t count, float* values, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(ReluInPlace, BlocksFor(count), kThreads, stream, count, values);
}

cudaError_t ReluGradient(int64_t count, const float* output, float* gradient, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(ReluGradientInPlace, BlocksFor(count), kThreads, stream, count, output, gradient);
}

cudaError_t MeanSquaredError(int64_t count, const float* output, float* gradient, double* partials,
                             double* loss, cudaStream_t stream) {
  static_assert(kMeanSquaredErrorPartials == kThreads);  // AddMean: a thread a partial sum
  const int64_t wanted = CeilDivide(count, kThreads);
  const unsigned blocks = static_cast<unsigned>(
      wanted < kMeanSquaredErrorPartials ? (wanted < 1 ? 1 : wanted) : kMeanSquaredErrorPartials);
  const float scale = static_cast<float>(2.0 / static_cast<double>(count));
  const cudaError_t error =
      Launch(SquareErrors, blocks, kThreads, stream, count, scale, output, gradient, partials);
  if (error != cudaSuccess) return error;
  return Launch(AddMean, 1, kThreads, stream, count, static_cast<int>(blocks),
                static_cast<const double*>(partials), loss);
}

cudaError_t FillSamples(uint64_t purpose_hash, uint64_t first_sample, int64_t rows, int64_t width,
                        float* values, cudaStream_t stream) {
  const int64_t row_blocks = CeilDivide(width, Uniform::kPerBlock);
  const int64_t blocks = rows * row_blocks;
  if (blocks == 0) return cudaSuccess;
  return Launch(FillSampleBlocks, BlocksFor(blocks), kThreads, stream, purpose_hash, first_sample,
                width, row_blocks, blocks, values);
}

}  // namespace shardproof::cuda
