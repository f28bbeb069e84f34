// The models on the device against those of the cpu, and the oracle's way to them.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "trainer/engines/cuda/cuda_layers.h"
#include "trainer/engines/cuda/cuda_model.h"
#include "trainer/engines/cuda/device_floats.h"

namespace shardproof {
namespace {

using Floats = std::vector<float>;

constexpr MicroBatch kMicroBatch = {3, Rank{1}, 1};

RunDescription MlpRun(const std::vector<int64_t>& widths, bool bias, int64_t batch) {
  RunDescription run;
  run.data.micro_batch_size = batch;
  run.data.num_micro_batches = 2;
  run.sharding.world_size = WorldSize{2};
  for (size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    Stage stage = {name, {static_cast<int32_t>(run.model.tensors.size())}};
    run.model.tensors.push_back({.name = name + ".weight",
                                 .shape = {widths[layer + 1], widths[layer]},
                                 .fan_in = widths[layer],
                                 .aliases = {}});
    if (bias) {
      stage.tensors.push_back(stage.tensors[0] + 1);
      run.model.tensors.push_back({.name = name + ".bias",
                                   .shape = {widths[layer + 1]},
                                   .fan_in = widths[layer],
                                   .aliases = {}});
    }
    run.model.stages.push_back(stage);
  }
  return run;
}

// Layers of which none is cuBLAS's or Eigen's, so that both sides have the same bits.
RunDescription SmallRun(bool bias) { return MlpRun({33, 65, 17, 31, 7}, bias, 5); }

// Layers that are cuBLAS's.
RunDescription LargeRun() { return MlpRun({256, 128, 64, 256}, true, 64); }

// Two stages that share a tensor, one frozen, one that only rank 0 uses, an empty one.
RunDescription ProbeRun() {
  RunDescription run;
  run.model.kind = ModelKind::kProbe;
  run.model.tensors = {{.name = "t0", .shape = {10, 301}, .aliases = {}},
                       {.name = "t1", .shape = {7}, .trainable = false, .aliases = {}},
                       {.name = "t2", .shape = {2, 2, 2}, .aliases = {}},
                       {.name = "t3", .shape = {4, 0}, .aliases = {}}};
  run.model.stages = {{"s0", {0, 1}}, {"s1", {2, 0, 3}}};
  run.usage = {{.tensor = 2, .rank = 0}};
  run.sharding.world_size = WorldSize{2};
  return run;
}

Floats Nans(int64_t count) { return Floats(static_cast<size_t>(count), NAN); }

// What a training step of one micro-batch computes.
struct Pass {
  std::vector<Floats> boundaries;
  double loss = 0;
  std::vector<std::vector<Floats>> gradients;  // [stage][position]
  std::vector<Floats> boundary_gradients;      // below each stage but the first
};

void ExpectSamePass(const Pass& actual, const Pass& expected) {
  for (size_t i = 0; i < expected.boundaries.size(); ++i) {
    ExpectSameBits(actual.boundaries[i], expected.boundaries[i]);
  }
  for (size_t i = 0; i < expected.boundary_gradients.size(); ++i) {
    ExpectSameBits(actual.boundary_gradients[i], expected.boundary_gradients[i]);
  }
  for (size_t stage = 0; stage < expected.gradients.size(); ++stage) {
    for (size_t i = 0; i < expected.gradients[stage].size(); ++i) {
      ExpectSameBits(actual.gradients[stage][i], expected.gradients[stage][i]);
    }
  }
}

// Parameters of a stage; a probe's are not read.
std::vector<Floats> StageParameters(const RunDescription& run, int32_t stage) {
  std::vector<Floats> parameters;
  for (const int32_t tensor : run.model.stages[stage].tensors) {
    const int64_t elements = Elements(run.model.tensors[tensor]);
    parameters.emplace_back(static_cast<size_t>(elements));
    FillInitialValues(run, tensor, {0, elements}, parameters.back().data());
  }
  return parameters;
}

template <typename Values>
auto Pointers(Values& values) {
  std::vector<decltype(values[0].data())> pointers;
  for (auto& one : values) pointers.push_back(one.data());
  return pointers;
}

std::vector<Floats> GradientsOf(const RunDescription& run, int32_t stage) {
  std::vector<Floats> gradients;
  for (const int32_t tensor : run.model.stages[stage].tensors) {
    gradients.push_back(Nans(Elements(run.model.tensors[tensor])));
  }
  return gradients;
}

Pass OnHost(const RunDescription& run, const ModelCompute& model) {
  const int32_t stages = static_cast<int32_t>(run.model.stages.size());
  Pass pass;
  for (int32_t boundary = 0; boundary <= stages; ++boundary) {
    pass.boundaries.push_back(Nans(model.Width(boundary) * run.data.micro_batch_size));
  }
  model.LoadInput(kMicroBatch, pass.boundaries[0].data());
  for (int32_t stage = 0; stage < stages; ++stage) {
    const std::vector<Floats> parameters = StageParameters(run, stage);
    model.Forward(stage, Pointers(parameters), pass.boundaries[stage].data(),
                  pass.boundaries[stage + 1].data());
  }
  Floats gradient = Nans(static_cast<int64_t>(pass.boundaries[stages].size()));
  pass.loss = model.Loss(kMicroBatch, pass.boundaries[stages].data(), gradient.data());
  pass.gradients.resize(stages);
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    const std::vector<Floats> parameters = StageParameters(run, stage);
    pass.gradients[stage] = GradientsOf(run, stage);
    Floats below = Nans(static_cast<int64_t>(pass.boundaries[stage].size()));
    model.Backward(kMicroBatch, stage, Pointers(parameters), pass.boundaries[stage].data(),
                   pass.boundaries[stage + 1].data(), gradient.data(),
                   stage == 0 ? nullptr : below.data(), Pointers(pass.gradients[stage]));
    gradient = below;
    if (stage > 0) pass.boundary_gradients.push_back(below);
  }
  return pass;
}

using DeviceTensors = std::vector<std::unique_ptr<DeviceFloats>>;

DeviceTensors OnDevice(const std::vector<Floats>& values, int64_t offset) {
  DeviceTensors tensors;
  for (const Floats& one : values) tensors.push_back(std::make_unique<DeviceFloats>(one, offset));
  return tensors;
}

std::vector<float*> Pointers(const DeviceTensors& tensors) {
  std::vector<float*> pointers;
  for (const auto& tensor : tensors) pointers.push_back(tensor->get());
  return pointers;
}

std::vector<const float*> ConstPointers(const DeviceTensors& tensors) {
  const std::vector<float*> pointers = Pointers(tensors);
  return {pointers.begin(), pointers.end()};
}

// The same on the device, all buffers `offset` floats off a multiple of 256 bytes.
Pass OnDevice(const RunDescription& run, CudaModel& model, int64_t offset) {
  const int32_t stages = static_cast<int32_t>(run.model.stages.size());
  std::vector<Floats> nans;
  for (int32_t boundary = 0; boundary <= stages; ++boundary) {
    nans.push_back(Nans(model.Width(boundary) * run.data.micro_batch_size));
  }
  const DeviceTensors boundaries = OnDevice(nans, offset);
  const DeviceTensors below = OnDevice(nans, offset);  // gradients of the boundaries
  const DeviceDouble loss(0);
  Pass pass;
  EXPECT_TRUE(model.LoadInput(kMicroBatch, boundaries[0]->get(), nullptr).ok());
  for (int32_t stage = 0; stage < stages; ++stage) {
    const DeviceTensors parameters = OnDevice(StageParameters(run, stage), offset);
    EXPECT_TRUE(model
                    .Forward(stage, ConstPointers(parameters), boundaries[stage]->get(),
                             boundaries[stage + 1]->get(), nullptr)
                    .ok());
  }
  EXPECT_TRUE(
      model.Loss(kMicroBatch, boundaries[stages]->get(), below[stages]->get(), loss.get(), nullptr)
          .ok());
  pass.gradients.resize(stages);
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    const DeviceTensors parameters = OnDevice(StageParameters(run, stage), offset);
    const DeviceTensors gradients = OnDevice(GradientsOf(run, stage), offset);
    EXPECT_TRUE(model
                    .Backward(kMicroBatch, stage, ConstPointers(parameters),
                              boundaries[stage]->get(), boundaries[stage + 1]->get(),
                              below[stage + 1]->get(), stage == 0 ? nullptr : below[stage]->get(),
                              Pointers(gradients), nullptr)
                    .ok());
    for (const auto& gradient : gradients) pass.gradients[stage].push_back(gradient->Values());
    if (stage > 0) pass.boundary_gradients.push_back(below[stage]->Values());
  }
  for (const auto& boundary : boundaries) pass.boundaries.push_back(boundary->Values());
  // Nobody asked for the gradient of the input.
  ExpectSameBits(below[0]->Values(), nans[0]);
  pass.loss = loss.Value();
  return pass;
}

