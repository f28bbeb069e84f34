#include "trainer/engines/cuda/cuda_layers.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cuda/alignment.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/engines/cuda/layer_kernels.h"

namespace shardproof {
namespace {

// What NVIDIA's documentation recommends for cublasSetWorkspace on the newest devices.
constexpr int64_t kCublasWorkspaceBytes = 32 << 20;
constexpr int64_t kPartialBytes =
    cuda::kMeanSquaredErrorPartials * static_cast<int64_t>(sizeof(double));

std::string Shown(const void* pointer) {
  return absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(pointer)));
}

// Those that go to cuBLAS, each once.
std::vector<LinearShape> ShapesOfCublas(absl::Span<const LinearShape> shapes) {
  std::set<std::tuple<int64_t, int64_t, int64_t>> seen;
  std::vector<LinearShape> of_cublas;
  for (const LinearShape& shape : shapes) {
    if (UsesCublas(shape) && seen.insert({shape.batch, shape.in, shape.out}).second) {
      of_cublas.push_back(shape);
    }
  }
  return of_cublas;
}

}  // namespace

bool UsesCublas(const LinearShape& shape) {
  // Rows of four floats keep every row as aligned as the first. The smallest extents are far
  // from those at which cuBLAS turns to matrix-vector products, and below this much work a
  // launch takes longer than the tiles do. cuBLAS counts in 32 bits.
  for (const int64_t extent : {shape.batch, shape.in, shape.out}) {
    if (extent % 4 != 0 || extent < 16 || extent > std::numeric_limits<int32_t>::max()) {
      return false;
    }
  }
  return static_cast<double>(shape.batch) * static_cast<double>(shape.in) *
             static_cast<double>(shape.out) >=
         1 << 18;
}

absl::StatusOr<std::unique_ptr<CudaLayers>> CudaLayers::Create(absl::Span<const LinearShape> shapes,
                                                               const CudaLayersOptions& options) {
  auto layers = std::unique_ptr<CudaLayers>(new CudaLayers(options));
  const std::vector<LinearShape> of_cublas = ShapesOfCublas(shapes);
  SHARDPROOF_CUDA_OK(cuda::LoadLayerKernels());
  SHARDPROOF_RETURN_IF_ERROR(layers->AllocateWorkspace(of_cublas));
  if (of_cublas.empty()) return layers;
  SHARDPROOF_CUBLAS_OK(cublasCreate(&layers->cublas_));
  // Sums by atomic additions would depend on timing. It is the default; here it is a condition.
  SHARDPROOF_CUBLAS_OK(cublasSetAtomicsMode(layers->cublas_, CUBLAS_ATOMICS_NOT_ALLOWED));
  SHARDPROOF_RETURN_IF_ERROR(layers->RunEachProductOnce(of_cublas));
  return layers;
}

CudaLayers::OperandBytes CudaLayers::LargestOperands(absl::Span<const LinearShape> shapes) {
  OperandBytes bytes;
  for (const LinearShape& shape : shapes) {
    bytes.x = std::max(bytes.x, AlignedFloatBytes(shape.batch * shape.in));
    bytes.weight = std::max(bytes.weight, AlignedFloatBytes(shape.in * shape.out));
    bytes.y = std::max(bytes.y, AlignedFloatBytes(shape.batch * shape.out));
  }
  return bytes;
}

CudaLayers::~CudaLayers() {
  if (cublas_ != nullptr) static_cast<void>(cublasDestroy(cublas_));
}

int64_t CudaLayers::WorkspaceBytes(absl::Span<const LinearShape> shapes,
                                   const CudaLayersOptions& options) {
  const std::vector<LinearShape> of_cublas = ShapesOfCublas(shapes);
  const int64_t cublas = of_cublas.empty() ? 0 : kCublasWorkspaceBytes;
  const int64_t operands = options.aligned ? 0 : LargestOperands(of_cublas).Sum();
  return AlignedBytes(kPartialBytes) + cublas + operands;
}

absl::Status CudaLayers::AllocateWorkspace(absl::Span<const LinearShape> shapes) {
  const int64_t partials = AlignedBytes(kPartialBytes);
  const int64_t cublas = shapes.empty() ? 0 : kCublasWorkspaceBytes;
  const OperandBytes operands = options_.aligned ? OperandBytes{} : LargestOperands(shapes);
  SHARDPROOF_ASSIGN_OR_RETURN(workspace_, DeviceMemory::Allocate(WorkspaceBytes(shapes, options_),
                                                                 "the layers' workspace"));
  char* const begin = static_cast<char*>(workspace_.data());
  partials_ = reinterpret_cast<double*>(begin);
  cublas_workspace_ = begin + partials;
  if (!options_.aligned) places_ = PlacesFrom(begin + partials + cublas, operands);
  return absl::OkStatus();
}

