#include "property_tests/gpu_needs.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

TEST(CheckGpusForTest, ARankOfCudaNeedsAGpu) {
  EXPECT_TRUE(CheckGpusFor({EngineKind::kCuda}, 2, 2).ok());
  EXPECT_TRUE(CheckGpusFor({EngineKind::kCpu, EngineKind::kCudaShared}, 8, 1).ok());
  EXPECT_THAT(std::string(CheckGpusFor({EngineKind::kCuda}, 4, 1).message()),
              HasSubstr("needs a GPU a rank, 4 in this run, and 1 was found"));
  const absl::Status none = absl::FailedPreconditionError("no GPU was found");
  EXPECT_EQ(CheckGpusFor({EngineKind::kCpu, EngineKind::kCudaShared}, 1, none), none);
  EXPECT_TRUE(CheckGpusFor({EngineKind::kCpu}, 1, none).ok());
}

}  // namespace
}  // namespace shardproof
