#include "trainer/model/data.h"

#include <algorithm>
#include <cmath>

namespace shardproof {
namespace {

// Calls write(i, bits) for elements range.first + i, where `bits` are the element's
// 64 / kPerBlock bits of its block's hash: one hash serves kPerBlock elements, because the
// hash is most of the cost of filling a large tensor.
template <int kPerBlock, typename Write>
inline void ForEachElement(uint64_t key, ElementRange range, Write write) {
  constexpr int kBits = 64 / kPerBlock;
  constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  int64_t i = 0;
  while (i < range.count) {
    const uint64_t element = static_cast<uint64_t>(range.first + i);
    const uint64_t hash = StreamHash(key, element / kPerBlock);
    const int first_part = static_cast<int>(element % kPerBlock);
    if (first_part == 0 && range.count - i >= kPerBlock) {
      for (int part = 0; part < kPerBlock; ++part) {
        write(i + part, static_cast<uint32_t>((hash >> (part * kBits)) & kMask));
      }
      i += kPerBlock;
      continue;
    }
    const int end_part =
        static_cast<int>(std::min<int64_t>(kPerBlock, first_part + range.count - i));
    for (int part = first_part; part < end_part; ++part, ++i) {
      write(i, static_cast<uint32_t>((hash >> (part * kBits)) & kMask));
    }
  }
}

}  // namespace

uint64_t StreamKey(uint64_t seed, StreamPurpose purpose, uint64_t index) {
  return Mix64(StreamHash(seed, static_cast<uint64_t>(purpose)) ^ Mix64(index));
}

uint64_t FirstSample(const RunDescription& run, const MicroBatch& micro_batch) {
  // Unsigned, so that an absurd step number wraps instead of being undefined.
  uint64_t sample = static_cast<uint64_t>(micro_batch.step);
  sample = sample * static_cast<uint64_t>(run.data.num_micro_batches) +
           static_cast<uint64_t>(micro_batch.micro_batch);
  sample = sample * static_cast<uint64_t>(run.sharding.world_size.value) +
           static_cast<uint64_t>(micro_batch.rank.value);
  return sample * static_cast<uint64_t>(run.data.micro_batch_size);
}

void FillUniform(uint64_t key, ElementRange range, float bound, float* values) {
  const float unit = bound * 0x1p-23f;
  ForEachElement<2>(key, range, [=](int64_t i, uint32_t bits) {
    // The upper 24 of 32 bits, centred: exact in float, so the product rounds once.
    values[i] = static_cast<float>(static_cast<int32_t>(bits >> 8) - (1 << 23)) * unit;
  });
}

void FillMultiplesOf256th(uint64_t key, ElementRange range, float* values) {
  ForEachElement<2>(key, range, [=](int64_t i, uint32_t bits) {
    const int32_t numerator = static_cast<int32_t>((uint64_t{bits} * 513) >> 32) - 256;
    values[i] = static_cast<float>(numerator) * 0x1p-8f;
  });
}

void FillSmallIntegers(uint64_t key, ElementRange range, float* values) {
  // 8 bits an element: 17 values of 256 cannot be exactly equally likely (15 or 16 each).
  ForEachElement<8>(key, range, [=](int64_t i, uint32_t bits) {
    values[i] = static_cast<float>(static_cast<int32_t>((bits * 17) >> 8) - 8);
  });
}

void FillInitialValues(const RunDescription& run, int32_t tensor, ElementRange range,
                       float* values) {
  const uint64_t key =
      StreamKey(run.data.seed, StreamPurpose::kInitialValue, static_cast<uint64_t>(tensor));
  if (run.model.kind == ModelKind::kProbe) {
    FillMultiplesOf256th(key, range, values);
    return;
  }
  const double fan_in = static_cast<double>(run.model.tensors[tensor].fan_in);
  FillUniform(key, range, static_cast<float>(1.0 / std::sqrt(fan_in)), values);
}

}  // namespace shardproof