CudaLayers::Places CudaLayers::PlacesFrom(char* begin, const OperandBytes& bytes) {
  return {.x = reinterpret_cast<float*>(begin),
          .weight = reinterpret_cast<float*>(begin + bytes.x),
          .y = reinterpret_cast<float*>(begin + bytes.x + bytes.weight)};
}

absl::Status CudaLayers::RunEachProductOnce(absl::Span<const LinearShape> shapes) {
  const OperandBytes bytes = LargestOperands(shapes);
  SHARDPROOF_ASSIGN_OR_RETURN(const DeviceMemory operands,
                              DeviceMemory::Allocate(bytes.Sum(), "one layer's operands"));
  SHARDPROOF_CUDA_OK(cudaMemset(operands.data(), 0, static_cast<size_t>(operands.bytes())));
  const Places places = PlacesFrom(static_cast<char*>(operands.data()), bytes);
  for (const LinearShape& shape : shapes) {
    SHARDPROOF_RETURN_IF_ERROR(
        LinearForward(shape, places.x, places.weight, nullptr, places.y, nullptr));
    SHARDPROOF_RETURN_IF_ERROR(
        LinearInputGradient(shape, places.weight, places.y, places.x, nullptr));
    SHARDPROOF_RETURN_IF_ERROR(
        LinearWeightGradient(shape, places.x, places.y, places.weight, nullptr));
  }
  SHARDPROOF_CUDA_OK(cudaDeviceSynchronize());
  return absl::OkStatus();
}

absl::Status CudaLayers::UseStream(cudaStream_t stream) {
  if (cublas_ == nullptr) {
    return absl::InternalError("a layer uses cuBLAS whose shape CudaLayers::Create was not told");
  }
  if (has_stream_ && stream == stream_) return absl::OkStatus();
  // Setting the stream takes the workspace away, so the two go together.
  has_stream_ = false;
  SHARDPROOF_CUBLAS_OK(cublasSetStream(cublas_, stream));
  SHARDPROOF_CUBLAS_OK(
      cublasSetWorkspace(cublas_, cublas_workspace_, static_cast<size_t>(kCublasWorkspaceBytes)));
  stream_ = stream;
  has_stream_ = true;
  return absl::OkStatus();
}

absl::Status CudaLayers::Multiply(const Gemm& gemm, const float* a, const float* b, float* c,
                                  cudaStream_t stream) {
  SHARDPROOF_RETURN_IF_ERROR(UseStream(stream));
  if (options_.aligned && !(IsAlignedOperand(a) && IsAlignedOperand(b) && IsAlignedOperand(c))) {
    return absl::InvalidArgumentError(
        absl::StrCat("an operand of a matrix product lies at ", Shown(a), ", ", Shown(b), " or ",
                     Shown(c), "; accepted are multiples of ", kOperandAlignment, " bytes"));
  }
  const auto bytes = [](const Matrix& matrix) {
    return static_cast<size_t>(matrix.count) * sizeof(float);
  };
  if (!IsAlignedOperand(a)) {
    SHARDPROOF_CUDA_OK(
        cudaMemcpyAsync(gemm.a.place, a, bytes(gemm.a), cudaMemcpyDeviceToDevice, stream));
    a = gemm.a.place;
  }
  if (!IsAlignedOperand(b)) {
    SHARDPROOF_CUDA_OK(
        cudaMemcpyAsync(gemm.b.place, b, bytes(gemm.b), cudaMemcpyDeviceToDevice, stream));
    b = gemm.b.place;
  }
  float* const result = IsAlignedOperand(c) ? c : gemm.c.place;
  const float one = 1;
  const float zero = 0;
  const cublasComputeType_t compute =
      options_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  SHARDPROOF_CUBLAS_OK(cublasGemmEx(
      cublas_, gemm.a.operation, gemm.b.operation, static_cast<int>(gemm.m),
      static_cast<int>(gemm.n), static_cast<int>(gemm.k), &one, a, CUDA_R_32F,
      static_cast<int>(gemm.a.leading), b, CUDA_R_32F, static_cast<int>(gemm.b.leading), &zero,
      result, CUDA_R_32F, static_cast<int>(gemm.c.leading), compute, CUBLAS_GEMM_DEFAULT));
  if (result != c) {
    SHARDPROOF_CUDA_OK(cudaMemcpyAsync(c, result, bytes(gemm.c), cudaMemcpyDeviceToDevice, stream));
  }
  return absl::OkStatus();
}

