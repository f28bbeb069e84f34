// The layers on the device: the bits of the cpu's loops where neither side uses a library, a
// bound on the error where one does, and bits that do not depend on addresses, on time or on
// what else runs.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "trainer/engines/cuda/cuda_layers.h"
#include "trainer/engines/cuda/device_floats.h"
#include "trainer/engines/cuda/layer_kernels.h"
#include "trainer/model/data.h"
#include "trainer/model/layers.h"

namespace shardproof {
namespace {

using Floats = std::vector<float>;

// Neither cuBLAS's nor Eigen's; extents below, at and above the tiles' and the four lanes'.
constexpr LinearShape kTiledShapes[] = {{1, 1, 1},    {2, 3, 5},     {5, 33, 31},   {7, 64, 64},
                                        {33, 65, 17}, {3, 129, 7},   {40, 100, 37}, {1, 4099, 3},
                                        {130, 5, 30}, {200, 2, 190}, {2, 0, 3}};
constexpr LinearShape kCublasShapes[] = {
    {64, 64, 64}, {16, 1024, 256}, {128, 512, 256}, {20, 132, 116}, {256, 260, 252}};
// Eigen's on the cpu, tiles on the device.
constexpr LinearShape kUnalignedShape = {17, 259, 257};

std::string Name(const LinearShape& shape) {
  return "batch " + std::to_string(shape.batch) + ", " + std::to_string(shape.in) + " to " +
         std::to_string(shape.out);
}

struct Inputs {
  Floats x, weight, bias, y_gradient;
};

Inputs MixedInputs(const LinearShape& shape) {
  return {MixedValues(shape.batch * shape.in, 1), MixedValues(shape.in * shape.out, 2),
          MixedValues(shape.out, 3), MixedValues(shape.batch * shape.out, 4)};
}

struct Results {
  Floats y, y_without_bias, x_gradient, weight_gradient, bias_gradient;
};

void ExpectSameResults(const Results& actual, const Results& expected) {
  ExpectSameBits(actual.y, expected.y);
  ExpectSameBits(actual.y_without_bias, expected.y_without_bias);
  ExpectSameBits(actual.x_gradient, expected.x_gradient);
  ExpectSameBits(actual.weight_gradient, expected.weight_gradient);
  ExpectSameBits(actual.bias_gradient, expected.bias_gradient);
}

Results EmptyResults(const LinearShape& shape) {
  const auto nans = [](int64_t count) { return Floats(static_cast<size_t>(count), NAN); };
  return {nans(shape.batch * shape.out), nans(shape.batch * shape.out),
          nans(shape.batch * shape.in), nans(shape.in * shape.out), nans(shape.out)};
}

Results OnCpu(const LinearShape& shape, const Inputs& in) {
  Results out = EmptyResults(shape);
  LinearForward(shape, in.x.data(), in.weight.data(), in.bias.data(), out.y.data());
  LinearForward(shape, in.x.data(), in.weight.data(), nullptr, out.y_without_bias.data());
  LinearInputGradient(shape, in.weight.data(), in.y_gradient.data(), out.x_gradient.data());
  LinearWeightGradient(shape, in.x.data(), in.y_gradient.data(), out.weight_gradient.data());
  LinearBiasGradient(shape, in.y_gradient.data(), out.bias_gradient.data());
  return out;
}

// By how many floats each of the buffers lies off a multiple of 256 bytes.
struct Offsets {
  int64_t x = 0, weight = 0, y = 0;
};

std::unique_ptr<CudaLayers> LayersFor(const LinearShape& shape, bool tf32 = false) {
  auto layers = CudaLayers::Create({shape}, {.tf32 = tf32});
  EXPECT_TRUE(layers.ok()) << layers.status();
  return layers.ok() ? *std::move(layers) : nullptr;
}

// Buffers for one layer. Results start as NaNs, so that one which is not written whole shows.
class DeviceProblem {
 public:
  DeviceProblem(const LinearShape& shape, const Inputs& in, const Offsets& offsets)
      : DeviceProblem(shape, in, EmptyResults(shape), offsets) {}

