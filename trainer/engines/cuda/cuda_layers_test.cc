// Which products go to cuBLAS: a rule about shapes that needs no GPU.
#include "trainer/engines/cuda/cuda_layers.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

TEST(UsesCublas, TakesLargeShapesWhoseRowsAreAllAligned) {
  EXPECT_TRUE(UsesCublas({64, 64, 64}));
  EXPECT_TRUE(UsesCublas({16, 128, 128}));
  EXPECT_TRUE(UsesCublas({4096, 8192, 8192}));
}

TEST(UsesCublas, LeavesSmallWork) { EXPECT_FALSE(UsesCublas({64, 64, 60})); }

TEST(UsesCublas, LeavesExtentsThatAreNoMultiplesOfFour) {
  EXPECT_FALSE(UsesCublas({65, 256, 256}));
  EXPECT_FALSE(UsesCublas({64, 257, 256}));
  EXPECT_FALSE(UsesCublas({64, 256, 258}));
}

TEST(UsesCublas, LeavesVectorsAndEmptyLayers) {
  EXPECT_FALSE(UsesCublas({12, 4096, 4096}));
  EXPECT_FALSE(UsesCublas({4096, 4096, 4}));
  EXPECT_FALSE(UsesCublas({1024, 0, 1024}));
}

constexpr int64_t kMib = int64_t{1} << 20;

TEST(CudaLayers, SaysBeforehandWhatItKeepsOnTheDevice) {
  const LinearShape small = {4, 4, 4};
  const LinearShape large = {64, 128, 256};
  const int64_t without = CudaLayers::WorkspaceBytes({small}, {.aligned = true});
  EXPECT_GT(without, 0);  // partial sums of losses
  EXPECT_LT(without, kMib);
  // The same shape twice needs no more than once.
  EXPECT_EQ(CudaLayers::WorkspaceBytes({small, large, large}, {.aligned = true}),
            without + 32 * kMib);
  EXPECT_EQ(CudaLayers::WorkspaceBytes({large}, {.aligned = false}),
            without + 32 * kMib + 4 * (64 * 128 + 128 * 256 + 64 * 256));
}

TEST(UsesCublas, LeavesExtentsThatCublasCannotCount) {
  EXPECT_FALSE(UsesCublas({16, int64_t{1} << 31, 16}));
}

}  // namespace
}  // namespace shardproof
