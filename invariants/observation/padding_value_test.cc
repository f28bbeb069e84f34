#include "invariants/observation/padding_value.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(PaddingValue, NamesPaddingAndTheBuffer) {
  EXPECT_EQ(std::bit_cast<uint32_t>(PaddingValue(0)), 0x7fc10000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(PaddingValue(5)), 0x7fc10005u);
  EXPECT_TRUE(std::isnan(PaddingValue(5)));
}

// Ids above 16 bits must not spill into the kind.
TEST(PaddingValue, TakesTheLowBitsOfTheBuffer) {
  EXPECT_EQ(std::bit_cast<uint32_t>(PaddingValue(0x20007)), 0x7fc10007u);
  EXPECT_EQ(std::bit_cast<uint32_t>(PaddingValue(-1)), 0x7fc1ffffu);
}

}  // namespace
}  // namespace shardproof
