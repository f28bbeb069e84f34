// A placement says which tensors share a buffer. Every mode's sets are written out for one
// model: three stages of two tensors of 6 and 2 elements, and a frozen one of 3.
#include "trainer/sharding/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Tensors 0, 2, 4 have 6 elements, 1 and 3 have 2, 5 is frozen and has 3. Buckets of 32
// bytes: {4, 3} and {2, 1} reach it with 8 elements, {0} is what is left.
RunDescription SixTensors(Mode mode, int32_t ranks) {
  RunDescription run = TestRun("probe:3x2,2,3x2,2,6,3", mode, ranks);
  run.model.stages = {{"a", {0, 1}}, {"b", {2, 3}}, {"c", {4, 5}}};
  SetUnits({{0}, {1}, {2}}, run.model);
  Freeze({5}, run.model);
  run.sharding.bucket_cap_bytes = 32;
  return run;
}

// "unit0{0,1}/2" for a set over two shards; "frozen" for one that is nothing else.
std::vector<std::string> Sets(const Placement& placement) {
  std::vector<std::string> sets;
  for (const TensorSet& set : placement.sets) {
    std::string kind = set.trainable ? "" : "frozen";
    if (set.unit >= 0) absl::StrAppend(&kind, "unit", set.unit);
    if (set.bucket >= 0) absl::StrAppend(&kind, "bucket", set.bucket);
    if (set.owner >= 0) absl::StrAppend(&kind, "owner", set.owner);
    sets.push_back(
        absl::StrCat(kind, "{", absl::StrJoin(set.tensors, ","), "}/", set.layout.shards));
  }
  return sets;
}

TEST(MakePlacement, OfUnitModesHasOneSetAUnitForEverything) {
  for (Mode mode : {Mode::kShardGradOp, Mode::kFullShard}) {
    const Placement placement = MakePlacement(SixTensors(mode, 2));
    EXPECT_THAT(Sets(placement), ElementsAre("unit0{0,1}/2", "unit1{2,3}/2", "unit2{4,5}/2"));
    EXPECT_THAT(placement.parameter_set, ElementsAre(0, 0, 1, 1, 2, 2));
    EXPECT_THAT(placement.gradient_set, ElementsAre(0, 0, 1, 1, 2, -1));
    EXPECT_THAT(placement.moment_set, ElementsAre(0, 0, 1, 1, 2, -1));
    // The frozen tensor has its place in the unit's buffers.
    EXPECT_EQ(placement.sets[2].layout.padded_elements(), 10);
  }
}

TEST(MakePlacement, OfReplicatedHasWholeBucketsAndOneFrozenSet) {
  const Placement placement = MakePlacement(SixTensors(Mode::kReplicated, 2));
  EXPECT_THAT(Sets(placement),
              ElementsAre("bucket0{4,3}/1", "bucket1{2,1}/1", "bucket2{0}/1", "frozen{5}/1"));
  EXPECT_THAT(placement.parameter_set, ElementsAre(2, 1, 1, 0, 0, 3));
  EXPECT_THAT(placement.gradient_set, ElementsAre(2, 1, 1, 0, 0, -1));
  EXPECT_THAT(placement.moment_set, ElementsAre(2, 1, 1, 0, 0, -1));
  EXPECT_THAT(placement.gradient_offset, ElementsAre(0, 6, 0, 6, 0, 0));
  EXPECT_EQ(placement.sets[0].layout.padded_elements(), 8);
}

TEST(MakePlacement, OfBucketsThatAreShardedCutsThemOverTheRanks) {
  for (Mode mode : {Mode::kZero1AllGather, Mode::kZero2}) {
    const Placement placement = MakePlacement(SixTensors(mode, 3));
    EXPECT_THAT(Sets(placement),
                ElementsAre("bucket0{4,3}/3", "bucket1{2,1}/3", "bucket2{0}/3", "frozen{5}/1"));
    EXPECT_THAT(placement.parameter_set, ElementsAre(2, 1, 1, 0, 0, 3));
    EXPECT_EQ(placement.gradient_set, placement.moment_set);
    EXPECT_EQ(placement.sets[0].layout.padded_elements(), 9);
    // Frozen parameters stay whole on every rank.
    EXPECT_EQ(placement.sets[3].layout.padded_elements(), 3);
  }
}

TEST(MakePlacement, OfBucketsFollowsTheLayout) {
  RunDescription run = SixTensors(Mode::kZero2, 2);
  run.sharding.layout = LayoutKind::kRows;
  // Tensor 4 is [6], tensor 3 is [2]: 3 and 1 rows a rank. Tensor 0 is [3, 2]: 2 rows.
  const Placement placement = MakePlacement(run);
  EXPECT_EQ(placement.sets[0].layout.padded_elements(), 8);
  EXPECT_EQ(placement.sets[1].layout.padded_elements(), 10);
  EXPECT_EQ(placement.sets[2].layout.padded_elements(), 8);
}

