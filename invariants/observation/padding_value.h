// The float that a trainer fills padding with when the run begins, and that must still lie there
// after every step (StateSegment in observation.h). It is the contract of the check `padding`.
#ifndef INVARIANTS_OBSERVATION_PADDING_VALUE_H_
#define INVARIANTS_OBSERVATION_PADDING_VALUE_H_

#include <bit>
#include <cstdint>

namespace shardproof {

// A quiet NaN with the bits 0x7fc00000 | 1 << 16 | (buffer & 0xffff); `buffer` is the buffer's id,
// StateSegment::buffer. Every float of padding of parameters and moments in that buffer starts as
// this one. Copy it, do not compute with it: a sum may keep the NaN and lose its payload.
inline float PaddingValue(int32_t buffer) {
  constexpr uint32_t kQuietNan = 0x7fc00000;
  constexpr uint32_t kOfPadding = 1u << 16;
  constexpr uint32_t kBufferBits = 0xffff;
  return std::bit_cast<float>(kQuietNan | kOfPadding |
                              (static_cast<uint32_t>(buffer) & kBufferBits));
}

}  // namespace shardproof

#endif  // INVARIANTS_OBSERVATION_PADDING_VALUE_H_
