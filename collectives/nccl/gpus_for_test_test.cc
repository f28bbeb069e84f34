#include "collectives/nccl/gpus_for_test.h"

#include <cstdlib>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(GpusForTest, TheNumberOfTheTarget) {
  setenv("SHARDPROOF_GPUS", "4", /*overwrite=*/1);
  EXPECT_EQ(GpusForTest(), 4);
}

// A test that does not know its number must not run with one GPU and look like a pass.
TEST(GpusForTest, WithoutANumberTheTestFails) {
  unsetenv("SHARDPROOF_GPUS");
  EXPECT_NONFATAL_FAILURE(EXPECT_EQ(GpusForTest(), 0), "SHARDPROOF_GPUS is not set");
  setenv("SHARDPROOF_GPUS", "two", /*overwrite=*/1);
  EXPECT_NONFATAL_FAILURE(EXPECT_EQ(GpusForTest(), 0), "SHARDPROOF_GPUS is 'two'");
}

}  // namespace
}  // namespace shardproof
