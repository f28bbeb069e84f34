// The figures below are computed by hand: a wrong factor would let a trainer send twice what
// its mode needs.
#include "collectives/traffic_model.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

TEST(TrafficModel, PayloadIsTheFullBuffer) {
  EXPECT_EQ(PayloadBytes(CollectiveKind::kAllReduce, Dtype::kFloat32, 10), 40);
  EXPECT_EQ(PayloadBytes(CollectiveKind::kAllGather, Dtype::kBFloat16, 10), 20);
  EXPECT_EQ(PayloadBytes(CollectiveKind::kReduceScatter, Dtype::kFloat16, 10), 20);
  EXPECT_EQ(PayloadBytes(CollectiveKind::kBroadcast, Dtype::kFloat64, 10), 80);
  EXPECT_EQ(PayloadBytes(CollectiveKind::kAllReduce, Dtype::kFloat32, 0), 0);
}

TEST(TrafficModel, ABarrierMovesNothing) {
  EXPECT_EQ(PayloadBytes(CollectiveKind::kBarrier, Dtype::kFloat32, 10), 0);
  EXPECT_EQ(BusBytes(CollectiveKind::kBarrier, 40, 4), 0);
}

TEST(TrafficModel, BusBytesOfFourRanks) {
  EXPECT_EQ(BusBytes(CollectiveKind::kAllReduce, 1000, 4), 1500);
  EXPECT_EQ(BusBytes(CollectiveKind::kAllGather, 1000, 4), 750);
  EXPECT_EQ(BusBytes(CollectiveKind::kReduceScatter, 1000, 4), 750);
  EXPECT_EQ(BusBytes(CollectiveKind::kBroadcast, 1000, 4), 1000);
}

TEST(TrafficModel, ReduceScatterAndAllGatherTogetherAreAnAllReduce) {
  for (const int32_t members : {1, 2, 3, 5, 8, 64}) {
    const int64_t payload = int64_t{4} * 997 * members;
    EXPECT_EQ(BusBytes(CollectiveKind::kReduceScatter, payload, members) +
                  BusBytes(CollectiveKind::kAllGather, payload, members),
              BusBytes(CollectiveKind::kAllReduce, payload, members));
  }
}

TEST(TrafficModel, OneRankHasPayloadAndNoBusBytes) {
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                    CollectiveKind::kReduceScatter, CollectiveKind::kBroadcast}) {
    EXPECT_EQ(PayloadBytes(kind, Dtype::kFloat32, 3), 12);
    EXPECT_EQ(BusBytes(kind, 12, 1), 0);
  }
}

TEST(TrafficModel, BusBytesAreRoundedDown) {
  EXPECT_EQ(BusBytes(CollectiveKind::kAllReduce, 4, 3), 5);    // 16 / 3
  EXPECT_EQ(BusBytes(CollectiveKind::kAllReduce, 28, 5), 44);  // 224 / 5
}

TEST(TrafficModel, PetabytesOnAMillionRanksDoNotOverflow) {
  const int64_t payload = int64_t{1} << 60;
  const int32_t members = 1 << 20;
  EXPECT_EQ(BusBytes(CollectiveKind::kAllReduce, payload, members),
            (int64_t{1} << 61) - (int64_t{1} << 41));
}

}  // namespace
}  // namespace shardproof
