#include "trainer/engines/cuda/alignment.h"

#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(Alignment, RoundsUpToWholeBuffers) {
  EXPECT_EQ(AlignedBytes(0), 0);
  EXPECT_EQ(AlignedBytes(1), 256);
  EXPECT_EQ(AlignedBytes(256), 256);
  EXPECT_EQ(AlignedFloatBytes(64), 256);
  EXPECT_EQ(AlignedFloatBytes(65), 512);
}

TEST(Alignment, OperandsLieAtMultiplesOf16Bytes) {
  alignas(16) const float values[8] = {};
  EXPECT_TRUE(IsAlignedOperand(values));
  EXPECT_TRUE(IsAlignedOperand(values + 4));
  EXPECT_FALSE(IsAlignedOperand(values + 1));
}

}  // namespace
}  // namespace shardproof
