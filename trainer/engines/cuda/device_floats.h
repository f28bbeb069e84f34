// For tests: floats on the device between two fences, at any alignment; and comparisons of bits.
#ifndef TRAINER_ENGINES_CUDA_DEVICE_FLOATS_H_
#define TRAINER_ENGINES_CUDA_DEVICE_FLOATS_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace shardproof {

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Values in [-1, 1); deterministic.
inline std::vector<float> MixedValues(int64_t count, uint32_t seed) {
  std::vector<float> values;
  uint32_t bits = seed;
  for (int64_t i = 0; i < count; ++i) {
    bits = bits * 1664525u + 1013904223u;
    values.push_back(static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f);
  }
  return values;
}

// The same, with what arithmetic may get wrong strewn in: zeros of both signs, infinities, a NaN,
// subnormal and huge numbers.
inline std::vector<float> OddValues(int64_t count, uint32_t seed) {
  std::vector<float> values = MixedValues(count, seed);
  const float odd[] = {0.0f,      -0.0f,      INFINITY,  -INFINITY, NAN,
                       0x1p-149f, -0x1p-130f, 0x1p-126f, 0x1p127f,  -0x1p127f};
  for (int64_t i = seed % 5; i < count; i += 7) values[i] = odd[(i / 7 + seed) % 10];
  return values;
}

// Equal bits; all NaNs are equal, since processors make different ones.
inline void ExpectSameBits(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(BitsOf(actual[i]), BitsOf(expected[i]))
        << "element " << i << " of " << expected.size() << ": " << actual[i] << " is not "
        << expected[i];
  }
}

// `values` on the current device, the first one `offset` floats behind a multiple of 256 bytes.
class DeviceFloats {
 public:
  explicit DeviceFloats(const std::vector<float>& values, int64_t offset = 0)
      : count_(values.size()), first_(kFence + static_cast<size_t>(offset)) {
    std::vector<float> all(first_ + count_ + kFence, FloatOf(kFenceBits));
    std::copy(values.begin(), values.end(), all.begin() + static_cast<int64_t>(first_));
    EXPECT_EQ(cudaMalloc(&memory_, all.size() * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, all.data(), all.size() * sizeof(float), cudaMemcpyHostToDevice),
              cudaSuccess);
    // A copy may return before its end, and streams that do not block do not wait for it.
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  DeviceFloats(int64_t count, float value, int64_t offset)
      : DeviceFloats(std::vector<float>(static_cast<size_t>(count), value), offset) {}
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  ~DeviceFloats() { EXPECT_EQ(cudaFree(memory_), cudaSuccess); }

  float* get() const { return static_cast<float*>(memory_) + first_; }

  // Waits for the device. Fails the test if anything was written beside the values.
  std::vector<float> Values() const {
    std::vector<float> all(first_ + count_ + kFence);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(all.data(), memory_, all.size() * sizeof(float), cudaMemcpyDeviceToHost),
              cudaSuccess);
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= first_ && i < first_ + count_) continue;
      EXPECT_EQ(BitsOf(all[i]), kFenceBits)
          << "written at " << static_cast<int64_t>(i) - static_cast<int64_t>(first_) << " of "
          << count_ << " values";
    }
    const auto first = all.begin() + static_cast<int64_t>(first_);
    return {first, first + static_cast<int64_t>(count_)};
  }

 private:
  static constexpr size_t kFence = 64;  // floats: 256 bytes
  static constexpr uint32_t kFenceBits = 0x7fc0fe4cu;

  size_t count_;
  size_t first_;
  void* memory_ = nullptr;
};

// One double on the device.
class DeviceDouble {
 public:
  explicit DeviceDouble(double value) {
    EXPECT_EQ(cudaMalloc(&memory_, sizeof(double)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, &value, sizeof(double), cudaMemcpyHostToDevice), cudaSuccess);
  }
  DeviceDouble(const DeviceDouble&) = delete;
  DeviceDouble& operator=(const DeviceDouble&) = delete;
  ~DeviceDouble() { EXPECT_EQ(cudaFree(memory_), cudaSuccess); }

  double* get() const { return static_cast<double*>(memory_); }

  // Waits for the device.
  double Value() const {
    double value = 0;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(&value, memory_, sizeof(double), cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  }

 private:
  void* memory_ = nullptr;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_DEVICE_FLOATS_H_
