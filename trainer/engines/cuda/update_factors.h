// What the host computes in double for an update kernel, rounded to float32 once.
#ifndef TRAINER_ENGINES_CUDA_UPDATE_FACTORS_H_
#define TRAINER_ENGINES_CUDA_UPDATE_FACTORS_H_

#include <cstdint>

#include "invariants/run_description/run_description.h"
#include "trainer/engines/cuda/cuda_kernels.h"

namespace shardproof {

// With these the kernels of cuda_kernels.h compute what ApplyUpdate
// (trainer/optimizer/optimizer.h) does. `optimizer` is of the kind that the name says, one
// tensor's (HyperParametersOf); `update` counts from 1, as there.
cuda::AdamWFactors AdamWFactorsOf(const OptimizerDescription& optimizer, int64_t update);

// A momentum of 0 means that the kernel gets a null exp_avg.
cuda::SgdFactors SgdFactorsOf(const OptimizerDescription& optimizer, int64_t update);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_UPDATE_FACTORS_H_
