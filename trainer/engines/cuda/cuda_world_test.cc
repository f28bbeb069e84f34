// What is wrong with a world whatever the machine has: asked before the machine is.
#include "trainer/engines/cuda/cuda_world.h"

#include <string>

#include "absl/status/status.h"
#include "collectives/job_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

TEST(CudaWorld, RanksOfSeveralProcessesShareNoGpu) {
  JobBoardForTest board;
  JobForTest job(&board, Rank{0}, WorldSize{2});
  const absl::Status status =
      MakeCudaWorld({.size = WorldSize{2}, .shared_gpu = true, .job = &job}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cuda_shared engine has all ranks in one process"));
}

TEST(CudaWorld, NeedsARankAndAnOrdinal) {
  EXPECT_TRUE(absl::IsInvalidArgument(MakeCudaWorld({.size = WorldSize{0}}).status()));
  JobBoardForTest board;
  JobForTest job(&board, Rank{1}, WorldSize{2});
  const absl::Status status =
      MakeCudaWorld({.size = WorldSize{2}, .job = &job, .device = -1}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("GPU -1 of rank 1"));
}

}  // namespace
}  // namespace shardproof
