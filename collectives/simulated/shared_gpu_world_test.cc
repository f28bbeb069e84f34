// What needs no GPU: sizes that no GPU could serve are refused before one is looked for.
#include "collectives/simulated/shared_gpu_world.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::HasSubstr;

TEST(MakeSharedGpuWorld, RefusesSizesOutOfRange) {
  for (const int32_t size : {0, -1, 513}) {
    const auto made = MakeSharedGpuWorld(WorldSize{size}, 0);
    EXPECT_TRUE(absl::IsInvalidArgument(made.status())) << made.status();
    EXPECT_THAT(std::string(made.status().message()), HasSubstr("1 to 512"));
  }
}

}  // namespace
}  // namespace shardproof
