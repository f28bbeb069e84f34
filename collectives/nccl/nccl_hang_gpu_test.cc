// On NCCL a rank that is missing makes the others' GPUs spin for ever: they must be told who it is,
// within the timeout, and be freed.
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

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Seconds(3);

class NcclHang : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_GE(GpusForTest(), 2) << "nobody can be missing from a world of one rank";
    auto made = MakeNcclWorld(WorldSize{GpusForTest()});
    ASSERT_TRUE(made.ok()) << made.status();
    world = *std::move(made);
  }

  Group all() const { return Group{0, 1, GpusForTest()}; }
  Rank last() const { return Rank{GpusForTest() - 1}; }

  std::unique_ptr<DeviceWorld> world;
};

TEST_F(NcclHang, ARankThatDoesNotStartIsNamedWithTheCollective) {
  const auto results =
      OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
        SHARDPROOF_ASSIGN_OR_RETURN(auto communicator, world->Connect(rank, all(), stream, kLong));
        const FloatsForTest values(std::vector<float>(1000, 1.0f));
        SHARDPROOF_ASSIGN_OR_RETURN(CollectiveHandle handle,
                                    communicator->Start(AllReduceForTest(1000, values.data())));
        SHARDPROOF_RETURN_IF_ERROR(communicator->Wait(handle, kLong));
        if (rank == last()) return absl::OkStatus();
        SHARDPROOF_ASSIGN_OR_RETURN(handle,
                                    communicator->Start(AllReduceForTest(500, values.data(), 77)));
        const absl::Status late = communicator->Wait(handle, kShort);
        // Frees the GPU, so that the test can go on: the values on it could not even be freed.
        world->Abort(late);
        return late;
      });
  for (const Rank rank : world->local_ranks()) {
    if (rank == last()) continue;
    const absl::Status& result = results[rank.value];
    EXPECT_TRUE(absl::IsDeadlineExceeded(result)) << result;
    EXPECT_THAT(std::string(result.message()),
                AllOf(HasSubstr("all_reduce of 500 float32 (label 77), position 1"),
                      HasSubstr("rank " + std::to_string(last().value) +
                                " (last started all_reduce of 1000")));
  }
}

TEST_F(NcclHang, ARankThatStartsSomethingElseIsNamed) {
  const auto results =
      OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
        SHARDPROOF_ASSIGN_OR_RETURN(auto communicator, world->Connect(rank, all(), stream, kLong));
        const FloatsForTest values(std::vector<float>(1000, 1.0f));
        const auto handle =
            communicator->Start(AllReduceForTest(rank == last() ? 900 : 1000, values.data()));
        const absl::Status result =
            handle.ok() ? communicator->Wait(*handle, kLong) : handle.status();
        world->Abort(result);
        return result;
      });
  for (const absl::Status& result : results) {
    EXPECT_TRUE(absl::IsFailedPrecondition(result)) << result;
    EXPECT_THAT(std::string(result.message()),
                AllOf(HasSubstr("called all_reduce of 1000"), HasSubstr("called all_reduce of 900"),
                      HasSubstr("position 0")));
  }
}

TEST_F(NcclHang, ARankThatDoesNotConnectIsNamed) {
  const auto results =
      OnEveryRank(*world, world->local_ranks(), [&](Rank rank, DeviceStream stream) {
        if (rank == last()) return absl::OkStatus();
        return world->Connect(rank, all(), stream, kShort).status();
      });
  EXPECT_TRUE(absl::IsDeadlineExceeded(results[0])) << results[0];
  EXPECT_THAT(std::string(results[0].message()),
              HasSubstr("not arrived: rank " + std::to_string(last().value)));
}

}  // namespace
}  // namespace shardproof
