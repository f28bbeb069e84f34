#include "invariants/suite/engine_flags.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/launch_environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(EngineFlags, ACollectiveOfGpusEndsBeforeTheWaitsOfRanksForEachOther) {
  const absl::StatusOr<EngineRequest> request =
      MakeEngineRequest({.engine = "cuda", .timeout_s = 8}, {});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->timeout, absl::Seconds(8));
  EXPECT_EQ(request->gpu_collective_timeout, absl::Seconds(6));
  EXPECT_EQ(EngineRequest().gpu_collective_timeout, CollectiveTimeout(EngineRequest().timeout));
  EXPECT_LT(CollectiveTimeout(absl::Seconds(1)), absl::Seconds(1));
  EXPECT_GT(CollectiveTimeout(absl::Seconds(1)), absl::ZeroDuration());
}

TEST(EngineFlags, AnEngineThatCannotRunInTheProcessesOfALauncherIsRefused) {
  LaunchEnvironment launch;
  launch.launcher = Launcher::kTorchrun;
  EXPECT_FALSE(MakeEngineRequest({.engine = "cpu"}, launch).ok());
  EXPECT_FALSE(MakeEngineRequest({.engine = "cuda_shared"}, launch).ok());
  EXPECT_TRUE(MakeEngineRequest({.engine = "cuda"}, launch).ok());
  launch.launcher = Launcher::kMpirun;
  EXPECT_TRUE(MakeEngineRequest({.engine = "cpu"}, launch).ok());
  EXPECT_FALSE(MakeEngineRequest({.engine = "provenance"}, launch).ok());
}

TEST(EngineFlags, Tf32IsOfGpusAlone) {
  EXPECT_TRUE(MakeEngineRequest({.engine = "cuda", .tf32 = true}, {}).ok());
  const absl::Status status = MakeEngineRequest({.engine = "cpu", .tf32 = true}, {}).status();
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--tf32 with --engine=cpu"));
}

}  // namespace
}  // namespace shardproof
