#include <cooperative_groups.h>

#include "trainer/engines/cuda/cuda_kernels.h"
#include "trainer/engines/cuda/launch.cuh"
#include "trainer/engines/cuda/stream_hash.cuh"

namespace shardproof::cuda {
namespace {

// ---- Independent elements ----------------------------------------------------------------

// Up to four arrays of one length. An operation says by bit k of kReads and kWrites what it
// does with array k, and computes one element in place.
template <int kCount>
struct Arrays {
  float* data[kCount];
};

template <typename Operation>
__global__ void Elements(Operation operation, Arrays<Operation::kArrays> arrays, int64_t count,
                         int64_t vectors) {
  constexpr int kArrays = Operation::kArrays;
  // The vectors are for bandwidth: an element's arithmetic is the same in both loops.
  for (int64_t i = GridThread(); i < vectors; i += GridThreads()) {
    float elements[4][kArrays];
#pragma unroll
    for (int k = 0; k < kArrays; ++k) {
      if (!(Operation::kReads >> k & 1)) continue;
      const float4 vector = reinterpret_cast<const float4*>(arrays.data[k])[i];
      elements[0][k] = vector.x;
      elements[1][k] = vector.y;
      elements[2][k] = vector.z;
      elements[3][k] = vector.w;
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) operation(elements[part]);
#pragma unroll
    for (int k = 0; k < kArrays; ++k) {
      if (!(Operation::kWrites >> k & 1)) continue;
      reinterpret_cast<float4*>(arrays.data[k])[i] =
          make_float4(elements[0][k], elements[1][k], elements[2][k], elements[3][k]);
    }
  }
  for (int64_t i = 4 * vectors + GridThread(); i < count; i += GridThreads()) {
    float element[kArrays];
#pragma unroll
    for (int k = 0; k < kArrays; ++k) {
      if (Operation::kReads >> k & 1) element[k] = arrays.data[k][i];
    }
    operation(element);
#pragma unroll
    for (int k = 0; k < kArrays; ++k) {
      if (Operation::kWrites >> k & 1) arrays.data[k][i] = element[k];
    }
  }
}

bool IsAligned(const float* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(float4) == 0;
}

template <typename Operation>
cudaError_t LaunchElements(const Operation& operation, const Arrays<Operation::kArrays>& arrays,
                           int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  int64_t vectors = count / 4;
  for (const float* pointer : arrays.data) {
    if (!IsAligned(pointer)) vectors = 0;
  }
  const int64_t items = vectors > 0 ? vectors : count;
  return Launch(Elements<Operation>, BlocksFor(items), kThreads, stream, operation, arrays, count,
                vectors);
}

// An array that is only read.
float* Input(const float* values) { return const_cast<float*>(values); }

struct FillElement {
  static constexpr int kArrays = 1, kReads = 0, kWrites = 1;
  uint32_t bits;
  __device__ void operator()(float* element) const { element[0] = __uint_as_float(bits); }
};

struct ScaleElement {
  static constexpr int kArrays = 1, kReads = 1, kWrites = 1;
  float factor;
  __device__ void operator()(float* element) const { element[0] *= factor; }
};

struct ScaleElementBy {
  static constexpr int kArrays = 1, kReads = 1, kWrites = 1;
  const float* factor;
  __device__ void operator()(float* element) const { element[0] *= *factor; }
};

struct AddElement {  // to, from
  static constexpr int kArrays = 2, kReads = 3, kWrites = 1;
  __device__ void operator()(float* element) const { element[0] += element[1]; }
};

struct AdamWElement {  // gradient, parameter, exp_avg, exp_avg_sq
  static constexpr int kArrays = 4, kReads = 15, kWrites = 14;
  AdamWFactors factors;
  __device__ void operator()(float* element) const {
    const float g = element[0];
    const float m = element[2] + (g - element[2]) * factors.one_minus_beta1;
    const float v = element[3] * factors.beta2 + (g * g) * factors.one_minus_beta2;
    const float denominator = __fdiv_rn(__fsqrt_rn(v), factors.root_correction2) + factors.epsilon;
    element[2] = m;
    element[3] = v;
    element[1] = element[1] * factors.decay - factors.step_size * __fdiv_rn(m, denominator);
  }
};

struct SgdElement {  // gradient, parameter
  static constexpr int kArrays = 2, kReads = 3, kWrites = 2;
  SgdFactors factors;
  __device__ void operator()(float* element) const {
    const float g = element[0] + factors.weight_decay * element[1];
    element[1] = element[1] - factors.learning_rate * g;
  }
};

// The first update must not read what the momentum's buffer held, which may be a NaN.
template <bool kFirstUpdate>
struct SgdMomentumElement {  // gradient, parameter, exp_avg
  static constexpr int kArrays = 3, kReads = kFirstUpdate ? 3 : 7, kWrites = 6;
  SgdFactors factors;
  __device__ void operator()(float* element) const {
    const float g = element[0] + factors.weight_decay * element[1];
    if constexpr (kFirstUpdate) {
      element[2] = g;
    } else {
      element[2] = factors.momentum * element[2] + g;
    }
    element[1] = element[1] - factors.learning_rate * element[2];
  }
};

// ---- Sums --------------------------------------------------------------------------------

// One launch may use no memory but the sum's, so one cluster of blocks adds up everything and
// its blocks exchange their sums through shared memory.
constexpr unsigned kClusterBlocks = 8;
constexpr unsigned kClusterBlockThreads = 1024;

__global__ __launch_bounds__(kClusterBlockThreads) void SumSquares(const float* values,
                                                                   int64_t count, bool aligned,
                                                                   double* sum) {
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  __shared__ double block_sum;
  double partial = 0;
  // A thread adds the same elements in the same order, however they are loaded.
  const int64_t groups = count / 4;
#pragma unroll 4
  for (int64_t group = GridThread(); group < groups; group += GridThreads()) {
    const float* from = values + 4 * group;
    const float4 four = aligned ? *reinterpret_cast<const float4*>(from)
                                : make_float4(from[0], from[1], from[2], from[3]);
    partial += static_cast<double>(four.x) * static_cast<double>(four.x);
    partial += static_cast<double>(four.y) * static_cast<double>(four.y);
    partial += static_cast<double>(four.z) * static_cast<double>(four.z);
    partial += static_cast<double>(four.w) * static_cast<double>(four.w);
  }
  const int64_t last = 4 * groups + GridThread();
  if (last < count) {
    partial += static_cast<double>(values[last]) * static_cast<double>(values[last]);
  }
  const double reduced = BlockSum<kClusterBlockThreads>(partial);
  if (threadIdx.x == 0) block_sum = reduced;
  cluster.sync();
  if (cluster.block_rank() == 0 && threadIdx.x == 0) {
    double total = 0;
    for (unsigned block = 0; block < kClusterBlocks; ++block) {
      total += *cluster.map_shared_rank(&block_sum, block);
    }
    *sum += total;
  }
  // A block's shared memory must live until it has been read.
  cluster.sync();
}

__global__ void FindClipCoefficient(const double* sum, float max_norm, float* coefficient) {
  const double found = static_cast<double>(max_norm) / (sqrt(*sum) + 1e-6);
  *coefficient = static_cast<float>(1.0 < found ? 1.0 : found);  // a NaN stays one
}

// ---- Seeded data -------------------------------------------------------------------------

// Blocks of the stream, which start at `first_block`.
template <typename Value>
__global__ void FillBlocks(uint64_t key, int64_t first, int64_t count, int64_t first_block,
                           int64_t blocks, Value value, float* values) {
  for (int64_t i = GridThread(); i < blocks; i += GridThreads()) {
    WriteBlock(key, first_block + i, first, count, value, values);
  }
}

template <typename Value>
cudaError_t FillStream(uint64_t key, int64_t first, int64_t count, const Value& value,
                       float* values, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const int64_t first_block = first / Value::kPerBlock;
  const int64_t blocks = (first + count - 1) / Value::kPerBlock - first_block + 1;
  return Launch(FillBlocks<Value>, BlocksFor(blocks), kThreads, stream, key, first, count,
                first_block, blocks, value, values);
}

}  // namespace

cudaError_t LoadKernels() {
  return Load(Elements<FillElement>, Elements<ScaleElement>, Elements<ScaleElementBy>,
              Elements<AddElement>, Elements<AdamWElement>, Elements<SgdElement>,
              Elements<SgdMomentumElement<true>>, Elements<SgdMomentumElement<false>>, SumSquares,
              FindClipCoefficient, FillBlocks<Uniform>, FillBlocks<MultipleOf256th>,
              FillBlocks<SmallInteger>);
}

cudaError_t Fill(float* values, int64_t count, uint32_t bits, cudaStream_t stream) {
  return LaunchElements(FillElement{bits}, {{values}}, count, stream);
}

cudaError_t Scale(float* values, int64_t count, float factor, cudaStream_t stream) {
  return LaunchElements(ScaleElement{factor}, {{values}}, count, stream);
}

cudaError_t ScaleBy(float* values, int64_t count, const float* factor, cudaStream_t stream) {
  return LaunchElements(ScaleElementBy{factor}, {{values}}, count, stream);
}

cudaError_t Add(float* to, const float* from, int64_t count, cudaStream_t stream) {
  return LaunchElements(AddElement{}, {{to, Input(from)}}, count, stream);
}

cudaError_t AddSquares(const float* values, int64_t count, double* sum, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kClusterBlocks;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kClusterBlocks);
  config.blockDim = dim3(kClusterBlockThreads);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, SumSquares, values, count, IsAligned(values), sum);
}