  void Enqueue(CudaLayers& layers, cudaStream_t stream) const {
    const absl::Status results[] = {
        layers.LinearForward(shape_, x_.get(), weight_.get(), bias_.get(), y_.get(), stream),
        layers.LinearForward(shape_, x_.get(), weight_.get(), nullptr, y_without_bias_.get(),
                             stream),
        layers.LinearInputGradient(shape_, weight_.get(), y_gradient_.get(), x_gradient_.get(),
                                   stream),
        layers.LinearWeightGradient(shape_, x_.get(), y_gradient_.get(), weight_gradient_.get(),
                                    stream),
        layers.LinearBiasGradient(shape_, y_gradient_.get(), bias_gradient_.get(), stream),
    };
    for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
  }

  // Waits for the device.
  Results Read() const {
    ExpectSameBits(x_.Values(), inputs_.x);
    ExpectSameBits(weight_.Values(), inputs_.weight);
    ExpectSameBits(bias_.Values(), inputs_.bias);
    ExpectSameBits(y_gradient_.Values(), inputs_.y_gradient);
    return {y_.Values(), y_without_bias_.Values(), x_gradient_.Values(), weight_gradient_.Values(),
            bias_gradient_.Values()};
  }

 private:
  DeviceProblem(const LinearShape& shape, const Inputs& in, const Results& empty,
                const Offsets& offsets)
      : shape_(shape),
        inputs_(in),
        x_(in.x, offsets.x),
        weight_(in.weight, offsets.weight),
        bias_(in.bias, offsets.y),
        y_gradient_(in.y_gradient, offsets.y),
        y_(empty.y, offsets.y),
        y_without_bias_(empty.y, offsets.y),
        x_gradient_(empty.x_gradient, offsets.x),
        weight_gradient_(empty.weight_gradient, offsets.weight),
        bias_gradient_(empty.bias_gradient, offsets.y) {}

