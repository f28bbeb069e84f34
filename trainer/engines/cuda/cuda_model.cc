#include "trainer/engines/cuda/cuda_model.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cuda/alignment.h"
#include "trainer/engines/cuda/cuda_kernels.h"
#include "trainer/engines/cuda/cuda_layers.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/engines/cuda/device_memory.h"
#include "trainer/engines/cuda/layer_kernels.h"
#include "trainer/model/data.h"
#include "trainer/model/probe.h"

namespace shardproof {
namespace {

// By stage, of an mlp.
std::vector<LinearShape> ShapesOf(const RunDescription& run) {
  std::vector<LinearShape> shapes;
  for (const Stage& stage : run.model.stages) {
    const TensorSpec& weight = run.model.tensors[stage.tensors[0]];
    shapes.push_back({run.data.micro_batch_size, weight.shape[1], weight.shape[0]});
  }
  return shapes;
}

// Where a loss alone puts its targets.
int64_t DerivativeBytes(const LinearShape& last) {
  return AlignedFloatBytes(last.batch * last.out);
}

// trainer/model/mlp.cc, on the device.
class CudaMlp : public CudaModel {
 public:
  // `compute` is MakeModelCompute's for `run`: it has checked the shapes.
  static absl::StatusOr<std::unique_ptr<CudaModel>> Create(const RunDescription& run,
                                                           std::unique_ptr<ModelCompute> compute,
                                                           const CudaModelOptions& options) {
    auto model = std::unique_ptr<CudaMlp>(new CudaMlp(run, std::move(compute)));
    model->shapes_ = ShapesOf(run);
    SHARDPROOF_ASSIGN_OR_RETURN(
        model->layers_,
        CudaLayers::Create(model->shapes_, {.tf32 = options.tf32, .aligned = options.aligned}));
    SHARDPROOF_ASSIGN_OR_RETURN(
        model->derivative_,
        DeviceMemory::Allocate(DerivativeBytes(model->shapes_.back()), "the loss's workspace"));
    return std::unique_ptr<CudaModel>(std::move(model));
  }

  int64_t Width(int32_t boundary) const override { return compute_->Width(boundary); }

  int64_t workspace_bytes() const override {
    return layers_->workspace_bytes() + derivative_.bytes();
  }

  absl::Status LoadInput(const MicroBatch& micro_batch, float* input,
                         cudaStream_t stream) override {
    return FillRows(micro_batch, StreamPurpose::kInput, shapes_.front().in, input, stream);
  }

  absl::Status Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
                       float* out, cudaStream_t stream) override {
    const LinearShape& shape = shapes_[stage];
    SHARDPROOF_RETURN_IF_ERROR(layers_->LinearForward(
        shape, in, parameters[0], parameters.size() > 1 ? parameters[1] : nullptr, out, stream));
    if (!HasRelu(stage)) return absl::OkStatus();
    return layers_->Relu(shape.batch * shape.out, out, stream);
  }

  absl::Status Loss(const MicroBatch& micro_batch, const float* output, float* output_gradient,
                    double* loss, cudaStream_t stream) override {
    float* const derivative =
        output_gradient != nullptr ? output_gradient : static_cast<float*>(derivative_.data());
    SHARDPROOF_RETURN_IF_ERROR(
        FillRows(micro_batch, StreamPurpose::kTarget, shapes_.back().out, derivative, stream));
    return layers_->MeanSquaredError(OutputCount(), output, derivative, loss, stream);
  }

  absl::Status Backward(const MicroBatch&, int32_t stage, absl::Span<const float* const> parameters,
                        const float* in, const float* out, float* out_gradient, float* in_gradient,
                        absl::Span<float* const> gradients, cudaStream_t stream) override {
    const LinearShape& shape = shapes_[stage];
    if (HasRelu(stage)) {
      SHARDPROOF_RETURN_IF_ERROR(
          layers_->ReluGradient(shape.batch * shape.out, out, out_gradient, stream));
    }
    if (gradients[0] != nullptr) {
      SHARDPROOF_RETURN_IF_ERROR(
          layers_->LinearWeightGradient(shape, in, out_gradient, gradients[0], stream));
    }
    if (gradients.size() > 1 && gradients[1] != nullptr) {
      SHARDPROOF_RETURN_IF_ERROR(
          layers_->LinearBiasGradient(shape, out_gradient, gradients[1], stream));
    }
    if (in_gradient == nullptr) return absl::OkStatus();
    return layers_->LinearInputGradient(shape, parameters[0], out_gradient, in_gradient, stream);
  }

