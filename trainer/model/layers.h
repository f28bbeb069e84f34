// Linear, ReLU and mean squared error on row-major float32 buffers.
//
// The bits of a result depend on the shape and the values alone: not on where the buffers
// lie in memory, not on the machine's caches, not on threads. The sharded trainer and the
// oracle rely on it, because they compute the same layer in different buffers.
//
//   x [batch, in]   y [batch, out]   weight [out, in]   bias [out]
#ifndef TRAINER_MODEL_LAYERS_H_
#define TRAINER_MODEL_LAYERS_H_

#include <cstdint>

namespace shardproof {

// Every extent is at least 1, as Validate (invariants/run_description) holds an mlp to: only a
// probe, which has no layers, may have empty tensors. A sum over none is not written.
struct LinearShape {
  int64_t batch = 1;
  int64_t in = 1;
  int64_t out = 1;
};

// True where the products go to Eigen's blocked matrix product, false where they go to the
// loops in layers.cc. A function of the shape alone. Both are correct for every shape; they
// add in different orders, so their last bits differ.
bool UsesEigen(const LinearShape& shape);

// y = x weight^T + bias; bias null: none. Loops: four partial sums, over i = 0, 4, ...,
// 1, 5, ... and so on, added as (0 + 2) + (1 + 3); then the last in % 4 products in order;
// then the bias.
void LinearForward(const LinearShape& shape, const float* x, const float* weight, const float* bias,
                   float* y);

// x_gradient = y_gradient weight. Loops: over out in order.
void LinearInputGradient(const LinearShape& shape, const float* weight, const float* y_gradient,
                         float* x_gradient);

// weight_gradient = y_gradient^T x. Loops: over batch in order.
void LinearWeightGradient(const LinearShape& shape, const float* x, const float* y_gradient,
                          float* weight_gradient);

// bias_gradient = the sum of y_gradient's rows, in order.
void LinearBiasGradient(const LinearShape& shape, const float* y_gradient, float* bias_gradient);

// values = max(values, 0), in place. NaN stays NaN: a poisoned buffer must not become zeros.
void Relu(int64_t count, float* values);

// gradient = 0 where ReLU's output is <= 0, in place.
void ReluGradient(int64_t count, const float* output, float* gradient);

// The mean of (output - target)^2 over `count` elements, summed in double in order. On entry
// `gradient` holds the targets; on return the derivative, float(2 / count) * (output - target).
double MeanSquaredError(int64_t count, const float* output, float* gradient);

}  // namespace shardproof

#endif  // TRAINER_MODEL_LAYERS_H_
