#include "invariants/checks/float_bits.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(FloatBits, ANaNEqualsItselfByBitsAndMinusZeroDiffersFromZero) {
  const float nan = FloatFromBits(0x7fc00001);
  const float zero = 0;
  const float minus_zero = -0.0f;
  EXPECT_TRUE(SameBits(&nan, &nan, 1));
  EXPECT_FALSE(SameBits(&zero, &minus_zero, 1));
  EXPECT_TRUE(SameBits(nullptr, nullptr, 0));
}

TEST(FloatBits, TheFirstNanIsFoundAtEveryPlaceOfABlock) {
  for (size_t size : {1, 31, 32, 33, 100}) {
    std::vector<float> values(size, 1.0f);
    EXPECT_EQ(FirstNan(values.data(), static_cast<int64_t>(size)), -1);
    for (size_t i = size; i-- > 0;) {
      values[i] = std::nanf("");
      EXPECT_EQ(FirstNan(values.data(), static_cast<int64_t>(size)), static_cast<int64_t>(i));
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FirstNan(&infinity, 1), -1);
}

TEST(FloatBits, UlpDistanceCountsFloatsAcrossZero) {
  EXPECT_EQ(UlpDistance(1.0f, std::nextafter(1.0f, 2.0f)), 1);
  EXPECT_EQ(UlpDistance(0.0f, -0.0f), 0);
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(UlpDistance(-tiny, tiny), 2);
  EXPECT_EQ(UlpDistance(std::nanf(""), 1.0f), -1);
}

TEST(FloatBits, PoisonSurvivesASignChangeAndOrdinaryNansAreNone) {
  const float value = PoisonValue({PoisonKind::kFreed, 7});
  EXPECT_EQ(FloatBits(value), 0x7fc30007u);
  const auto poison = ReadPoison(FloatFromBits(FloatBits(value) | 0x80000000u));
  ASSERT_TRUE(poison.has_value());
  EXPECT_EQ(poison->kind, PoisonKind::kFreed);
  EXPECT_EQ(poison->buffer, 7);
  EXPECT_FALSE(ReadPoison(FloatFromBits(0x7fc00000)).has_value());
  EXPECT_FALSE(ReadPoison(1.0f).has_value());
  EXPECT_EQ(FloatText(0.25f), "0.25 (0x3e800000)");
}

}  // namespace
}  // namespace shardproof