TEST(MakePlacement, OfZero1BroadcastKeepsParametersByOwnerAndGradientsByBucket) {
  const Placement placement = MakePlacement(SixTensors(Mode::kZero1Broadcast, 2));
  // By size 0, 2, 4 (6 each), then 1, 3 (2 each): 0 -> rank 0, 2 -> 1, 4 -> 0 (12), 1 -> 1
  // (8), 3 -> 1 (10).
  EXPECT_THAT(Sets(placement), ElementsAre("bucket0{4,3}/1", "bucket1{2,1}/1", "bucket2{0}/1",
                                           "owner0{0,4}/1", "owner1{1,2,3}/1", "frozen{5}/1"));
  EXPECT_THAT(placement.parameter_set, ElementsAre(3, 4, 4, 4, 3, 5));
  EXPECT_THAT(placement.gradient_set, ElementsAre(2, 1, 1, 0, 0, -1));
  EXPECT_THAT(placement.moment_set, ElementsAre(3, 4, 4, 4, 3, -1));
  EXPECT_THAT(placement.gradient_offset, ElementsAre(0, 6, 0, 6, 0, 0));
  EXPECT_THAT(placement.moment_offset, ElementsAre(0, 0, 2, 8, 6, 0));
  EXPECT_EQ(placement.sets[4].layout.padded_elements(), 10);
}

TEST(MakePlacement, OfZero1BroadcastHasNoSetForARankThatOwnsNothing) {
  const Placement placement = MakePlacement(TestRun("probe:3,4", Mode::kZero1Broadcast, 8));
  EXPECT_THAT(Sets(placement), ElementsAre("bucket0{1,0}/1", "owner0{1}/1", "owner1{0}/1"));
}

TEST(MakePlacement, OfAFrozenModelHasParametersOnly) {
  for (const RunDescription& mode : InEveryMode(TestRun("probe:3,4", Mode::kReplicated, 2))) {
    RunDescription run = mode;
    Freeze({0, 1}, run.model);
    const Placement placement = MakePlacement(run);
    EXPECT_THAT(placement.gradient_set, ElementsAre(-1, -1)) << ModeRowName(run.sharding);
    EXPECT_THAT(placement.moment_set, ElementsAre(-1, -1)) << ModeRowName(run.sharding);
    for (const TensorSet& set : placement.sets) EXPECT_FALSE(set.trainable);
    for (int32_t set : placement.parameter_set) EXPECT_GE(set, 0);
  }
}

TEST(MakePlacement, KeepsAUnitWithoutTensorsInItsPlace) {
  RunDescription run = TestRun("probe:3,4", Mode::kFullShard, 2);
  run.model.stages = {{"a", {0}}, {"none", {}}, {"b", {1}}};
  SetUnits({{0}, {1}, {2}}, run.model);
  const Placement placement = MakePlacement(run);
  EXPECT_THAT(Sets(placement), ElementsAre("unit0{0}/2", "frozenunit1{}/2", "unit2{1}/2"));
  EXPECT_EQ(placement.sets[1].layout.padded_elements(), 0);
}

TEST(MakePlacement, HasATiedTensorOnceInItsUnit) {
  RunDescription run = TestRun("probe:3,4", Mode::kShardGradOp, 2);
  run.model.stages.push_back({"head", {0}});
  SetUnits({{0, 2}, {1}}, run.model);
  EXPECT_THAT(Sets(MakePlacement(run)), ElementsAre("unit0{0}/2", "unit1{1}/2"));
}

std::vector<std::string> Pieces(const std::vector<Piece>& pieces) {
  std::vector<std::string> text;
  for (const Piece& piece : pieces) {
    text.push_back(absl::StrCat(piece.first, "+", piece.count, "@", piece.offset));
  }
  return text;
}

TEST(AppendPiece, MergesWhatGoesOnInTheTensorAndInTheBuffer) {
  std::vector<Piece> pieces;
  EXPECT_THAT(Pieces(pieces), IsEmpty());
  AppendPiece({0, 3, 10}, pieces);
  AppendPiece({3, 2, 13}, pieces);
  EXPECT_THAT(Pieces(pieces), ElementsAre("0+5@10"));
  AppendPiece({5, 2, 16}, pieces);  // a gap in the buffer
  AppendPiece({8, 2, 18}, pieces);  // a gap in the tensor
  AppendPiece({10, 1, 20}, pieces);
  EXPECT_THAT(Pieces(pieces), ElementsAre("0+5@10", "5+2@16", "8+3@18"));
}

}  // namespace
}  // namespace shardproof
