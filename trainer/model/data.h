// Seeded data: the same (seed, purpose, index) gives the same value on every machine, rank
// and cut.
//
// A stream is an endless row of values, addressed by element, of which any range can be
// filled without filling what lies before it. Streams are told apart by what goes into
// their key. The generator is SplitMix64 (Steele, Lea and Flood 2014) used as a counter:
// the hash of element block n is the n-th output of the generator seeded with the key.
#ifndef TRAINER_MODEL_DATA_H_
#define TRAINER_MODEL_DATA_H_

#include <cstdint>

#include "invariants/run_description/run_description.h"
#include "trainer/model/model_compute.h"

namespace shardproof {

// Keeps streams of one seed apart.
enum class StreamPurpose : uint64_t { kInput = 1, kTarget, kInitialValue, kProbeGradient };

// SplitMix64's output function: a bijection in which every input bit moves every output bit.
inline uint64_t Mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// The hash of block `block` of the stream `key`.
inline uint64_t StreamHash(uint64_t key, uint64_t block) {
  return Mix64(key + (block + 1) * 0x9e3779b97f4a7c15u);
}

// The key of the stream of a purpose; `index` is the sample or the tensor.
uint64_t StreamKey(uint64_t seed, StreamPurpose purpose, uint64_t index);

// The number of the micro-batch's first sample over all ranks and steps. Row r of the
// micro-batch is sample FirstSample + r. Samples differ between ranks on purpose: equal data
// would hide a missing reduction.
uint64_t FirstSample(const RunDescription& run, const MicroBatch& micro_batch);

// Elements [range) of the stream, uniform in [-bound, bound): multiples of bound * 2^-23,
// each with one rounding. Writes range.count floats.
void FillUniform(uint64_t key, ElementRange range, float bound, float* values);

// Elements [range) of the stream, multiples of 2^-8 in [-1, 1], all 513 about equally likely.
void FillMultiplesOf256th(uint64_t key, ElementRange range, float* values);

// Elements [range) of the stream, integers in [-8, 8], all 17 about equally likely.
void FillSmallIntegers(uint64_t key, ElementRange range, float* values);

}  // namespace shardproof

#endif  // TRAINER_MODEL_DATA_H_