  const LinearShape shape_;
  const Inputs inputs_;
  const DeviceFloats x_, weight_, bias_, y_gradient_;
  const DeviceFloats y_, y_without_bias_, x_gradient_, weight_gradient_, bias_gradient_;
};

Results OnDevice(CudaLayers& layers, const LinearShape& shape, const Inputs& in,
                 const Offsets& offsets = {}, cudaStream_t stream = nullptr) {
  const DeviceProblem problem(shape, in, offsets);
  problem.Enqueue(layers, stream);
  return problem.Read();
}

TEST(CudaLayers, TilesHaveTheBitsOfTheCpusLoops) {
  for (const LinearShape& shape : kTiledShapes) {
    SCOPED_TRACE(Name(shape));
    ASSERT_FALSE(UsesCublas(shape));
    ASSERT_FALSE(UsesEigen(shape));
    const auto layers = LayersFor(shape);
    ASSERT_NE(layers, nullptr);
    const Inputs inputs = MixedInputs(shape);
    const Results expected = OnCpu(shape, inputs);
    ExpectSameResults(OnDevice(*layers, shape, inputs), expected);
    ExpectSameResults(OnDevice(*layers, shape, inputs, {1, 3, 2}), expected);
  }
}

TEST(CudaLayers, ALayerWithoutOutputsGivesAnInputGradientOfZeros) {
  constexpr LinearShape kShape = {2, 3, 0};
  const auto layers = LayersFor(kShape);
  ASSERT_NE(layers, nullptr);
  ExpectSameBits(OnDevice(*layers, kShape, MixedInputs(kShape)).x_gradient, Floats(6, 0.0f));
}

// A product in double: sum over k of a(row, k) * b(k, column), and the same of absolute values.
struct Reference {
  double sum = 0;
  double magnitude = 0;
  void Add(float a, float b) {
    sum += static_cast<double>(a) * static_cast<double>(b);
    magnitude += std::fabs(static_cast<double>(a) * static_cast<double>(b));
  }
};

// A float32 sum of n products and terms, in any order, with or without fused operations, is off
// by at most n u / (1 - n u) times the sum of their absolute values (Higham 2002, section 3.1);
// u = 2^-24. `factor_error` is the relative error of a product from rounding its factors before.
void ExpectWithinBound(float actual, const Reference& reference, int64_t terms,
                       double factor_error = 0) {
  const double n_u = static_cast<double>(terms) * 0x1p-24;
  const double bound = (n_u / (1 - n_u) * (1 + factor_error) + factor_error) * reference.magnitude;
  ASSERT_LE(std::fabs(static_cast<double>(actual) - reference.sum), bound);
}

void ExpectProductsWithinBound(const LinearShape& shape, const Inputs& in, const Results& out,
                               double factor_error = 0) {
  for (int64_t row = 0; row < shape.batch; ++row) {
    for (int64_t o = 0; o < shape.out; ++o) {
      Reference y;
      for (int64_t i = 0; i < shape.in; ++i) {
        y.Add(in.x[row * shape.in + i], in.weight[o * shape.in + i]);
      }
      ExpectWithinBound(out.y_without_bias[row * shape.out + o], y, shape.in, factor_error);
      y.Add(in.bias[o], 1.0f);
      ExpectWithinBound(out.y[row * shape.out + o], y, shape.in + 1, factor_error);
    }
    for (int64_t i = 0; i < shape.in; ++i) {
      Reference x_gradient;
      for (int64_t o = 0; o < shape.out; ++o) {
        x_gradient.Add(in.y_gradient[row * shape.out + o], in.weight[o * shape.in + i]);
      }
      ExpectWithinBound(out.x_gradient[row * shape.in + i], x_gradient, shape.out, factor_error);
    }
  }
  for (int64_t o = 0; o < shape.out; ++o) {
    for (int64_t i = 0; i < shape.in; ++i) {
      Reference weight_gradient;
      for (int64_t row = 0; row < shape.batch; ++row) {
        weight_gradient.Add(in.y_gradient[row * shape.out + o], in.x[row * shape.in + i]);
      }
      ExpectWithinBound(out.weight_gradient[o * shape.in + i], weight_gradient, shape.batch,
                        factor_error);
    }
  }
}

TEST(CudaLayers, ProductsAreWithinTheErrorOfTheirSums) {
  std::vector<LinearShape> shapes(std::begin(kCublasShapes), std::end(kCublasShapes));
  shapes.push_back(kUnalignedShape);
  for (const LinearShape& shape : shapes) {
    SCOPED_TRACE(Name(shape));
    ASSERT_EQ(UsesCublas(shape), shape.in != kUnalignedShape.in);
    const auto layers = LayersFor(shape);
    ASSERT_NE(layers, nullptr);
    const Inputs inputs = MixedInputs(shape);
    const Results results = OnDevice(*layers, shape, inputs);
    ExpectProductsWithinBound(shape, inputs, results);
    ExpectSameBits(results.bias_gradient, OnCpu(shape, inputs).bias_gradient);
  }
}

// 13-bit integers times zeros and ones, few enough ones that every sum is exact in float32. TF32
// keeps 11 bits.
Inputs IntegerInputs(const LinearShape& shape) {
  const auto integers = [](int64_t count) {
    Floats values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(4097 + 2 * (i * 7919 % 2047)));
    }
    return values;
  };
  Inputs inputs = {integers(shape.batch * shape.in),
                   {},
                   Floats(shape.out, 0.0f),
                   integers(shape.batch * shape.out)};
  for (int64_t i = 0; i < shape.in * shape.out; ++i) {
    inputs.weight.push_back(i * 31 % 37 == 0 ? 1.0f : 0.0f);
  }
  return inputs;
}