std::unique_ptr<CudaModel> ModelOf(const RunDescription& run) {
  auto model = MakeCudaModel(run, {});
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return nullptr;
  EXPECT_EQ((*model)->workspace_bytes(), CudaModelWorkspaceBytes(run, {}));
  return *std::move(model);
}

std::unique_ptr<HostModelByCuda> HostModelOf(const RunDescription& run) {
  auto model = MakeHostModelByCuda(run, /*device=*/0, {});
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

TEST(CudaModel, ASmallMlpHasTheBitsOfTheCpu) {
  for (const bool bias : {true, false}) {
    const RunDescription run = SmallRun(bias);
    const auto model = ModelOf(run);
    ASSERT_NE(model, nullptr);
    const Pass expected = OnHost(run, **MakeModelCompute(run));
    for (const int64_t offset : {0, 1}) {
      const Pass pass = OnDevice(run, *model, offset);
      ExpectSamePass(pass, expected);
      // Another order of a sum of 35 squares in double, and a division.
      EXPECT_NEAR(pass.loss, expected.loss, 72 * 0x1p-53 * expected.loss);
    }
    EXPECT_GT(expected.loss, 0);
  }
}

TEST(CudaModel, WidthsAreTheCpus) {
  const RunDescription run = SmallRun(true);
  const auto model = ModelOf(run);
  ASSERT_NE(model, nullptr);
  const auto compute = *MakeModelCompute(run);
  for (int32_t boundary = 0; boundary <= 4; ++boundary) {
    EXPECT_EQ(model->Width(boundary), compute->Width(boundary));
  }
}

// max |actual - expected| over the largest |expected|.
double RelativeDistance(const Floats& actual, const Floats& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double distance = 0;
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    distance = std::fmax(
        distance, std::fabs(static_cast<double>(actual[i]) - static_cast<double>(expected[i])));
    if (std::isnan(actual[i])) return NAN;
    largest = std::fmax(largest, std::fabs(static_cast<double>(expected[i])));
  }
  return distance / largest;
}

