#include "trainer/bench/cuda_floor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/bench/cuda_handles.h"
#include "trainer/engines/cuda/cuda_kernels.h"
#include "trainer/engines/cuda/cuda_layers.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/engines/cuda/device_memory.h"

namespace shardproof {
namespace {

std::vector<LinearShape> ShapesOf(const RunDescription& run) {
  std::vector<LinearShape> shapes;
  for (const Stage& stage : run.model.stages) {
    const TensorSpec& weight = run.model.tensors[stage.tensors[0]];
    shapes.push_back({run.data.micro_batch_size, weight.shape[1], weight.shape[0]});
  }
  return shapes;
}

class Floor : public CudaFloor {
 public:
  Floor(std::vector<LinearShape> shapes, std::vector<Gemm> gemms, const CudaFloorOptions& options)
      : shapes_(std::move(shapes)), gemms_(std::move(gemms)), options_(options) {}

  absl::Status Prepare() {
    SHARDPROOF_CUDA_OK(cudaSetDevice(options_.device));
    SHARDPROOF_ASSIGN_OR_RETURN(stream_, MakeStream());
    SHARDPROOF_ASSIGN_OR_RETURN(start_, MakeTimedEvent());
    SHARDPROOF_ASSIGN_OR_RETURN(end_, MakeTimedEvent());
    SHARDPROOF_ASSIGN_OR_RETURN(
        layers_, CudaLayers::Create(shapes_, {.tf32 = options_.tf32, .aligned = true}));
    SHARDPROOF_RETURN_IF_ERROR(Allocate());
    // Libraries may allocate at the first call of each kind, which a capture forbids.
    SHARDPROOF_RETURN_IF_ERROR(Enqueue());
    SHARDPROOF_CUDA_OK(cudaStreamSynchronize(stream_.get()));
    SHARDPROOF_RETURN_IF_ERROR(Capture());
    SHARDPROOF_RETURN_IF_ERROR(Launch());
    return Finish().status();
  }

  absl::Status Launch() override {
    SHARDPROOF_CUDA_OK(cudaSetDevice(options_.device));
    SHARDPROOF_CUDA_OK(cudaEventRecord(start_.get(), stream_.get()));
    SHARDPROOF_CUDA_OK(cudaGraphLaunch(graph_.get(), stream_.get()));
    SHARDPROOF_CUDA_OK(cudaEventRecord(end_.get(), stream_.get()));
    return absl::OkStatus();
  }

  absl::StatusOr<double> Finish() override {
    SHARDPROOF_CUDA_OK(cudaSetDevice(options_.device));
    return MsBetween(start_, end_);
  }

 private:
  absl::Status AddUniform(int64_t count, float bound, std::vector<DeviceMemory>& buffers) {
    SHARDPROOF_ASSIGN_OR_RETURN(
        DeviceMemory memory,
        DeviceMemory::Allocate(count * static_cast<int64_t>(sizeof(float)), "the floor's buffer"));
    SHARDPROOF_CUDA_OK(cuda::FillUniform(/*key=*/++keys_, 0, count, bound,
                                         static_cast<float*>(memory.data()), stream_.get()));
    buffers.push_back(std::move(memory));
    return absl::OkStatus();
  }

  absl::Status Allocate() {
    int64_t widest_weight = 0;
    int64_t widest_activation = 0;
    for (const LinearShape& shape : shapes_) {
      const float bound = 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(shape.in, 1)));
      SHARDPROOF_RETURN_IF_ERROR(AddUniform(shape.in * shape.out, bound, weights_));
      SHARDPROOF_RETURN_IF_ERROR(AddUniform(shape.batch * shape.in, 1.0f, activations_));
      widest_weight = std::max(widest_weight, shape.in * shape.out);
      widest_activation =
          std::max({widest_activation, shape.batch * shape.in, shape.batch * shape.out});
    }
    SHARDPROOF_RETURN_IF_ERROR(
        AddUniform(shapes_.back().batch * shapes_.back().out, 1.0f, activations_));
    for (int i = 0; i < 2; ++i) {
      SHARDPROOF_RETURN_IF_ERROR(AddUniform(widest_activation, 1.0f, activation_gradients_));
    }
    return AddUniform(widest_weight, 1.0f, weight_gradients_);
  }

  // All products of all ranks that share the device.
  absl::Status Enqueue() {
    for (int32_t repeat = 0; repeat < options_.repeats; ++repeat) {
      for (const Gemm& gemm : gemms_) SHARDPROOF_RETURN_IF_ERROR(EnqueueOne(gemm));
    }
    return absl::OkStatus();
  }

  absl::Status EnqueueOne(const Gemm& gemm) {
    const LinearShape& shape = shapes_[gemm.stage];
    const float* const in = Data(activations_[gemm.stage]);
    const float* const weight = Data(weights_[gemm.stage]);
    float* const out_gradient = Data(activation_gradients_[(gemm.stage + 1) % 2]);
    float* const in_gradient = Data(activation_gradients_[gemm.stage % 2]);
    switch (gemm.kind) {
      case GemmKind::kForward:
        return layers_->LinearForward(shape, in, weight, /*bias=*/nullptr,
                                      Data(activations_[gemm.stage + 1]), stream_.get());
      case GemmKind::kInputGradient:
        return layers_->LinearInputGradient(shape, weight, out_gradient, in_gradient,
                                            stream_.get());
      case GemmKind::kWeightGradient:
        return layers_->LinearWeightGradient(shape, in, out_gradient, Data(weight_gradients_[0]),
                                             stream_.get());
    }
    return absl::InternalError("a matrix product of no kind");
  }

  // The capture is ended whatever happens in it, so that the stream can be destroyed.
  absl::Status Capture() {
    SHARDPROOF_CUDA_OK(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    const absl::Status enqueued = Enqueue();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_.get(), &graph);
    const OwnedGraph owned(graph);
    SHARDPROOF_RETURN_IF_ERROR(enqueued);
    SHARDPROOF_CUDA_OK(ended);
    cudaGraphExec_t exec = nullptr;
    SHARDPROOF_CUDA_OK(cudaGraphInstantiate(&exec, graph, /*flags=*/0));
    graph_.reset(exec);
    return absl::OkStatus();
  }

  static float* Data(const DeviceMemory& memory) { return static_cast<float*>(memory.data()); }

  const std::vector<LinearShape> shapes_;
  const std::vector<Gemm> gemms_;
  const CudaFloorOptions options_;
  uint64_t keys_ = 0;
  OwnedStream stream_;
  OwnedEvent start_;
  OwnedEvent end_;
  std::unique_ptr<CudaLayers> layers_;
  std::vector<DeviceMemory> weights_;               // by stage
  std::vector<DeviceMemory> activations_;           // by boundary
  std::vector<DeviceMemory> activation_gradients_;  // two, the widest
  std::vector<DeviceMemory> weight_gradients_;      // one, the widest
  OwnedGraphExec graph_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaFloor>> MakeCudaFloor(const RunDescription& run,
                                                         const std::vector<Gemm>& gemms,
                                                         const CudaFloorOptions& options) {
  if (gemms.empty() || options.repeats < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a floor of ", gemms.size(), " products, ",
                                                   options.repeats,
                                                   " times; accepted is one or more of both"));
  }
  auto floor = std::make_unique<Floor>(ShapesOf(run), gemms, options);
  SHARDPROOF_RETURN_IF_ERROR(floor->Prepare());
  return std::unique_ptr<CudaFloor>(std::move(floor));
}

}  // namespace shardproof