 private:
  CudaMlp(const RunDescription& run, std::unique_ptr<ModelCompute> compute)
      : run_(run), compute_(std::move(compute)) {}

  bool HasRelu(int32_t stage) const { return stage + 1 < static_cast<int32_t>(shapes_.size()); }

  int64_t OutputCount() const { return shapes_.back().batch * shapes_.back().out; }

  absl::Status FillRows(const MicroBatch& micro_batch, StreamPurpose purpose, int64_t width,
                        float* values, cudaStream_t stream) const {
    const uint64_t purpose_hash = StreamHash(run_.data.seed, static_cast<uint64_t>(purpose));
    SHARDPROOF_CUDA_OK(cuda::FillSamples(purpose_hash, FirstSample(run_, micro_batch),
                                         run_.data.micro_batch_size, width, values, stream));
    return absl::OkStatus();
  }

  const RunDescription& run_;
  const std::unique_ptr<ModelCompute> compute_;  // for its widths
  std::vector<LinearShape> shapes_;              // by stage
  std::unique_ptr<CudaLayers> layers_;
  DeviceMemory derivative_;  // where a loss alone puts its targets
};

// trainer/model/probe.cc, on the device.
class CudaProbe : public CudaModel {
 public:
  explicit CudaProbe(const RunDescription& run) : run_(run) {}

  int64_t Width(int32_t) const override { return 0; }
  int64_t workspace_bytes() const override { return 0; }

  absl::Status LoadInput(const MicroBatch&, float*, cudaStream_t) override {
    return absl::OkStatus();
  }

  absl::Status Forward(int32_t, absl::Span<const float* const>, const float*, float*,
                       cudaStream_t) override {
    return absl::OkStatus();
  }

  absl::Status Loss(const MicroBatch&, const float*, float*, double*, cudaStream_t) override {
    return absl::OkStatus();
  }

  absl::Status Backward(const MicroBatch& micro_batch, int32_t stage,
                        absl::Span<const float* const>, const float*, const float*, float*, float*,
                        absl::Span<float* const> gradients, cudaStream_t stream) override {
    const std::vector<int32_t>& tensors = run_.model.stages[stage].tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (gradients[i] == nullptr) continue;
      const int64_t count = Elements(run_.model.tensors[tensors[i]]);
      if (IsUsed(run_, tensors[i], micro_batch.step, micro_batch.rank, micro_batch.micro_batch)) {
        const uint64_t key = ProbeGradientKey(run_, micro_batch, stage, tensors[i]);
        SHARDPROOF_CUDA_OK(cuda::FillSmallIntegers(key, 0, count, gradients[i], stream));
      } else {
        SHARDPROOF_CUDA_OK(cuda::Fill(gradients[i], count, 0, stream));
      }
    }
    return absl::OkStatus();
  }

 private:
  const RunDescription& run_;
};

// Floats of the host.
struct HostValues {
  float* data;  // null: nobody wants them
  int64_t count;
};

class HostModel : public HostModelByCuda {
 public:
  static absl::StatusOr<std::unique_ptr<HostModelByCuda>> Create(const RunDescription& run,
                                                                 int device,
                                                                 const CudaModelOptions& options) {
    // What cannot be computed anywhere is said before the device is asked for.
    SHARDPROOF_RETURN_IF_ERROR(MakeModelCompute(run).status());
    SHARDPROOF_CUDA_OK(cudaSetDevice(device));
    auto model = std::unique_ptr<HostModel>(new HostModel(run, device));
    CudaModelOptions here = options;
    here.aligned = true;  // as all buffers below are
    SHARDPROOF_ASSIGN_OR_RETURN(model->model_, MakeCudaModel(run, here));
    SHARDPROOF_RETURN_IF_ERROR(model->Allocate());
    return std::unique_ptr<HostModelByCuda>(std::move(model));
  }

  ~HostModel() override {
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }

  absl::Status status() const override { return status_; }

  int64_t Width(int32_t boundary) const override { return model_->Width(boundary); }

  void LoadInput(const MicroBatch& micro_batch, float* input) const override {
    const HostValues inputs = {input, BoundaryCount(0)};
    Run({inputs}, [&]() -> absl::Status {
      SHARDPROOF_RETURN_IF_ERROR(model_->LoadInput(micro_batch, in_, stream_));
      return FromDevice(in_, inputs);
    });
  }

