// CudaLayers: trainer/model/layers.h on device memory.
//
// The same functions, shapes and meaning, enqueued on `stream`. Matrix products go to cuBLAS or to
// tiles of our own (layer_kernels.h), by shape alone. Bits depend on shapes and values alone, not
// on addresses, streams or what else runs on the device:
// - cuBLAS has a workspace of its own here, so that products on other streams do not change
//   which kernel it picks;
// - it may pick by alignment too, so an operand that does not lie at a multiple of 16 bytes is
//   copied to one, or refused (CudaLayersOptions::aligned).
// Everything is bound to the device that was current at Create.
#ifndef TRAINER_ENGINES_CUDA_CUDA_LAYERS_H_
#define TRAINER_ENGINES_CUDA_CUDA_LAYERS_H_

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/engines/cuda/device_memory.h"
#include "trainer/model/layers.h"

namespace shardproof {

// True where a layer's three products go to cuBLAS. A function of the shape alone.
bool UsesCublas(const LinearShape& shape);

struct CudaLayersOptions {
  bool tf32 = false;  // cuBLAS may round the factors of its products to TF32
  // All operands lie at multiples of 16 bytes: no workspace to copy them to. A product with
  // one that does not is InvalidArgument.
  bool aligned = false;
};

// One stream at a time. Allocates what it needs in Create, nothing later.
class CudaLayers {
 public:
  // For layers of these shapes. Waits for the device: each product that cuBLAS will be asked for
  // runs once, and our own kernels are loaded, so that nothing is loaded while something is
  // measured or waits for a peer.
  static absl::StatusOr<std::unique_ptr<CudaLayers>> Create(absl::Span<const LinearShape> shapes,
                                                            const CudaLayersOptions& options);
  ~CudaLayers();
  CudaLayers(const CudaLayers&) = delete;
  CudaLayers& operator=(const CudaLayers&) = delete;

  // What Create keeps on the device for layers of these shapes.
  static int64_t WorkspaceBytes(absl::Span<const LinearShape> shapes,
                                const CudaLayersOptions& options);

  // cuBLAS's workspace, room for unaligned operands, partial sums.
  int64_t workspace_bytes() const { return workspace_.bytes(); }

  // `shape` is one of Create's.
  absl::Status LinearForward(const LinearShape& shape, const float* x, const float* weight,
                             const float* bias, float* y, cudaStream_t stream);
  absl::Status LinearInputGradient(const LinearShape& shape, const float* weight,
                                   const float* y_gradient, float* x_gradient, cudaStream_t stream);
  absl::Status LinearWeightGradient(const LinearShape& shape, const float* x,
                                    const float* y_gradient, float* weight_gradient,
                                    cudaStream_t stream);
  absl::Status LinearBiasGradient(const LinearShape& shape, const float* y_gradient,
                                  float* bias_gradient, cudaStream_t stream);
  absl::Status Relu(int64_t count, float* values, cudaStream_t stream);
  absl::Status ReluGradient(int64_t count, const float* output, float* gradient,
                            cudaStream_t stream);
  // loss[0] += the mean of (output - target)^2, summed in float64 in an order that depends on the
  // count alone. `gradient` holds the targets on entry, the derivative on return.
  absl::Status MeanSquaredError(int64_t count, const float* output, float* gradient, double* loss,
                                cudaStream_t stream);

 private:
  // A column-major product c [m, n] = a b, as cuBLAS writes it; each matrix also has the place in
  // workspace that it is copied to or from when it lies unaligned.
  struct Matrix {
    cublasOperation_t operation;
    int64_t leading;  // the stored column's length
    int64_t count;
    float* place;
  };
  struct Gemm {
    int64_t m, n, k;
    Matrix a, b, c;
  };

  // Room for one operand of each kind.
  struct Places {
    float* x = nullptr;       // x and its gradient
    float* weight = nullptr;  // the weight and its gradient
    float* y = nullptr;       // y and its gradient
  };
  struct OperandBytes {
    int64_t x = 0;
    int64_t weight = 0;
    int64_t y = 0;
    int64_t Sum() const { return x + weight + y; }
  };

  static OperandBytes LargestOperands(absl::Span<const LinearShape> shapes);
  static Places PlacesFrom(char* begin, const OperandBytes& bytes);

  explicit CudaLayers(const CudaLayersOptions& options) : options_(options) {}
  absl::Status AllocateWorkspace(absl::Span<const LinearShape> shapes);
  absl::Status RunEachProductOnce(absl::Span<const LinearShape> shapes);
  absl::Status UseStream(cudaStream_t stream);
  absl::Status Multiply(const Gemm& gemm, const float* a, const float* b, float* c,
                        cudaStream_t stream);

  const CudaLayersOptions options_;
  DeviceMemory workspace_;
  double* partials_ = nullptr;  // these lie in workspace_
  void* cublas_workspace_ = nullptr;
  Places places_;                    // null where operands are aligned
  cublasHandle_t cublas_ = nullptr;  // null where no shape uses cuBLAS
  bool has_stream_ = false;
  cudaStream_t stream_ = nullptr;  // cublas_'s, once has_stream_
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_CUDA_LAYERS_H_
