// RanksHere in a build without OpenMPI, where the ranks of mpirun cannot meet.
#include "invariants/suite/ranks_here.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

LaunchEnvironment UnderMpirun(int32_t rank) {
  LaunchEnvironment environment;
  environment.launcher = Launcher::kMpirun;
  environment.rank = Rank{rank};
  environment.world_size = WorldSize{3};
  environment.local_rank = rank;
  environment.local_world_size = 3;
  return environment;
}

TEST(RanksHere, ARankThatCannotJoinSaysSoInOneLine) {
  for (const int32_t rank : {0, 2}) {
    RanksHere ranks("audit", UnderMpirun(rank));
    const absl::Status joined = ranks.Join(absl::Seconds(1));
    ASSERT_TRUE(absl::IsUnavailable(joined)) << joined;
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    EXPECT_EQ(ranks.Fail(joined), 2);
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, StartsWith(rank == 0 ? "audit: " : "audit: rank 2: "));
    EXPECT_THAT(said, HasSubstr("MPI"));
    EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
  }
}

TEST(RanksHere, WhatIsWrongOnAllBeforeTheyMeetIsSaidByRankZero) {
  const absl::Status wrong = absl::InvalidArgumentError("--steps=0");
  for (const int32_t rank : {0, 2}) {
    RanksHere ranks("audit", UnderMpirun(rank));
    testing::internal::CaptureStderr();
    EXPECT_EQ(ranks.Fail(wrong), 2);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), rank == 0 ? "audit: --steps=0\n" : "");
  }
}

TEST(RanksHere, WithoutALauncherNothingIsJoinedOrLeft) {
  RanksHere ranks("audit", LaunchEnvironment());
  EXPECT_TRUE(ranks.leads());
  EXPECT_TRUE(ranks.Join(absl::Seconds(1)).ok());
  EXPECT_EQ(ranks.Leave(1), 1);
  const absl::Status wrong = absl::InternalError("wrong");
  EXPECT_EQ(ranks.AgreeOn(wrong), wrong);
}

}  // namespace
}  // namespace shardproof