TEST(CudaModel, ALargeMlpIsNearTheCpuAndItsBitsDoNotDependOnAddresses) {
  const RunDescription run = LargeRun();
  ASSERT_TRUE(UsesCublas({64, 256, 128}) && UsesCublas({64, 128, 64}) && UsesCublas({64, 64, 256}));
  const auto model = ModelOf(run);
  ASSERT_NE(model, nullptr);
  const Pass expected = OnHost(run, **MakeModelCompute(run));
  const Pass pass = OnDevice(run, *model, 0);
  // The products have their exact bounds in layers_gpu_test. Here a wrong operand, shape or mask
  // must show, which moves results by their own size; three layers of at most 256 terms round
  // to far less than this.
  constexpr double kNear = 1e-4;
  for (size_t i = 0; i < expected.boundaries.size(); ++i) {
    EXPECT_LE(RelativeDistance(pass.boundaries[i], expected.boundaries[i]), kNear);
  }
  for (size_t stage = 0; stage < expected.gradients.size(); ++stage) {
    for (size_t i = 0; i < expected.gradients[stage].size(); ++i) {
      EXPECT_LE(RelativeDistance(pass.gradients[stage][i], expected.gradients[stage][i]), kNear)
          << "stage " << stage << ", tensor " << i;
    }
  }
  EXPECT_NEAR(pass.loss, expected.loss, kNear * expected.loss);
  for (const int64_t offset : {1, 4, 8}) {
    const Pass elsewhere = OnDevice(run, *model, offset);
    ExpectSamePass(elsewhere, pass);
    EXPECT_EQ(elsewhere.loss, pass.loss);
  }
}

TEST(CudaModel, ALossWithoutAGradientIsTheSameLossAndAddsUp) {
  const RunDescription run = SmallRun(true);
  const auto model = ModelOf(run);
  ASSERT_NE(model, nullptr);
  const DeviceFloats output(MixedValues(5 * 7, 3));
  const DeviceFloats gradient(5 * 7, NAN, 0);
  const DeviceDouble with(0.0), without(0.0);
  ASSERT_TRUE(model->Loss(kMicroBatch, output.get(), gradient.get(), with.get(), nullptr).ok());
  ASSERT_TRUE(model->Loss(kMicroBatch, output.get(), nullptr, without.get(), nullptr).ok());
  EXPECT_GT(with.Value(), 0);
  EXPECT_EQ(without.Value(), with.Value());
  ASSERT_TRUE(model->Loss(kMicroBatch, output.get(), nullptr, without.get(), nullptr).ok());
  EXPECT_EQ(without.Value(), 2 * with.Value());
}

