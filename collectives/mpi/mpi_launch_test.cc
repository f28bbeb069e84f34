// Under mpirun every rank must find rank 0's job, and learn why not rather than wait for it. Four
// ranks run all of this file, in step.
#include "collectives/mpi/mpi_launch.h"

#include <sys/resource.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/launch/job.h"
#include "collectives/launch/launch_environment.h"
#include "collectives/mpi/mpi_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(20);

// MPI starts once a process, so the tests share a world; main makes it.
MpiRanks* world = nullptr;

LaunchEnvironment Environment() { return *ReadLaunchEnvironment(std::getenv); }

TEST(MpiLaunch, RanksOfMpirunShareAJob) {
  const LaunchEnvironment environment = Environment();
  EXPECT_EQ(environment.launcher, Launcher::kMpirun);
  const auto job = JoinMpirunJob(*world, environment, kTimeout);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((*job)->rank(), world->local_ranks()[0]);
  EXPECT_EQ((*job)->world_size(), WorldSize{4});
  // As a unique id is handed on.
  if (environment.rank.value == 1) {
    EXPECT_TRUE((*job)->Set("id", std::string("a\0b", 3)).ok());
  }
  EXPECT_EQ(*(*job)->Await("id", "rank 1", kTimeout), std::string("a\0b", 3));
  const auto gathered = (*job)->Gather(absl::StrCat("from ", environment.rank.value), kTimeout);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  if (environment.rank.value == 0) {
    EXPECT_THAT(*gathered, ElementsAre("from 0", "from 1", "from 2", "from 3"));
  }
}

TEST(MpiLaunch, AJobOfSeveralMachinesIsKnownByAName) {
  LaunchEnvironment environment = Environment();
  environment.local_world_size = 2;
  const auto job = JoinMpirunJob(*world, environment, kTimeout);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE((*job)->Gather("", kTimeout).ok());
}

TEST(MpiLaunch, RefusesAnEnvironmentOfAnotherLauncherOrRank) {
  LaunchEnvironment environment = Environment();
  environment.launcher = Launcher::kTorchrun;
  EXPECT_EQ(JoinMpirunJob(*world, environment, kTimeout).status().code(),
            absl::StatusCode::kInvalidArgument);
  environment = Environment();
  environment.rank.value = (environment.rank.value + 1) % 4;
  const absl::Status status = JoinMpirunJob(*world, environment, kTimeout).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("of rank ", environment.rank.value, " of 4")));
}

TEST(MpiLaunch, TheOthersLearnWhyRankZeroCannotServe) {
  const LaunchEnvironment environment = Environment();
  rlimit before, none;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = before;
  none.rlim_cur = 0;
  if (environment.rank.value == 0) {
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  const absl::Status status = JoinMpirunJob(*world, environment, kTimeout).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(status.ok());
  if (environment.rank.value != 0) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 0 cannot serve the job: "), HasSubstr("127.0.0.1")));
  }
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  shardproof::MpiOptions options;
  options.timeout = shardproof::kTimeout;
  const auto created = shardproof::CreateMpiRanks(options);
  if (!created.ok()) {
    std::cerr << created.status() << "\n";
    return 1;
  }
  shardproof::world = created->get();
  return RUN_ALL_TESTS();
}
