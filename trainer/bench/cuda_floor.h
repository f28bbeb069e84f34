// CudaFloor: a step's matrix products alone, as one CUDA graph on one device.
//
// The layer functions, and so the kernels, are those of the cuda engine (cuda_layers.h). Every
// stage has a weight and every boundary activations of its own, as in a step; their values are
// uniform and of the size that a new model's are, since a GPU multiplies zeros faster. All weight
// gradients go to one buffer, and gradients of activations to two by turns. Nothing runs between
// the products.
#ifndef TRAINER_BENCH_CUDA_FLOOR_H_
#define TRAINER_BENCH_CUDA_FLOOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "invariants/run_description/run_description.h"
#include "trainer/bench/step_traffic.h"

namespace shardproof {

class CudaFloor {
 public:
  virtual ~CudaFloor() = default;
  // Enqueues one replay and does not wait, so that several devices may replay at once.
  virtual absl::Status Launch() = 0;
  // Waits for the last Launch: milliseconds, by events around the graph.
  virtual absl::StatusOr<double> Finish() = 0;
};

struct CudaFloorOptions {
  int device = 0;
  int32_t repeats = 1;  // ranks that share the device: the products of each, one after the other
  bool tf32 = false;
};

// `gemms`: StepGemms of `run`, not empty. ResourceExhausted names the bytes asked for and those
// free. The first replay has run when this returns.
absl::StatusOr<std::unique_ptr<CudaFloor>> MakeCudaFloor(const RunDescription& run,
                                                         const std::vector<Gemm>& gemms,
                                                         const CudaFloorOptions& options);

}  // namespace shardproof

#endif  // TRAINER_BENCH_CUDA_FLOOR_H_
