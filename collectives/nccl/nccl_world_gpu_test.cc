// What NCCL moves for the trainer, on as many GPUs as the test's tag says. With fewer it fails.
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_exchange_for_test.h"
#include "collectives/device_world.h"
#include "collectives/nccl/gpus_for_test.h"
#include "collectives/nccl/nccl_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

class NcclWorldTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = MakeNcclWorld(WorldSize{GpusForTest()});
    ASSERT_TRUE(made.ok()) << made.status();
    world = *std::move(made);
  }

  Group all() const { return Group{0, 1, GpusForTest()}; }

  void ExpectOkOnEveryRank(const std::function<absl::Status(Rank, DeviceStream)>& body) {
    for (const absl::Status& result : OnEveryRank(*world, world->local_ranks(), body)) {
      EXPECT_TRUE(result.ok()) << result;
    }
  }

  std::unique_ptr<DeviceWorld> world;
};

TEST_F(NcclWorldTest, EveryCollectiveGivesWhatPlainLoopsDo) {
  ExpectOkOnEveryRank([&](Rank rank, DeviceStream stream) {
    SHARDPROOF_ASSIGN_OR_RETURN(auto communicator, world->Connect(rank, all(), stream, kLong));
    EXPECT_EQ(communicator->adds_in_rank_order(), GpusForTest() == 1);
    return CheckEveryCollective(*communicator, stream);
  });
}

// One engine after another: connections are reused, and the group's order goes on.
TEST_F(NcclWorldTest, ConnectingAgainWorks) {
  for (int engine = 0; engine < 3; ++engine) {
    ExpectOkOnEveryRank([&](Rank rank, DeviceStream stream) {
      SHARDPROOF_ASSIGN_OR_RETURN(auto communicator, world->Connect(rank, all(), stream, kLong));
      return CheckEveryCollective(*communicator, stream);
    });
  }
}

// Nothing waits on the host between them: each sum reads what the one before wrote.
TEST_F(NcclWorldTest, CollectivesOfAStreamRunInItsOrder) {
  const float n = static_cast<float>(GpusForTest());
  ExpectOkOnEveryRank([&](Rank rank, DeviceStream stream) {
    SHARDPROOF_ASSIGN_OR_RETURN(auto communicator, world->Connect(rank, all(), stream, kLong));
    const FloatsForTest values(std::vector<float>(100000, rank.value + 1.0f));
    CollectiveHandle last;
    for (int repetition = 0; repetition < 4; ++repetition) {
      SHARDPROOF_ASSIGN_OR_RETURN(last,
                                  communicator->Start(AllReduceForTest(100000, values.data())));
    }
    SHARDPROOF_RETURN_IF_ERROR(communicator->Wait(last, kLong));
    EXPECT_EQ(values.Download(), std::vector<float>(100000, n * (n + 1) / 2 * n * n * n));
    return absl::OkStatus();
  });
}

// Each rank alone, then halves of the world with gaps, then all again.
TEST_F(NcclWorldTest, GroupsWorkOneAfterAnother) {
  ExpectOkOnEveryRank([&](Rank rank, DeviceStream stream) {
    std::vector<Group> groups = {Group{rank.value, 1, 1}, all()};
    if (GpusForTest() >= 4) groups.insert(groups.begin(), {rank.value % 2, 2, GpusForTest() / 2});
    for (const Group& group : groups) {
      SHARDPROOF_ASSIGN_OR_RETURN(auto communicator, world->Connect(rank, group, stream, kLong));
      SHARDPROOF_RETURN_IF_ERROR(CheckEveryCollective(*communicator, stream));
    }
    return absl::OkStatus();
  });
}

TEST_F(NcclWorldTest, AnAbortedWorldSaysWhy) {
  const absl::Status why = absl::AbortedError("a rank has failed");
  ExpectOkOnEveryRank([&](Rank rank, DeviceStream stream) {
    return world->Connect(rank, all(), stream, kLong).status();
  });
  world->Abort(why);
  for (const absl::Status& result :
       OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
         return world->Connect(rank, all(), stream, kLong).status();
       })) {
    EXPECT_EQ(result, why);
  }
}

TEST_F(NcclWorldTest, RefusesWhatItCannotMove) {
  const StreamForTest stream;
  auto communicator = world->Connect(Rank{0}, Group{0, 1, 1}, stream.get(), kLong);
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  CollectiveCall call = AllReduceForTest(4, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument((*communicator)->Start(call).status()));
  call.dtype = Dtype::kBFloat16;
  EXPECT_TRUE(absl::IsInvalidArgument((*communicator)->Start(call).status()));
  const auto outside = world->Connect(Rank{GpusForTest()}, all(), stream.get(), kLong);
  EXPECT_TRUE(absl::IsInvalidArgument(outside.status())) << outside.status();
}

TEST(MakeNcclWorld, MoreRanksThanGpusAreRefusedWithBothNumbers) {
  const auto made = MakeNcclWorld(WorldSize{1000});
  EXPECT_TRUE(absl::IsFailedPrecondition(made.status())) << made.status();
  EXPECT_THAT(std::string(made.status().message()), testing::HasSubstr("this run needs 1000"));
}

}  // namespace
}  // namespace shardproof