TEST(CudaLayers, Float32KeepsAllBitsOfTheFactorsAndTf32DoesNot) {
  constexpr LinearShape kShape = {256, 512, 256};
  const Inputs inputs = IntegerInputs(kShape);
  const auto float32 = LayersFor(kShape, /*tf32=*/false);
  const auto tf32 = LayersFor(kShape, /*tf32=*/true);
  ASSERT_NE(float32, nullptr);
  ASSERT_NE(tf32, nullptr);
  const Results expected = OnCpu(kShape, inputs);
  const Results full = OnDevice(*float32, kShape, inputs);
  ExpectSameBits(full.y, expected.y);
  ExpectSameBits(full.x_gradient, expected.x_gradient);
  const Results rounded = OnDevice(*tf32, kShape, inputs);
  EXPECT_NE(rounded.y, expected.y);
  EXPECT_NE(rounded.x_gradient, expected.x_gradient);
}

TEST(CudaLayers, Tf32IsWithinTheErrorOfItsFactorsAndSums) {
  constexpr LinearShape kShape = {256, 512, 256};
  const auto layers = LayersFor(kShape, /*tf32=*/true);
  ASSERT_NE(layers, nullptr);
  const Inputs inputs = MixedInputs(kShape);
  // Each factor may lose what lies below 10 bits after the point, by rounding or by cutting off.
  // Tensor cores may cut off sums instead of rounding them: 2 u an addition.
  ExpectProductsWithinBound(kShape, inputs, OnDevice(*layers, kShape, inputs),
                            2 * 0x1p-10 + 0x1p-20 + 512 * 0x1p-24);
}

TEST(CudaLayers, BitsDoNotDependOnAddresses) {
  for (const LinearShape& shape : kCublasShapes) {
    SCOPED_TRACE(Name(shape));
    const auto layers = LayersFor(shape);
    ASSERT_NE(layers, nullptr);
    const Inputs inputs = MixedInputs(shape);
    const Results expected = OnDevice(*layers, shape, inputs);
    // One operand unaligned, all of them, and alignments of 16, 32, 64 and 128 bytes, each of
    // which a library might look at.
    for (const Offsets& offsets :
         {Offsets{1, 0, 0}, Offsets{0, 1, 0}, Offsets{0, 0, 1}, Offsets{1, 2, 3}, Offsets{4, 4, 4},
          Offsets{8, 8, 8}, Offsets{16, 16, 16}, Offsets{32, 32, 32}, Offsets{4, 8, 16}}) {
      SCOPED_TRACE(testing::Message()
                   << "offsets " << offsets.x << " " << offsets.weight << " " << offsets.y);
      ExpectSameResults(OnDevice(*layers, shape, inputs, offsets), expected);
    }
  }
}

TEST(CudaLayers, AlignedOperandsNeedNoWorkspaceAndOthersAreRefused) {
  constexpr LinearShape kShape = {64, 64, 64};
  const auto copying = LayersFor(kShape);
  const auto aligned = CudaLayers::Create({kShape}, {.aligned = true});
  ASSERT_NE(copying, nullptr);
  ASSERT_TRUE(aligned.ok()) << aligned.status();
  EXPECT_EQ((*aligned)->workspace_bytes() + 3 * 64 * 64 * 4, copying->workspace_bytes());
  const Inputs inputs = MixedInputs(kShape);
  ExpectSameResults(OnDevice(**aligned, kShape, inputs), OnDevice(*copying, kShape, inputs));
  const DeviceFloats values(64 * 64, 0.0f, 0), askew(64 * 64, 0.0f, 1);
  for (const DeviceFloats* x : {&values, &askew}) {
    for (const DeviceFloats* y : {&values, &askew}) {
      if (x == &values && y == &values) continue;
      const absl::Status status =
          (*aligned)->LinearForward(kShape, x->get(), values.get(), nullptr, y->get(), nullptr);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("multiples of 16 bytes"), absl::string_view::npos) << status;
    }
  }
}