// A row-major matrix is the transposed one to cuBLAS, so each product is computed transposed:
// y^T = weight x^T, x_gradient^T = weight^T y_gradient^T, weight_gradient^T = x^T y_gradient.

absl::Status CudaLayers::LinearForward(const LinearShape& shape, const float* x,
                                       const float* weight, const float* bias, float* y,
                                       cudaStream_t stream) {
  if (!UsesCublas(shape)) {
    SHARDPROOF_CUDA_OK(cuda::TiledForward(shape, x, weight, bias, y, stream));
    return absl::OkStatus();
  }
  const Gemm gemm = {
      .m = shape.out,
      .n = shape.batch,
      .k = shape.in,
      .a = {CUBLAS_OP_T, shape.in, shape.in * shape.out, places_.weight},
      .b = {CUBLAS_OP_N, shape.in, shape.batch * shape.in, places_.x},
      .c = {CUBLAS_OP_N, shape.out, shape.batch * shape.out, places_.y},
  };
  SHARDPROOF_RETURN_IF_ERROR(Multiply(gemm, weight, x, y, stream));
  if (bias != nullptr) SHARDPROOF_CUDA_OK(cuda::AddBias(shape, bias, y, stream));
  return absl::OkStatus();
}

absl::Status CudaLayers::LinearInputGradient(const LinearShape& shape, const float* weight,
                                             const float* y_gradient, float* x_gradient,
                                             cudaStream_t stream) {
  if (!UsesCublas(shape)) {
    SHARDPROOF_CUDA_OK(cuda::TiledInputGradient(shape, weight, y_gradient, x_gradient, stream));
    return absl::OkStatus();
  }
  const Gemm gemm = {
      .m = shape.in,
      .n = shape.batch,
      .k = shape.out,
      .a = {CUBLAS_OP_N, shape.in, shape.in * shape.out, places_.weight},
      .b = {CUBLAS_OP_N, shape.out, shape.batch * shape.out, places_.y},
      .c = {CUBLAS_OP_N, shape.in, shape.batch * shape.in, places_.x},
  };
  return Multiply(gemm, weight, y_gradient, x_gradient, stream);
}

absl::Status CudaLayers::LinearWeightGradient(const LinearShape& shape, const float* x,
                                              const float* y_gradient, float* weight_gradient,
                                              cudaStream_t stream) {
  if (!UsesCublas(shape)) {
    SHARDPROOF_CUDA_OK(cuda::TiledWeightGradient(shape, x, y_gradient, weight_gradient, stream));
    return absl::OkStatus();
  }
  const Gemm gemm = {
      .m = shape.in,
      .n = shape.out,
      .k = shape.batch,
      .a = {CUBLAS_OP_N, shape.in, shape.batch * shape.in, places_.x},
      .b = {CUBLAS_OP_T, shape.out, shape.batch * shape.out, places_.y},
      .c = {CUBLAS_OP_N, shape.in, shape.in * shape.out, places_.weight},
  };
  return Multiply(gemm, x, y_gradient, weight_gradient, stream);
}

absl::Status CudaLayers::LinearBiasGradient(const LinearShape& shape, const float* y_gradient,
                                            float* bias_gradient, cudaStream_t stream) {
  SHARDPROOF_CUDA_OK(cuda::BiasGradient(shape, y_gradient, bias_gradient, stream));
  return absl::OkStatus();
}

absl::Status CudaLayers::Relu(int64_t count, float* values, cudaStream_t stream) {
  SHARDPROOF_CUDA_OK(cuda::Relu(count, values, stream));
  return absl::OkStatus();
}

absl::Status CudaLayers::ReluGradient(int64_t count, const float* output, float* gradient,
                                      cudaStream_t stream) {
  SHARDPROOF_CUDA_OK(cuda::ReluGradient(count, output, gradient, stream));
  return absl::OkStatus();
}

absl::Status CudaLayers::MeanSquaredError(int64_t count, const float* output, float* gradient,
                                          double* loss, cudaStream_t stream) {
  SHARDPROOF_CUDA_OK(cuda::MeanSquaredError(count, output, gradient, partials_, loss, stream));
  return absl::OkStatus();
}

}  // namespace shardproof
