// The ledger is the evidence of what a trainer sent: it must note every call that was started,
// in order, and no other, and change nothing.
#include "collectives/ledger.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/simulated/simulated_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

CollectiveCall Call(CollectiveKind kind, int64_t elements, float* buffer, int32_t label) {
  CollectiveCall call;
  call.kind = kind;
  call.elements = elements;
  call.send = buffer;
  call.recv = buffer;
  call.label = label;
  return call;
}

class LedgerTest : public testing::Test {
 protected:
  std::unique_ptr<Communicator> Recorded(int32_t rank, Group group) {
    return ledger_.Record(*world_->communicator(Rank{rank}, group));
  }

  std::unique_ptr<SimulatedWorld> world_ = *SimulatedWorld::Create(WorldSize{4});
  Ledger ledger_{WorldSize{4}};
  float buffer_[8] = {};
};

TEST_F(LedgerTest, NotesWhatEachRankStartedInItsOrderOverAllGroups) {
  const auto all = Recorded(2, Group{0, 1, 4});
  const auto even = Recorded(2, Group{0, 2, 2});
  CollectiveCall broadcast = Call(CollectiveKind::kBroadcast, 3, buffer_, 8);
  broadcast.root = Rank{2};
  ASSERT_TRUE(all->Start(Call(CollectiveKind::kAllReduce, 8, buffer_, 7)).ok());
  ASSERT_TRUE(even->Start(broadcast).ok());
  EXPECT_THAT(ledger_.entries(Rank{2}), ElementsAre(LedgerEntry{.kind = CollectiveKind::kAllReduce,
                                                                .dtype = Dtype::kFloat32,
                                                                .elements = 8,
                                                                .group = {0, 1, 4},
                                                                .root = {0},
                                                                .label = 7,
                                                                .payload_bytes = 32,
                                                                .bus_bytes = 48},
                                                    LedgerEntry{.kind = CollectiveKind::kBroadcast,
                                                                .dtype = Dtype::kFloat32,
                                                                .elements = 3,
                                                                .group = {0, 2, 2},
                                                                .root = {2},
                                                                .label = 8,
                                                                .payload_bytes = 12,
                                                                .bus_bytes = 12}));
  EXPECT_THAT(ledger_.entries(Rank{0}), IsEmpty());
}

TEST_F(LedgerTest, SumsUpEachKind) {
  const auto one = Recorded(1, Group{0, 1, 4});
  ASSERT_TRUE(one->Start(Call(CollectiveKind::kAllGather, 8, buffer_, 1)).ok());
  ASSERT_TRUE(one->Start(Call(CollectiveKind::kAllGather, 4, buffer_, 2)).ok());
  ASSERT_TRUE(one->Start(Call(CollectiveKind::kBarrier, 0, nullptr, 3)).ok());
  const LedgerSummary summary = Summarize(ledger_.entries(Rank{1}));
  EXPECT_EQ(summary.of(CollectiveKind::kAllGather),
            (TrafficTotals{.count = 2, .payload_bytes = 48, .bus_bytes = 36}));
  EXPECT_EQ(summary.of(CollectiveKind::kBarrier), (TrafficTotals{.count = 1}));
  EXPECT_EQ(summary.of(CollectiveKind::kAllReduce), TrafficTotals{});
}

TEST_F(LedgerTest, CountsTheCallsOfAGroupOfOneRank) {
  const auto alone = Recorded(3, Group{3, 1, 1});
  const CollectiveHandle handle =
      *alone->Start(Call(CollectiveKind::kReduceScatter, 5, buffer_, 1));
  EXPECT_TRUE(*alone->Poll(handle));
  EXPECT_EQ(Summarize(ledger_.entries(Rank{3})).of(CollectiveKind::kReduceScatter),
            (TrafficTotals{.count = 1, .payload_bytes = 20, .bus_bytes = 0}));
}

TEST_F(LedgerTest, DoesNotNoteACallThatWasRefused) {
  const auto zero = Recorded(0, Group{0, 1, 4});
  EXPECT_FALSE(zero->Start(Call(CollectiveKind::kAllGather, 7, buffer_, 1)).ok());
  EXPECT_THAT(ledger_.entries(Rank{0}), IsEmpty());
}

TEST_F(LedgerTest, ForgetsWhenCleared) {
  const auto zero = Recorded(0, Group{0, 1, 4});
  ASSERT_TRUE(zero->Start(Call(CollectiveKind::kBarrier, 0, nullptr, 1)).ok());
  ledger_.Clear();
  EXPECT_THAT(ledger_.entries(Rank{0}), IsEmpty());
  ASSERT_TRUE(zero->Start(Call(CollectiveKind::kBarrier, 0, nullptr, 2)).ok());
  EXPECT_EQ(ledger_.entries(Rank{0})[0].label, 2);
}

TEST_F(LedgerTest, PassesBuffersAndHandlesOn) {
  std::vector<std::unique_ptr<Communicator>> recorded;
  std::vector<CollectiveHandle> handles;
  float values[4] = {1, 2, 3, 4};
  for (int32_t rank = 0; rank < 4; ++rank) {
    recorded.push_back(Recorded(rank, Group{0, 1, 4}));
    handles.push_back(
        *recorded[rank]->Start(Call(CollectiveKind::kAllReduce, 1, &values[rank], 0)));
  }
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(*recorded[rank]->Poll(handles[rank]));
    EXPECT_EQ(recorded[rank]->rank(), Rank{rank});
  }
  EXPECT_THAT(values, testing::Each(10.0f));
}

}  // namespace
}  // namespace shardproof
