// trainer/model/data.h's hash and the values made of it, on the device.
#ifndef TRAINER_ENGINES_CUDA_STREAM_HASH_CUH_
#define TRAINER_ENGINES_CUDA_STREAM_HASH_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace shardproof::cuda {

__device__ inline uint64_t Mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

__device__ inline uint64_t StreamHash(uint64_t key, uint64_t block) {
  return Mix64(key + (block + 1) * 0x9e3779b97f4a7c15u);
}

// The values of an element from its 64 / kPerBlock bits of its block's hash.
struct Uniform {
  static constexpr int kPerBlock = 2;
  float unit;  // bound * 2^-23
  __device__ float operator()(uint32_t bits) const {
    return static_cast<float>(static_cast<int32_t>(bits >> 8) - (1 << 23)) * unit;
  }
};

struct MultipleOf256th {
  static constexpr int kPerBlock = 2;
  __device__ float operator()(uint32_t bits) const {
    const int32_t numerator = static_cast<int32_t>((static_cast<uint64_t>(bits) * 513) >> 32) - 256;
    return static_cast<float>(numerator) * 0x1p-8f;
  }
};

struct SmallInteger {
  static constexpr int kPerBlock = 8;
  __device__ float operator()(uint32_t bits) const {
    return static_cast<float>(static_cast<int32_t>((bits * 17) >> 8) - 8);
  }
};

// Writes those of block `block`'s elements that lie in [first, first + count) to
// values[element - first].
template <typename Value>
__device__ inline void WriteBlock(uint64_t key, int64_t block, int64_t first, int64_t count,
                                  Value value, float* values) {
  constexpr int kBits = 64 / Value::kPerBlock;
  constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  const uint64_t hash = StreamHash(key, static_cast<uint64_t>(block));
  for (int part = 0; part < Value::kPerBlock; ++part) {
    const int64_t i = block * Value::kPerBlock + part - first;
    if (i < 0 || i >= count) continue;
    values[i] = value(static_cast<uint32_t>((hash >> (part * kBits)) & kMask));
  }
}

}  // namespace shardproof::cuda

#endif  // TRAINER_ENGINES_CUDA_STREAM_HASH_CUH_
