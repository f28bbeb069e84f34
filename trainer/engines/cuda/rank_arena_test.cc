// What the driver's free memory may say of an allocation. The arena itself needs a GPU
// (cuda_engine_gpu_test).
#include "trainer/engines/cuda/rank_arena.h"

#include "gtest/gtest.h"

namespace shardproof {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

TEST(DriverFigure, IsTheAllocationRoundedUpAndNothingElse) {
  EXPECT_EQ(DriverFigure(256 * kMib, 256 * kMib), 256 * kMib);
  EXPECT_EQ(DriverFigure(258 * kMib, 256 * kMib), 258 * kMib);
  EXPECT_EQ(DriverFigure(254 * kMib, 256 * kMib), -1);  // another program gave memory back
  EXPECT_EQ(DriverFigure(300 * kMib, 256 * kMib), -1);  // another program took some
  EXPECT_EQ(DriverFigure(0, 1024), -1);                 // from memory that CUDA had already
}

}  // namespace
}  // namespace shardproof