  void Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
               float* out) const override {
    const HostValues outputs = {out, BoundaryCount(stage + 1)};
    Run({outputs}, [&]() -> absl::Status {
      SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<const float*> on_device,
                                  ParametersToDevice(stage, parameters));
      SHARDPROOF_RETURN_IF_ERROR(ToDevice(in, BoundaryCount(stage), in_));
      SHARDPROOF_RETURN_IF_ERROR(model_->Forward(stage, on_device, in_, out_, stream_));
      return FromDevice(out_, outputs);
    });
  }

  double Loss(const MicroBatch& micro_batch, const float* output,
              float* output_gradient) const override {
    const int32_t boundary = static_cast<int32_t>(run_.model.stages.size());
    const HostValues derivative = {output_gradient, BoundaryCount(boundary)};
    double loss = 0;
    Run({derivative}, [&]() -> absl::Status {
      SHARDPROOF_RETURN_IF_ERROR(ToDevice(output, derivative.count, out_));
      SHARDPROOF_CUDA_OK(cudaMemsetAsync(loss_, 0, sizeof(double), stream_));
      SHARDPROOF_RETURN_IF_ERROR(model_->Loss(micro_batch, out_, out_gradient_, loss_, stream_));
      SHARDPROOF_CUDA_OK(
          cudaMemcpyAsync(&loss, loss_, sizeof(double), cudaMemcpyDeviceToHost, stream_));
      return FromDevice(out_gradient_, derivative);
    });
    return status_.ok() ? loss : std::numeric_limits<double>::quiet_NaN();
  }

  void Backward(const MicroBatch& micro_batch, int32_t stage,
                absl::Span<const float* const> parameters, const float* in, const float* out,
                float* out_gradient, float* in_gradient,
                absl::Span<float* const> gradients) const override {
    std::vector<HostValues> results = {{in_gradient, BoundaryCount(stage)}};
    for (size_t i = 0; i < gradients.size(); ++i) {
      results.push_back({gradients[i], ElementsOf(stage, i)});
    }
    Run(results, [&]() -> absl::Status {
      SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<const float*> on_device,
                                  ParametersToDevice(stage, parameters));
      SHARDPROOF_RETURN_IF_ERROR(ToDevice(in, BoundaryCount(stage), in_));
      SHARDPROOF_RETURN_IF_ERROR(ToDevice(out, BoundaryCount(stage + 1), out_));
      SHARDPROOF_RETURN_IF_ERROR(ToDevice(out_gradient, BoundaryCount(stage + 1), out_gradient_));
      const std::vector<float*> device_gradients = GradientPlaces(stage, gradients);
      SHARDPROOF_RETURN_IF_ERROR(model_->Backward(
          micro_batch, stage, on_device, in_, out_, out_gradient_,
          in_gradient == nullptr ? nullptr : in_gradient_, device_gradients, stream_));
      SHARDPROOF_RETURN_IF_ERROR(FromDevice(in_gradient_, results[0]));
      for (size_t i = 0; i < gradients.size(); ++i) {
        SHARDPROOF_RETURN_IF_ERROR(FromDevice(device_gradients[i], results[1 + i]));
      }
      return absl::OkStatus();
    });
  }

 private:
  HostModel(const RunDescription& run, int device) : run_(run), device_(device) {}

  int64_t BoundaryCount(int32_t boundary) const {
    return model_->Width(boundary) * run_.data.micro_batch_size;
  }

  int64_t ElementsOf(int32_t stage, size_t position) const {
    return Elements(run_.model.tensors[run_.model.stages[stage].tensors[position]]);
  }

  absl::Status Allocate() {
    const int32_t stages = static_cast<int32_t>(run_.model.stages.size());
    int64_t boundary_bytes = 0;
    int64_t tensor_bytes = 0;
    for (int32_t boundary = 0; boundary <= stages; ++boundary) {
      boundary_bytes = std::max(boundary_bytes, AlignedFloatBytes(BoundaryCount(boundary)));
    }
    for (int32_t stage = 0; stage < stages; ++stage) {
      int64_t bytes = 0;
      for (size_t i = 0; i < run_.model.stages[stage].tensors.size(); ++i) {
        bytes += AlignedFloatBytes(ElementsOf(stage, i));
      }
      tensor_bytes = std::max(tensor_bytes, bytes);
    }
    SHARDPROOF_ASSIGN_OR_RETURN(
        memory_, DeviceMemory::Allocate(kBufferAlignment + 4 * boundary_bytes + 2 * tensor_bytes,
                                        "the oracle's buffers"));
    char* place = static_cast<char*>(memory_.data());
    loss_ = reinterpret_cast<double*>(place);
    place += kBufferAlignment;
    for (float** buffer : {&in_, &out_, &out_gradient_, &in_gradient_}) {
      *buffer = reinterpret_cast<float*>(place);
      place += boundary_bytes;
    }
    parameters_ = reinterpret_cast<float*>(place);
    gradients_ = reinterpret_cast<float*>(place + tensor_bytes);
    SHARDPROOF_CUDA_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    return absl::OkStatus();
  }

  // Runs `compute` on the device and waits for it. Unless all went well, now and before, the
  // results are NaN.
  template <typename Compute>
  void Run(absl::Span<const HostValues> results, Compute compute) const {
    if (status_.ok()) status_ = RunOnDevice(compute);
    if (status_.ok()) return;
    for (const HostValues& values : results) {
      if (values.data == nullptr) continue;
      std::fill_n(values.data, values.count, std::numeric_limits<float>::quiet_NaN());
    }
  }

  template <typename Compute>
  absl::Status RunOnDevice(Compute compute) const {
    SHARDPROOF_CUDA_OK(cudaSetDevice(device_));
    const absl::Status computed = compute();
    // Also after an error: what was enqueued still uses the caller's memory.
    const absl::Status waited =
        CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize(stream_)");
    return computed.ok() ? waited : computed;
  }

  absl::Status ToDevice(const float* from, int64_t count, float* to) const {
    if (count == 0) return absl::OkStatus();
    SHARDPROOF_CUDA_OK(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(float),
                                       cudaMemcpyHostToDevice, stream_));
    return absl::OkStatus();
  }

  absl::Status FromDevice(const float* from, const HostValues& to) const {
    if (to.data == nullptr || to.count == 0) return absl::OkStatus();
    SHARDPROOF_CUDA_OK(cudaMemcpyAsync(to.data, from, static_cast<size_t>(to.count) * sizeof(float),
                                       cudaMemcpyDeviceToHost, stream_));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<const float*>> ParametersToDevice(
      int32_t stage, absl::Span<const float* const> parameters) const {
    std::vector<const float*> on_device;
    float* place = parameters_;
    // A probe computes without its parameters' values.
    const bool needed = run_.model.kind != ModelKind::kProbe;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int64_t count = ElementsOf(stage, i);
      if (needed) SHARDPROOF_RETURN_IF_ERROR(ToDevice(parameters[i], count, place));
      on_device.push_back(place);
      place += AlignedFloatBytes(count) / static_cast<int64_t>(sizeof(float));
    }
    return on_device;
  }

  std::vector<float*> GradientPlaces(int32_t stage, absl::Span<float* const> gradients) const {
    std::vector<float*> places;
    float* place = gradients_;
    for (size_t i = 0; i < gradients.size(); ++i) {
      places.push_back(gradients[i] == nullptr ? nullptr : place);
      place += AlignedFloatBytes(ElementsOf(stage, i)) / static_cast<int64_t>(sizeof(float));
    }
    return places;
  }

  const RunDescription& run_;
  const int device_;
  std::unique_ptr<CudaModel> model_;
  DeviceMemory memory_;
  // Places in memory_: the loss, boundaries, and one stage's tensors.
  double* loss_ = nullptr;
  float* in_ = nullptr;
  float* out_ = nullptr;
  float* out_gradient_ = nullptr;
  float* in_gradient_ = nullptr;
  float* parameters_ = nullptr;
  float* gradients_ = nullptr;
  cudaStream_t stream_ = nullptr;
  mutable absl::Status status_;  // the first error
};

}  // namespace

int64_t CudaModelWorkspaceBytes(const RunDescription& run, const CudaModelOptions& options) {
  if (run.model.kind == ModelKind::kProbe || !MakeModelCompute(run).ok()) return 0;
  const std::vector<LinearShape> shapes = ShapesOf(run);
  return CudaLayers::WorkspaceBytes(shapes, {.tf32 = options.tf32, .aligned = options.aligned}) +
         DerivativeBytes(shapes.back());
}

absl::StatusOr<std::unique_ptr<CudaModel>> MakeCudaModel(const RunDescription& run,
                                                         const CudaModelOptions& options) {
  SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<ModelCompute> compute, MakeModelCompute(run));
  SHARDPROOF_CUDA_OK(cuda::LoadKernels());
  // MakeModelCompute has refused every other kind.
  if (run.model.kind == ModelKind::kProbe) return std::make_unique<CudaProbe>(run);
  return CudaMlp::Create(run, std::move(compute), options);
}

absl::StatusOr<std::unique_ptr<HostModelByCuda>> MakeHostModelByCuda(
    const RunDescription& run, int device, const CudaModelOptions& options) {
  return HostModel::Create(run, device, options);
}

}  // namespace shardproof
