// A rank that waits in vain knows less than the one it waited for: whose error is returned must not
// depend on the ranks' numbers.
#include "trainer/bench/on_each_rank.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

// Ranks without GPUs, and what became of the world.
class FakeWorld : public DeviceWorld {
 public:
  explicit FakeWorld(int32_t ranks) : ranks_(ranks) {}
  WorldSize size() const override { return WorldSize{ranks_}; }
  std::vector<Rank> local_ranks() const override {
    std::vector<Rank> ranks;
    for (int32_t rank = 0; rank < ranks_; ++rank) ranks.push_back(Rank{rank});
    return ranks;
  }
  int device(Rank) const override { return 0; }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(Rank, Group, DeviceStream,
                                                        absl::Duration) override {
    return absl::UnimplementedError("nobody connects here");
  }
  void Abort(absl::Status why) override {
    ++aborts_;
    why_ = std::move(why);
    aborted_.set_value();
  }

  void AwaitAbort() { is_aborted_.wait(); }
  int aborts() const { return aborts_.load(); }
  const absl::Status& why() const { return why_; }

 private:
  const int32_t ranks_;
  std::atomic<int> aborts_ = 0;
  absl::Status why_;
  std::promise<void> aborted_;  // one abort: a second one ends the test
  const std::shared_future<void> is_aborted_ = aborted_.get_future().share();
};

TEST(OnEachRank, EveryRankWorksAtTheSameTime) {
  FakeWorld world(3);
  std::atomic<int> arrived = 0;
  std::promise<void> all;
  const std::shared_future<void> are_there = all.get_future().share();
  EXPECT_TRUE(OnEachRank(world, [&](int) {
                if (++arrived == 3) all.set_value();
                return are_there.wait_for(std::chrono::seconds(60)) == std::future_status::ready
                           ? absl::OkStatus()
                           : absl::DeadlineExceededError("alone");
              }).ok());
  EXPECT_EQ(world.aborts(), 0);
}

TEST(OnEachRank, TheFirstCauseIsReturnedWhicheverRankHasIt) {
  for (int broken = 0; broken < 3; ++broken) {
    FakeWorld world(3);
    // Those that wait are freed by the abort alone, and have an error of their own then.
    const absl::Status status = OnEachRank(world, [&](int rank) -> absl::Status {
      if (rank == broken) return absl::ResourceExhaustedError(absl::StrCat("rank ", rank));
      world.AwaitAbort();
      return absl::AbortedError(absl::StrCat("rank ", rank, " waited"));
    });
    EXPECT_EQ(status, absl::ResourceExhaustedError(absl::StrCat("rank ", broken)));
    EXPECT_EQ(world.why(), status);
    EXPECT_EQ(world.aborts(), 1);
  }
}

}  // namespace
}  // namespace shardproof