TEST(CudaLayers, BitsDoNotDependOnTheOtherLayersOrOnTheTime) {
  const auto all = CudaLayers::Create(kCublasShapes, {});
  ASSERT_TRUE(all.ok()) << all.status();
  for (const LinearShape& shape : kCublasShapes) {
    SCOPED_TRACE(Name(shape));
    const auto alone = LayersFor(shape);
    ASSERT_NE(alone, nullptr);
    const Inputs inputs = MixedInputs(shape);
    const Results expected = OnDevice(*alone, shape, inputs);
    for (int repetition = 0; repetition < 3; ++repetition) {
      ExpectSameResults(OnDevice(**all, shape, inputs), expected);
    }
  }
}

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST(CudaLayers, BitsDoNotDependOnWhatElseRuns) {
  constexpr LinearShape kShape = {128, 512, 256};
  const auto layers = LayersFor(kShape);
  const auto other = LayersFor(kShape);
  ASSERT_NE(layers, nullptr);
  ASSERT_NE(other, nullptr);
  const Inputs inputs = MixedInputs(kShape);
  const Results expected = OnDevice(*layers, kShape, inputs);
  const Stream busy, stream;
  for (int repetition = 0; repetition < 3; ++repetition) {
    const DeviceProblem background(kShape, inputs, {}), problem(kShape, inputs, {1, 0, 0});
    for (int i = 0; i < 100; ++i) background.Enqueue(*other, busy.get());
    problem.Enqueue(*layers, stream.get());
    ExpectSameResults(problem.Read(), expected);
    ExpectSameResults(background.Read(), expected);
    // And back to the first stream.
    ExpectSameResults(OnDevice(*layers, kShape, inputs), expected);
  }
}

// A captured stream refuses whatever waits for the device or allocates, and what goes to another
// stream is not in the graph.
TEST(CudaLayers, EverythingIsEnqueuedOnTheStreamAndNothingWaits) {
  for (const LinearShape& shape : {LinearShape{128, 512, 256}, LinearShape{33, 65, 17}}) {
    SCOPED_TRACE(Name(shape));
    const auto layers = LayersFor(shape);
    ASSERT_NE(layers, nullptr);
    const Inputs inputs = MixedInputs(shape);
    const Results expected = OnDevice(*layers, shape, inputs);
    const DeviceProblem problem(shape, inputs, {1, 2, 3});
    const Stream stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    problem.Enqueue(*layers, stream.get());
    ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
    ExpectSameResults(problem.Read(), EmptyResults(shape));
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, stream.get()), cudaSuccess);
    ExpectSameResults(problem.Read(), expected);
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

