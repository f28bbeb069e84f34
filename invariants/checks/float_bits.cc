#include "invariants/checks/float_bits.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"

namespace shardproof {
namespace {

constexpr uint32_t kQuietNan = 0x7fc00000;
constexpr uint32_t kPayload = 0x003fffff;

// Floats in order as integers, so that neighbours differ by one.
int64_t Ordered(float value) {
  const uint32_t bits = FloatBits(value);
  const int64_t magnitude = bits & 0x7fffffff;
  return bits >> 31 ? -magnitude : magnitude;
}

}  // namespace

uint32_t FloatBits(float value) { return std::bit_cast<uint32_t>(value); }

float FloatFromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

bool SameBits(const float* a, const float* b, int64_t count) {
  return count <= 0 || std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

int64_t FirstNan(const float* values, int64_t count) {
  // Blocks of constant size let the compiler use vector compares at -O2.
  constexpr int kBlock = 32;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    int32_t any = 0;
    for (int k = 0; k < kBlock; ++k) any |= values[i + k] != values[i + k];
    if (any != 0) break;
  }
  for (; i < count; ++i) {
    if (std::isnan(values[i])) return i;
  }
  return -1;
}

int64_t UlpDistance(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return -1;
  return std::llabs(Ordered(a) - Ordered(b));
}

float PoisonValue(PoisonTag poison) {
  return FloatFromBits(kQuietNan | static_cast<uint32_t>(poison.kind) << 16 |
                       (static_cast<uint32_t>(poison.buffer) & 0xffff));
}

std::optional<PoisonTag> ReadPoison(float value) {
  const uint32_t bits = FloatBits(value);
  if ((bits & kQuietNan) != kQuietNan) return std::nullopt;
  const uint32_t kind = (bits & kPayload) >> 16;
  if (kind < 1 || kind > 3) return std::nullopt;
  return PoisonTag{static_cast<PoisonKind>(kind), static_cast<int32_t>(bits & 0xffff)};
}

absl::string_view Name(PoisonKind kind) {
  switch (kind) {
    case PoisonKind::kPadding:
      return "padding";
    case PoisonKind::kFresh:
      return "memory never written";
    case PoisonKind::kFreed:
      return "freed memory";
  }
  return "?";
}

std::string FloatText(float value) {
  return absl::StrFormat("%.9g (0x%08x)", value, FloatBits(value));
}

}  // namespace shardproof
