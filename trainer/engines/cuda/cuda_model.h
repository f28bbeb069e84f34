// CudaModel: ModelCompute on device memory; and ModelCompute by CudaModel, for the oracle.
//
// The same stages, shapes and meaning as trainer/model/model_compute.h, with device pointers and
// everything enqueued on the stream. Bits depend on shapes and values alone, not on addresses or
// on what else runs on the device, so the oracle that computes the same layers in other buffers
// gets the same bits.
#ifndef TRAINER_ENGINES_CUDA_CUDA_MODEL_H_
#define TRAINER_ENGINES_CUDA_CUDA_MODEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "invariants/run_description/run_description.h"
#include "trainer/model/model_compute.h"

namespace shardproof {

// For one rank: one device, and one stream at a time. Allocates what it needs when it is made
// (workspace_bytes), nothing later.
class CudaModel {
 public:
  virtual ~CudaModel() = default;
  virtual int64_t Width(int32_t boundary) const = 0;
  virtual int64_t workspace_bytes() const = 0;

  virtual absl::Status LoadInput(const MicroBatch& micro_batch, float* input,
                                 cudaStream_t stream) = 0;
  virtual absl::Status Forward(int32_t stage, absl::Span<const float* const> parameters,
                               const float* in, float* out, cudaStream_t stream) = 0;
  // loss[0] += the micro-batch's loss, in float64 on the device. output_gradient may be null:
  // the loss alone.
  virtual absl::Status Loss(const MicroBatch& micro_batch, const float* output,
                            float* output_gradient, double* loss, cudaStream_t stream) = 0;
  virtual absl::Status Backward(const MicroBatch& micro_batch, int32_t stage,
                                absl::Span<const float* const> parameters, const float* in,
                                const float* out, float* out_gradient, float* in_gradient,
                                absl::Span<float* const> gradients, cudaStream_t stream) = 0;
};

struct CudaModelOptions {
  bool tf32 = false;
  // All pointers are multiples of 16 bytes: no workspace for copies of those that are not. Such a
  // one may then be InvalidArgument.
  bool aligned = false;
};

// workspace_bytes() of the model that MakeCudaModel makes; 0 where it makes none.
int64_t CudaModelWorkspaceBytes(const RunDescription& run, const CudaModelOptions& options);

// On the current device, for which it waits once: it loads the kernels of cuda_kernels.h and
// layer_kernels.h and runs every product that cuBLAS will be asked for, so that nothing is loaded
// later. Errors of MakeModelCompute, which come before any of
// the device; ResourceExhausted that names the bytes asked for and those free. `run` outlives the
// result.
absl::StatusOr<std::unique_ptr<CudaModel>> MakeCudaModel(const RunDescription& run,
                                                         const CudaModelOptions& options);

// The same arithmetic with host pointers, on `device`: every call copies there and back and waits,
// and makes the device current. It is slow to call and meant for the oracle. One call at a time.
// The first CUDA error stays in status(), and what is computed from then on is NaN.
class HostModelByCuda : public ModelCompute {
 public:
  virtual absl::Status status() const = 0;
};
absl::StatusOr<std::unique_ptr<HostModelByCuda>> MakeHostModelByCuda(
    const RunDescription& run, int device, const CudaModelOptions& options);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_CUDA_MODEL_H_
