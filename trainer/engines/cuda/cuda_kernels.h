// The cuda engine's arithmetic on device memory: launches, nothing else.
//
// Every function enqueues on `stream` of the current device and returns at once with what the
// launch returned. Pointers are device memory, counts are elements; a count of 0 launches nothing.
// float32 with one rounding an operation (no fused multiply-add), so that results have the bits of
// the cpu engine's loops in trainer/optimizer, trainer/model/layers and trainer/model/data.
// Reductions add in an order that depends on the count alone: the same bits every time.
//
// This header has plain types only: nvcc reads it, and Abseil is not for nvcc.
#ifndef TRAINER_ENGINES_CUDA_CUDA_KERNELS_H_
#define TRAINER_ENGINES_CUDA_CUDA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardproof::cuda {

// Loads the kernels of this header on the current device. CUDA otherwise loads each at its first
// launch, which may wait for the device and takes memory.
cudaError_t LoadKernels();

cudaError_t Fill(float* values, int64_t count, uint32_t bits, cudaStream_t stream);
cudaError_t Scale(float* values, int64_t count, float factor, cudaStream_t stream);
// factor: one float on the device.
cudaError_t ScaleBy(float* values, int64_t count, const float* factor, cudaStream_t stream);
// to += from. They do not overlap.
cudaError_t Add(float* to, const float* from, int64_t count, cudaStream_t stream);

// sum[0] += the squares of values in float64; the caller zeroes it first. One launch after
// another on one stream adds in that order.
cudaError_t AddSquares(const float* values, int64_t count, double* sum, cudaStream_t stream);
// coefficient[0] = float(min(1, max_norm / (sqrt(sum[0]) + 1e-6))), as the cpu engine.
cudaError_t ClipCoefficient(const double* sum, float max_norm, float* coefficient,
                            cudaStream_t stream);

// trainer/optimizer/optimizer.h, the host's double arithmetic already done and rounded.
struct AdamWFactors {
  float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction2, epsilon;
};
cudaError_t AdamW(const AdamWFactors& factors, int64_t count, const float* gradient,
                  float* parameter, float* exp_avg, float* exp_avg_sq, cudaStream_t stream);
struct SgdFactors {
  float weight_decay, learning_rate, momentum;
  bool first_update;  // momentum starts with the gradient, whatever the buffer holds
};
// exp_avg null: without momentum.
cudaError_t Sgd(const SgdFactors& factors, int64_t count, const float* gradient, float* parameter,
                float* exp_avg, cudaStream_t stream);

// trainer/model/data.h: elements [first, first + count) of the stream `key`.
cudaError_t FillUniform(uint64_t key, int64_t first, int64_t count, float bound, float* values,
                        cudaStream_t stream);
cudaError_t FillMultiplesOf256th(uint64_t key, int64_t first, int64_t count, float* values,
                                 cudaStream_t stream);
cudaError_t FillSmallIntegers(uint64_t key, int64_t first, int64_t count, float* values,
                              cudaStream_t stream);

}  // namespace shardproof::cuda

#endif  // TRAINER_ENGINES_CUDA_CUDA_KERNELS_H_
