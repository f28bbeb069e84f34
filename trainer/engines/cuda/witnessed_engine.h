// WitnessedEngine: a cuda engine whose observations also show what others saw of its GPUs: the
// kernels of collectives that CUPTI recorded in the step, and the memory that the driver gave.
#ifndef TRAINER_ENGINES_CUDA_WITNESSED_ENGINE_H_
#define TRAINER_ENGINES_CUDA_WITNESSED_ENGINE_H_

#include <memory>

#include "collectives/device_world.h"
#include "collectives/nccl/kernel_witness.h"
#include "trainer/engines/cuda/cuda_engine.h"
#include "trainer/engines/engine.h"

namespace shardproof {

// Adds a DeviceWitness for each local rank. Kernels are told apart by device, so ranks that share
// one show none, and no memory either: neither could be said to be theirs. `world` outlives the
// result. What `witness` saw before a step is dropped when the step begins; an error of it is the
// step's.
std::unique_ptr<Engine> MakeWitnessedEngine(std::unique_ptr<CudaEngine> engine,
                                            const DeviceWorld& world,
                                            std::shared_ptr<KernelWitness> witness);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_WITNESSED_ENGINE_H_