TEST(CudaLayers, AShapeThatCreateWasNotToldIsAnError) {
  const auto layers = LayersFor({1, 1, 1});
  ASSERT_NE(layers, nullptr);
  const DeviceFloats values(64 * 64, 0.0f, 0);
  const absl::Status status = layers->LinearForward({64, 64, 64}, values.get(), values.get(),
                                                    nullptr, values.get(), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

TEST(CudaLayers, AWorkspaceBeyondTheDeviceNamesItsBytes) {
  const auto layers = CudaLayers::Create({{1 << 20, 1 << 20, 1 << 20}}, {});
  EXPECT_EQ(layers.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(layers.status().message());
  // Three operands of 2^42 bytes, cuBLAS's 2^25, and 2048 for partial sums.
  EXPECT_NE(message.find("needs 13194173089792 bytes"), std::string::npos) << message;
  EXPECT_NE(message.find("bytes free"), std::string::npos) << message;
}

TEST(LayerKernels, BiasGradientAddsRowsInOrder) {
  for (const int64_t batch : {1, 2, 127, 128, 129, 300}) {
    for (const int64_t out : {1, 31, 32, 33, 100}) {
      const LinearShape shape = {batch, 1, out};
      const Floats y_gradient = OddValues(batch * out, 5);
      Floats expected(static_cast<size_t>(out));
      LinearBiasGradient(shape, y_gradient.data(), expected.data());
      const DeviceFloats device(y_gradient, 1), sums(out, NAN, 1);
      ASSERT_EQ(cuda::BiasGradient(shape, device.get(), sums.get(), nullptr), cudaSuccess);
      ExpectSameBits(sums.Values(), expected);
    }
  }
}

TEST(LayerKernels, ReluAndItsGradientHaveTheBitsOfTheCpuAndKeepNans) {
  for (const int64_t count : {0, 1, 3, 1023, 4097, 4096 * 256 + 1}) {
    Floats values = OddValues(count, 6);
    Floats gradient = OddValues(count, 8);
    const DeviceFloats device_values(values, 1), device_gradient(gradient, 3);
    ASSERT_EQ(cuda::Relu(count, device_values.get(), nullptr), cudaSuccess);
    ASSERT_EQ(cuda::ReluGradient(count, device_values.get(), device_gradient.get(), nullptr),
              cudaSuccess);
    Relu(count, values.data());
    ReluGradient(count, values.data(), gradient.data());
    ExpectSameBits(device_values.Values(), values);
    ExpectSameBits(device_gradient.Values(), gradient);
  }
  const DeviceFloats nan(Floats{NAN});
  ASSERT_EQ(cuda::Relu(1, nan.get(), nullptr), cudaSuccess);
  EXPECT_TRUE(std::isnan(nan.Values()[0]));
}

TEST(LayerKernels, MeanSquaredErrorAddsToTheLossWithinTheErrorOfItsSum) {
  const auto layers = LayersFor({1, 1, 1});
  ASSERT_NE(layers, nullptr);
  for (const int64_t count : {1, 3, 255, 4097, 300000}) {
    SCOPED_TRACE(count);
    const Floats output = MixedValues(count, 6);
    const Floats targets = MixedValues(count, 7);
    Floats expected = targets;
    const double loss = MeanSquaredError(count, output.data(), expected.data());
    double first = 0;
    for (const int64_t offset : {0, 1}) {
      const DeviceFloats device_output(output, offset), gradient(targets, offset);
      const DeviceDouble sum(0);
      ASSERT_TRUE(
          layers->MeanSquaredError(count, device_output.get(), gradient.get(), sum.get(), nullptr)
              .ok());
      ExpectSameBits(gradient.Values(), expected);
      // Both sums of n positive terms are off by at most n 2^-53 of themselves, and the two
      // divisions by 2^-53 each.
      EXPECT_NEAR(sum.Value(), loss, 2 * static_cast<double>(count + 1) * 0x1p-53 * loss);
      if (offset == 0) first = sum.Value();
      EXPECT_EQ(sum.Value(), first);
    }
    const DeviceFloats device_output(output), gradient(targets);
    const DeviceDouble sum(2.5);
    ASSERT_TRUE(
        layers->MeanSquaredError(count, device_output.get(), gradient.get(), sum.get(), nullptr)
            .ok());
    EXPECT_EQ(sum.Value(), 2.5 + first);
  }
}

TEST(LayerKernels, FillSamplesHasOneStreamASample) {
  constexpr uint64_t kSeed = 77;
  constexpr uint64_t kFirst = (uint64_t{1} << 40) - 1;
  for (const int64_t width : {0, 1, 2, 5, 64}) {
    for (const int64_t rows : {1, 3, 300}) {
      Floats expected(static_cast<size_t>(rows * width));
      for (int64_t row = 0; row < rows; ++row) {
        FillUniform(StreamKey(kSeed, StreamPurpose::kTarget, kFirst + static_cast<uint64_t>(row)),
                    {0, width}, 1.0f, expected.data() + row * width);
      }
      const DeviceFloats values(rows * width, NAN, 1);
      const uint64_t hash = StreamHash(kSeed, static_cast<uint64_t>(StreamPurpose::kTarget));
      ASSERT_EQ(cuda::FillSamples(hash, kFirst, rows, width, values.get(), nullptr), cudaSuccess);
      ExpectSameBits(values.Values(), expected);
    }
  }
}

}  // namespace
}  // namespace shardproof
