// The sharded trainer's AdamW and SGD over runs of elements.
//
// Arithmetic is float32, one rounding an operation, in the order written here, so that a
// shard's result does not depend on how the tensor was cut. t = updates of the tensor so
// far, this one included; hyper-parameters are rounded to float32 once, the bias
// corrections are computed in double and rounded once.
//   AdamW (Loshchilov and Hutter 2019; order of PyTorch's torch/optim/adamw.py):
//     p = p * (1 - lr * weight_decay)
//     m = m + (g - m) * (1 - beta1)
//     v = v * beta2 + (g * g) * (1 - beta2)
//     p = p - step_size * (m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)),
//         step_size = lr / (1 - beta1^t)
//   SGD (PyTorch's torch/optim/sgd.py, dampening 0, no Nesterov):
//     g = g + weight_decay * p;  m = g at t = 1, else momentum * m + g;  p = p - lr * m
//     momentum 0: p = p - lr * g, and m is not used.
#ifndef TRAINER_OPTIMIZER_OPTIMIZER_H_
#define TRAINER_OPTIMIZER_OPTIMIZER_H_

#include <cstdint>

#include "invariants/run_description/run_description.h"

namespace shardproof {

// Updates `count` elements in place. exp_avg_sq is not used by SGD, exp_avg neither when
// momentum is 0; they may then be null. `update` counts from 1.
void ApplyUpdate(const OptimizerDescription& optimizer, int64_t update, int64_t count,
                 const float* gradient, float* parameter, float* exp_avg, float* exp_avg_sq);

}  // namespace shardproof

#endif  // TRAINER_OPTIMIZER_OPTIMIZER_H_