TEST(CudaModel, FrozenTensorsGetNoGradient) {
  const RunDescription run = SmallRun(true);
  const auto model = ModelOf(run);
  ASSERT_NE(model, nullptr);
  const Pass expected = OnHost(run, **MakeModelCompute(run));
  const DeviceTensors parameters = OnDevice(StageParameters(run, 0), 0);
  const DeviceTensors gradients = OnDevice(GradientsOf(run, 0), 0);
  const DeviceFloats in(expected.boundaries[0]), out(expected.boundaries[1]);
  const DeviceFloats out_gradient(expected.boundary_gradients.back());
  ASSERT_TRUE(model
                  ->Backward(kMicroBatch, 0, ConstPointers(parameters), in.get(), out.get(),
                             out_gradient.get(), nullptr, {nullptr, gradients[1]->get()}, nullptr)
                  .ok());
  ExpectSameBits(gradients[1]->Values(), expected.gradients[0][1]);
  ASSERT_TRUE(model
                  ->Backward(kMicroBatch, 0, ConstPointers(parameters), in.get(), out.get(),
                             out_gradient.get(), nullptr, {gradients[0]->get(), nullptr}, nullptr)
                  .ok());
  ExpectSameBits(gradients[0]->Values(), expected.gradients[0][0]);
}

TEST(CudaModel, AProbeHasTheBitsOfTheCpuAndZerosWhereATensorIsNotUsed) {
  const RunDescription run = ProbeRun();
  const auto model = ModelOf(run);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->workspace_bytes(), 0);
  const Pass expected = OnHost(run, **MakeModelCompute(run));
  const Pass pass = OnDevice(run, *model, 1);
  ExpectSamePass(pass, expected);
  EXPECT_EQ(pass.loss, 0);
  ExpectSameBits(pass.gradients[1][0], Floats(8, 0.0f));  // rank 1 does not use t2
}

TEST(CudaModel, AProbesFrozenTensorsAreLeftAlone) {
  const RunDescription run = ProbeRun();
  const auto model = ModelOf(run);
  ASSERT_NE(model, nullptr);
  const DeviceFloats gradient(10 * 301, NAN, 0);
  ASSERT_TRUE(model
                  ->Backward(kMicroBatch, 0, {nullptr, nullptr}, nullptr, nullptr, nullptr, nullptr,
                             {gradient.get(), nullptr}, nullptr)
                  .ok());
  ExpectSameBits(gradient.Values(), OnHost(run, **MakeModelCompute(run)).gradients[0][0]);
}

TEST(HostModelByCuda, HasTheBitsOfTheCudaModel) {
  for (const RunDescription& run : {SmallRun(true), SmallRun(false), LargeRun(), ProbeRun()}) {
    const auto model = ModelOf(run);
    const auto host = HostModelOf(run);
    ASSERT_NE(model, nullptr);
    ASSERT_NE(host, nullptr);
    const Pass expected = OnDevice(run, *model, 0);
    const Pass pass = OnHost(run, *host);
    ASSERT_TRUE(host->status().ok()) << host->status();
    ExpectSamePass(pass, expected);
    EXPECT_EQ(pass.loss, expected.loss);
  }
}

TEST(HostModelByCuda, AfterAnErrorEverythingIsNan) {
  const RunDescription run = SmallRun(false);
  const auto host = HostModelOf(run);
  ASSERT_NE(host, nullptr);
  Floats in = MixedValues(5 * 33, 1);
  Floats out(5 * 65, 0.0f);
  const float* const nowhere = nullptr;  // CUDA refuses to copy from it
  host->Forward(0, {nowhere}, in.data(), out.data());
  EXPECT_EQ(host->status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(host->status().message().find("cudaMemcpyAsync"), absl::string_view::npos)
      << host->status();
  for (const float value : out) ASSERT_TRUE(std::isnan(value));
  host->LoadInput(kMicroBatch, in.data());
  for (const float value : in) ASSERT_TRUE(std::isnan(value));
  const Floats output = MixedValues(5 * 7, 2);
  Floats gradient(5 * 7, 0.0f);
  EXPECT_TRUE(std::isnan(host->Loss(kMicroBatch, output.data(), gradient.data())));
  for (const float value : gradient) ASSERT_TRUE(std::isnan(value));
}

TEST(HostModelByCuda, ADeviceThatDoesNotExistIsAnError) {
  const RunDescription run = SmallRun(false);
  const auto host = MakeHostModelByCuda(run, /*device=*/1000, {});
  EXPECT_EQ(host.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(host.status().message().find("cudaSetDevice(device)"), absl::string_view::npos)
      << host.status();
}

}  // namespace
}  // namespace shardproof
