// The cuda engine's runs of any world size on one GPU go through these collectives, and are
// compared bit for bit with the oracle: a wrong order of sums would be blamed on the trainer.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_exchange_for_test.h"
#include "collectives/device_world.h"
#include "collectives/simulated/shared_gpu_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

// Fails, never skips, where there is no GPU.
class SharedGpuWorld : public testing::TestWithParam<int32_t> {
 protected:
  void Make(int32_t size) {
    auto made = MakeSharedGpuWorld(WorldSize{size}, 0);
    ASSERT_TRUE(made.ok()) << made.status();
    world = *std::move(made);
  }

  std::unique_ptr<DeviceWorld> world;
};

void ExpectOk(const std::vector<absl::Status>& results) {
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

TEST_P(SharedGpuWorld, EveryCollectiveHasTheBitsOfPlainLoopsInRankOrder) {
  ASSERT_NO_FATAL_FAILURE(Make(GetParam()));
  const Group all{0, 1, GetParam()};
  ExpectOk(OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
    SHARDPROOF_ASSIGN_OR_RETURN(auto communicator, world->Connect(rank, all, stream, kLong));
    EXPECT_TRUE(communicator->adds_in_rank_order());
    return CheckEveryCollective(*communicator, stream);
  }));
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, SharedGpuWorld, testing::Values(1, 2, 3, 4, 5));

using SharedGpu = SharedGpuWorld;

TEST_F(SharedGpu, GroupsWithGapsWorkBesideEachOther) {
  ASSERT_NO_FATAL_FAILURE(Make(6));
  ExpectOk(OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
    const Group every_second{rank.value % 2, 2, 3};
    SHARDPROOF_ASSIGN_OR_RETURN(auto communicator,
                                world->Connect(rank, every_second, stream, kLong));
    return CheckEveryCollective(*communicator, stream);
  }));
}

// Nothing waits on the host between them: each sum reads what the one before wrote.
TEST_F(SharedGpu, CollectivesOfAStreamRunInItsOrder) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  ExpectOk(OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
    SHARDPROOF_ASSIGN_OR_RETURN(auto communicator,
                                world->Connect(rank, Group{0, 1, 3}, stream, kLong));
    const FloatsForTest values(std::vector<float>(100000, rank.value + 1.0f));
    CollectiveHandle last;
    for (int repetition = 0; repetition < 4; ++repetition) {
      SHARDPROOF_ASSIGN_OR_RETURN(last,
                                  communicator->Start(AllReduceForTest(100000, values.data())));
    }
    SHARDPROOF_RETURN_IF_ERROR(communicator->Wait(last, kLong));
    EXPECT_EQ(values.Download(), std::vector<float>(100000, 6.0f * 27));
    return absl::OkStatus();
  }));
}

TEST_F(SharedGpu, ADisagreementNamesRanksCallsAndPositionToAll) {
  ASSERT_NO_FATAL_FAILURE(Make(2));
  const auto results =
      OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
        SHARDPROOF_ASSIGN_OR_RETURN(auto communicator,
                                    world->Connect(rank, Group{0, 1, 2}, stream, kLong));
        const FloatsForTest values(std::vector<float>(16));
        return communicator->Start(AllReduceForTest(8 + 8 * rank.value, values.data())).status();
      });
  for (const absl::Status& result : results) {
    EXPECT_TRUE(absl::IsFailedPrecondition(result)) << result;
    EXPECT_THAT(std::string(result.message()),
                AllOf(HasSubstr("rank 0 called all_reduce of 8"),
                      HasSubstr("rank 1 called all_reduce of 16"), HasSubstr("position 0")));
  }
}

TEST_F(SharedGpu, ARankThatDoesNotStartIsNamedAfterTheTimeout) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  const auto results =
      OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
        SHARDPROOF_ASSIGN_OR_RETURN(auto communicator, world->Connect(rank, Group{0, 1, 3}, stream,
                                                                      absl::Milliseconds(500)));
        if (rank == Rank{1}) return absl::OkStatus();
        const FloatsForTest values(std::vector<float>(4));
        return communicator->Start(AllReduceForTest(4, values.data(), 77)).status();
      });
  for (const size_t rank : {0, 2}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(results[rank])) << results[rank];
    EXPECT_THAT(
        std::string(results[rank].message()),
        AllOf(HasSubstr("all_reduce of 4 float32 (label 77)"), HasSubstr("not arrived: rank 1")));
  }
}

TEST_F(SharedGpu, ARankThatDoesNotConnectIsNamedAfterTheTimeout) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  const StreamForTest stream;
  const auto result =
      world->Connect(Rank{0}, Group{0, 1, 3}, stream.get(), absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("not arrived: ranks 1, 2"));
}

TEST_F(SharedGpu, AbortFreesWhoWaitsAndEndsTheWorld) {
  ASSERT_NO_FATAL_FAILURE(Make(2));
  const absl::Status why = absl::AbortedError("rank 1 has failed");
  const auto results =
      OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
        SHARDPROOF_ASSIGN_OR_RETURN(auto communicator,
                                    world->Connect(rank, Group{0, 1, 2}, stream, kLong));
        if (rank == Rank{1}) {
          absl::SleepFor(absl::Milliseconds(200));
          world->Abort(why);
          return why;
        }
        const FloatsForTest values(std::vector<float>(4));
        return communicator->Start(AllReduceForTest(4, values.data())).status();
      });
  EXPECT_EQ(results[0], why);
  const StreamForTest stream;
  EXPECT_EQ(world->Connect(Rank{0}, Group{0, 1, 1}, stream.get(), kLong).status(), why);
}

TEST_F(SharedGpu, RefusesWhatItCannotMove) {
  ASSERT_NO_FATAL_FAILURE(Make(1));
  const StreamForTest stream;
  auto communicator = world->Connect(Rank{0}, Group{0, 1, 1}, stream.get(), kLong);
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  CollectiveCall call = AllReduceForTest(4, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument((*communicator)->Start(call).status()));
  call.dtype = Dtype::kFloat16;
  EXPECT_TRUE(absl::IsInvalidArgument((*communicator)->Start(call).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      world->Connect(Rank{1}, Group{0, 1, 1}, stream.get(), kLong).status()));
  const auto far = MakeSharedGpuWorld(WorldSize{1}, 1000);
  EXPECT_TRUE(absl::IsInvalidArgument(far.status())) << far.status();
}

}  // namespace
}  // namespace shardproof
