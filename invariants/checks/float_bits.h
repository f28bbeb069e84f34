// Floats as bits: equality, distance, and the NaN payloads that poison memory.
//
// A computing engine fills memory with quiet NaNs that name where they come from: bits
// 0x7fc00000 | payload, payload = kind << 16 | (buffer id & 0xffff). Arithmetic on x86 and
// on GPUs that keep payloads carries the name along; the sign may change and is ignored.
#ifndef INVARIANTS_CHECKS_FLOAT_BITS_H_
#define INVARIANTS_CHECKS_FLOAT_BITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace shardproof {

uint32_t FloatBits(float value);
float FloatFromBits(uint32_t bits);

// Whether `count` floats have the same bits: -0 differs from 0, a NaN equals itself.
bool SameBits(const float* a, const float* b, int64_t count);

// Index of the first NaN of `count` floats, -1 without one. Runs at memory speed.
int64_t FirstNan(const float* values, int64_t count);

// How many floats lie between a and b (0 and -0 are one); -1 if one of them is NaN.
int64_t UlpDistance(float a, float b);

enum class PoisonKind : uint8_t {
  kPadding = 1,  // padding, at the start of the run
  kFresh = 2,    // an allocation that was never written
  kFreed = 3,    // memory that was freed
};

struct PoisonTag {
  PoisonKind kind = PoisonKind::kPadding;
  int32_t buffer = 0;  // the low 16 bits of the buffer's id
};

float PoisonValue(PoisonTag poison);
// Nothing for a number, and for a NaN that arithmetic made.
std::optional<PoisonTag> ReadPoison(float value);
// "padding", "memory never written", "freed memory".
absl::string_view Name(PoisonKind kind);

// "0.25 (0x3e800000)": nine digits, which round-trip, and the bits.
std::string FloatText(float value);

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_FLOAT_BITS_H_