cudaError_t ClipCoefficient(const double* sum, float max_norm, float* coefficient,
                            cudaStream_t stream) {
  return Launch(FindClipCoefficient, 1, 1, stream, sum, max_norm, coefficient);
}

cudaError_t AdamW(const AdamWFactors& factors, int64_t count, const float* gradient,
                  float* parameter, float* exp_avg, float* exp_avg_sq, cudaStream_t stream) {
  return LaunchElements(AdamWElement{factors}, {{Input(gradient), parameter, exp_avg, exp_avg_sq}},
                        count, stream);
}

cudaError_t Sgd(const SgdFactors& factors, int64_t count, const float* gradient, float* parameter,
                float* exp_avg, cudaStream_t stream) {
  if (exp_avg == nullptr) {
    return LaunchElements(SgdElement{factors}, {{Input(gradient), parameter}}, count, stream);
  }
  const Arrays<3> arrays = {{Input(gradient), parameter, exp_avg}};
  if (factors.first_update) {
    return LaunchElements(SgdMomentumElement<true>{factors}, arrays, count, stream);
  }
  return LaunchElements(SgdMomentumElement<false>{factors}, arrays, count, stream);
}

cudaError_t FillUniform(uint64_t key, int64_t first, int64_t count, float bound, float* values,
                        cudaStream_t stream) {
  return FillStream(key, first, count, Uniform{bound * 0x1p-23f}, values, stream);
}

cudaError_t FillMultiplesOf256th(uint64_t key, int64_t first, int64_t count, float* values,
                                 cudaStream_t stream) {
  return FillStream(key, first, count, MultipleOf256th{}, values, stream);
}

cudaError_t FillSmallIntegers(uint64_t key, int64_t first, int64_t count, float* values,
                              cudaStream_t stream) {
  return FillStream(key, first, count, SmallInteger{}, values, stream);
}

}  // namespace shardproof::cuda
