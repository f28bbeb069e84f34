// Kernels of trainer/model/layers.h's functions: launches, nothing else.
//
// As cuda_kernels.h: enqueued on `stream`, device memory, counts in elements, one rounding an
// operation, bits that depend on shape and values alone. Sums are added in the order of
// layers.cc's loops, so that a product has their bits wherever the cpu does not use Eigen.
//
// This header has plain types only: nvcc reads it, and Abseil is not for nvcc.
#ifndef TRAINER_ENGINES_CUDA_LAYER_KERNELS_H_
#define TRAINER_ENGINES_CUDA_LAYER_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "trainer/model/layers.h"

namespace shardproof::cuda {

// As LoadKernels of cuda_kernels.h, for this header.
cudaError_t LoadLayerKernels();

// The three products, by tiles; meant for shapes that cuBLAS is not used for. Results are
// written whole. An extent may be 0.
cudaError_t TiledForward(const LinearShape& shape, const float* x, const float* weight,
                         const float* bias, float* y, cudaStream_t stream);
cudaError_t TiledInputGradient(const LinearShape& shape, const float* weight,
                               const float* y_gradient, float* x_gradient, cudaStream_t stream);
cudaError_t TiledWeightGradient(const LinearShape& shape, const float* x, const float* y_gradient,
                                float* weight_gradient, cudaStream_t stream);

// y[r, o] += bias[o].
cudaError_t AddBias(const LinearShape& shape, const float* bias, float* y, cudaStream_t stream);
// bias_gradient = the sum of y_gradient's rows, in order.
cudaError_t BiasGradient(const LinearShape& shape, const float* y_gradient, float* bias_gradient,
                         cudaStream_t stream);

// In place. NaN stays NaN.
cudaError_t Relu(int64_t count, float* values, cudaStream_t stream);
cudaError_t ReluGradient(int64_t count, const float* output, float* gradient, cudaStream_t stream);

// The doubles of MeanSquaredError's `partials`, which hold nothing between calls.
constexpr int64_t kMeanSquaredErrorPartials = 256;

// loss[0] += the mean of (output - target)^2, in float64. On entry `gradient` holds the
// targets; on return the derivative.
cudaError_t MeanSquaredError(int64_t count, const float* output, float* gradient, double* partials,
                             double* loss, cudaStream_t stream);

// values[r, c] = element c, uniform in [-1, 1), of the stream of sample first_sample + r, that is
// FillUniform's of the key StreamKey(seed, purpose, sample) (trainer/model/data.h);
// purpose_hash = StreamHash(seed, purpose).
cudaError_t FillSamples(uint64_t purpose_hash, uint64_t first_sample, int64_t rows, int64_t width,
                        float* values, cudaStream_t stream);

}  // namespace shardproof::cuda

#endif  // TRAINER_ENGINES_CUDA_LAYER_KERNELS_H_
