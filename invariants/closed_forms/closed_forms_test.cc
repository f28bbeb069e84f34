// The closed forms against numbers that were not computed by this project: the study's tables,
// what PyTorch recorded, and sums worked out by hand beside each test. A wrong closed form
// makes every check that uses it fail a right trainer, or pass a wrong one.
#include "invariants/closed_forms/closed_forms.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "invariants/closed_forms/example_runs.h"

namespace shardproof {
namespace {

constexpr Mode kModes[] = {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather,
                           Mode::kZero2,      Mode::kShardGradOp,    Mode::kFullShard};

// "G8 G7 c8 S8": all-gathers, computes and reduce-scatters of units, counted from 1, an AR or
// RS of buckets, updates (u) and the clip norm (N), in issue order of one phase and micro-batch.
std::string Order(const RunDescription& run, Phase phase, int32_t micro_batch = 0) {
  std::string text;
  for (const ExpectedItem& item : ExpectedSequence(run)) {
    if (item.phase != phase || item.micro_batch != micro_batch) continue;
    const char* letter = "c";
    if (item.kind == EventKind::kCollective) {
      letter = item.collective == CollectiveKind::kAllGather       ? "G"
               : item.collective == CollectiveKind::kReduceScatter ? "S"
                                                                   : "AR";
    }
    if (item.kind == EventKind::kOptimizer) letter = "u";
    if (item.purpose == Purpose::kClipNorm) {
      absl::StrAppend(&text, text.empty() ? "" : " ", "N");
      continue;
    }
    absl::StrAppend(&text, text.empty() ? "" : " ", letter,
                    (item.bucket >= 0 ? item.bucket : item.unit) + 1);
  }
  return text;
}

std::vector<int64_t> LiveBytes(const RunDescription& run) {
  std::vector<int64_t> live;
  for (const ExpectedItem& item : ExpectedSequence(run)) live.push_back(item.live_bytes);
  return live;
}

std::vector<int64_t> ForwardGatherElements(const RunDescription& run) {
  std::vector<int64_t> elements;
  for (const ExpectedItem& item : ExpectedSequence(run)) {
    if (item.phase == Phase::kForward && item.kind == EventKind::kCollective) {
      elements.push_back(item.elements);
    }
  }
  return elements;
}

std::vector<int64_t> CountsOf(const RunDescription& run) {
  const ExpectedCounts counts = ExpectedCollectiveCounts(run);
  return {counts.all_reduce,           counts.all_gather_forward, counts.all_gather_backward,
          counts.all_gather_optimizer, counts.reduce_scatter,     counts.broadcast};
}

std::vector<int64_t> BytesOf(const RunDescription& run, int32_t rank) {
  const StateBytes bytes = ExpectedState(run, Rank{rank});
  return {bytes.parameter, bytes.gradient, bytes.optimizer, bytes.padding, bytes.scalar};
}

using Bytes = std::vector<int64_t>;

// --- The study's tables: 8 x Linear(2048) without bias on 4 ranks, buckets of 64 MiB.

TEST(Study, FactorsAreThoseOfTheTable) {
  const auto factors = [](Mode mode) {
    const Factors f = ExpectedFactors(StudyRun(mode, 4));
    return std::tuple(f.parameter, f.gradient, f.optimizer);
  };
  EXPECT_EQ(factors(Mode::kReplicated), std::tuple(4, 4, 8));
  EXPECT_EQ(factors(Mode::kZero1Broadcast), std::tuple(4, 4, 2));
  EXPECT_EQ(factors(Mode::kZero1AllGather), std::tuple(4, 4, 2));
  EXPECT_EQ(factors(Mode::kZero2), std::tuple(4, 1, 2));
  EXPECT_EQ(factors(Mode::kShardGradOp), std::tuple(1, 1, 2));
  EXPECT_EQ(factors(Mode::kFullShard), std::tuple(1, 1, 2));
}

TEST(Study, CollectivesAreThoseOfTheTable) {
  const auto counts = [](Mode mode) { return CountsOf(StudyRun(mode, 4)); };
  //                      all-reduce, all-gather fwd/bwd/opt, reduce-scatter, broadcast
  EXPECT_EQ(counts(Mode::kReplicated), (Bytes{2, 0, 0, 0, 0, 0}));
  EXPECT_EQ(counts(Mode::kZero1Broadcast), (Bytes{2, 0, 0, 0, 0, 8}));
  EXPECT_EQ(counts(Mode::kZero1AllGather), (Bytes{2, 0, 0, 2, 0, 0}));
  EXPECT_EQ(counts(Mode::kZero2), (Bytes{0, 0, 0, 2, 2, 0}));
  EXPECT_EQ(counts(Mode::kShardGradOp), (Bytes{0, 8, 0, 0, 8, 0}));
  EXPECT_EQ(counts(Mode::kFullShard), (Bytes{0, 8, 8, 0, 8, 0}));
}

TEST(Study, EveryRankHoldsAQuarterOfWhatIsSharded) {
  constexpr int64_t kMiB = 1 << 20;
  const RunDescription run = StudyRun(Mode::kFullShard, 4);
  for (int32_t rank = 0; rank < 4; ++rank) {
    // flat: a quarter of each of the 8 weights, so 8 step counters.
    EXPECT_EQ(BytesOf(run, rank), (Bytes{32 * kMiB, 32 * kMiB, 64 * kMiB, 0, 32}));
  }
  // zero2: two buckets of four weights; a quarter of a bucket is one weight.
  EXPECT_EQ(BytesOf(StudyRun(Mode::kZero2, 4), 3), (Bytes{128 * kMiB, 32 * kMiB, 64 * kMiB, 0, 8}));
}

TEST(Study, ABroadcastIsOneTensorFromItsOwner) {
  const std::vector<ExpectedItem> items = ExpectedSequence(StudyRun(Mode::kZero1Broadcast, 4));
  std::vector<int32_t> roots;
  for (const ExpectedItem& item : items) {
    if (item.collective != CollectiveKind::kBroadcast) continue;
    EXPECT_EQ(item.tensor, static_cast<int32_t>(roots.size()));
    EXPECT_EQ(item.elements, 2048 * 2048);
    roots.push_back(item.root);
  }
  EXPECT_EQ(roots, (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
}

TEST(Study, TheBucketViewBroadcastsOnceForEachOwner) {
  RunDescription run = StudyRun(Mode::kZero1Broadcast, 4);
  run.sharding.broadcast_bucket_view = true;
  EXPECT_EQ(ExpectedCollectiveCounts(run).broadcast, 4);
  const ExpectedItem last = ExpectedSequence(run).back();
  EXPECT_EQ(last.root, 3);
  EXPECT_EQ(last.tensor, -1);
  EXPECT_EQ(last.elements, 2 * 2048 * 2048);
}

// --- What PyTorch 2.11 recorded.

TEST(Recorded, GatherSizesOfUnevenLayersOnTwoRanks) {
  ShardingDescription sharding = Sharding(Mode::kFullShard, 2);
  sharding.layout = LayoutKind::kFlatAligned;
  EXPECT_EQ(ForwardGatherElements(MlpRun({33, 65, 17, 129, 7}, true, sharding)),
            (Bytes{2214, 1126, 2326, 912}));
  sharding.layout = LayoutKind::kRows;
  EXPECT_EQ(ForwardGatherElements(MlpRun({33, 65, 17, 129, 7}, true, sharding)),
            (Bytes{2244, 1188, 2340, 1040}));
}

TEST(Recorded, ForwardGathersAUnitThenComputesIt) {
  for (const Mode mode : {Mode::kShardGradOp, Mode::kFullShard}) {
    EXPECT_EQ(Order(StudyRun(mode, 4), Phase::kForward),
              "G1 c1 G2 c2 G3 c3 G4 c4 G5 c5 G6 c6 G7 c7 G8 c8");
  }
}

TEST(Recorded, BackwardOrdersOfTheThreePrefetches) {
  RunDescription run = StudyRun(Mode::kFullShard, 4);
  EXPECT_EQ(Order(run, Phase::kBackward),
            "G8 G7 c8 S8 G6 c7 S7 G5 c6 S6 G4 c5 S5 G3 c4 S4 G2 c3 S3 G1 c2 S2 c1 S1");
  run.sharding.prefetch = Prefetch::kBackwardPost;
  EXPECT_EQ(Order(run, Phase::kBackward),
            "G8 c8 G7 S8 c7 G6 S7 c6 G5 S6 c5 G4 S5 c4 G3 S4 c3 G2 S3 c2 G1 S2 c1 S1");
  run.sharding.prefetch = Prefetch::kNone;
  EXPECT_EQ(Order(run, Phase::kBackward),
            "G8 c8 S8 G7 c7 S7 G6 c6 S6 G5 c5 S5 G4 c4 S4 G3 c3 S3 G2 c2 S2 G1 c1 S1");
}

TEST(Recorded, ShardGradOpGathersNothingInBackward) {
  EXPECT_EQ(Order(StudyRun(Mode::kShardGradOp, 4), Phase::kBackward),
            "c8 S8 c7 S7 c6 S6 c5 S5 c4 S4 c3 S3 c2 S2 c1 S1");
}

TEST(Recorded, TheUnitThatIsNotReshardedIsGatheredOnce) {
  RunDescription run = StudyRun(Mode::kFullShard, 4);
  run.model.units[7].reshard_after_forward = false;
  EXPECT_EQ(CountsOf(run), (Bytes{0, 8, 7, 0, 8, 0}));
  EXPECT_EQ(Order(run, Phase::kBackward),
            "G7 c8 S8 G6 c7 S7 G5 c6 S6 G4 c5 S5 G3 c4 S4 G2 c3 S3 G1 c2 S2 c1 S1");
}

// --- Buckets.

TEST(Buckets, ABucketClosesWhenItReachesOrPassesTheCap) {
  RunDescription run = VectorRun({3, 5, 4, 4}, Sharding(Mode::kReplicated, 2));
  run.sharding.bucket_cap_bytes = 32;
  // Reverse registration: 4 + 4 reach 8 elements, then 5 + 3 reach them too.
  EXPECT_EQ(Order(run, Phase::kBackward), "c4 c3 AR1 c2 c1 AR2");
  run.sharding.bucket_cap_bytes = 20;
  // 4 is below 5 elements, 4 + 4 passes; 5 reaches; 3 is left.
  EXPECT_EQ(Order(run, Phase::kBackward), "c4 c3 AR1 c2 AR2 c1 AR3");
  run.sharding.bucket_cap_bytes = 1;
  EXPECT_EQ(Order(run, Phase::kBackward), "c4 AR1 c3 AR2 c2 AR3 c1 AR4");
  EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "u1 u2 u3 u4");
}

TEST(Buckets, NoBucketIsReducedBeforeItsPredecessors) {
  RunDescription run = VectorRun({4, 4, 4}, Sharding(Mode::kZero2, 2));
  run.sharding.bucket_cap_bytes = 1;
  // The last tensor of the registration order is computed first in forward, so its gradient,
  // and with it bucket 1 of 3, is complete last.
  run.model.stages[0].tensors = {2};
  run.model.stages[2].tensors = {0};
  EXPECT_EQ(Order(run, Phase::kBackward), "c3 c2 c1 S1 S2 S3");
  EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "u1 G1 u2 G2 u3 G3");
}

// --- Uneven sizes, empty shards, owners. mlp 1,1,3 with bias has 1 + 1 and 3 + 3 elements.

TEST(Padding, FlatShardsOfATinyModelOnEightRanks) {
  const RunDescription run = MlpRun({1, 1, 3}, true, Sharding(Mode::kFullShard, 8));
  // Both units: one element a rank. Unit 0 fills ranks 0 and 1, unit 1 ranks 0 to 5. An
  // element of padding costs 4 bytes of parameter, of gradient and of each moment.
  EXPECT_EQ(ForwardGatherElements(run), (Bytes{8, 8}));
  EXPECT_EQ(BytesOf(run, 0), (Bytes{8, 8, 16, 0, 8}));
  EXPECT_EQ(BytesOf(run, 1), (Bytes{8, 8, 16, 0, 8}));
  EXPECT_EQ(BytesOf(run, 2), (Bytes{4, 4, 8, 16, 4}));
  EXPECT_EQ(BytesOf(run, 5), (Bytes{4, 4, 8, 16, 4}));
  EXPECT_EQ(BytesOf(run, 6), (Bytes{0, 0, 0, 32, 0}));
  EXPECT_EQ(BytesOf(run, 7), (Bytes{0, 0, 0, 32, 0}));
  EXPECT_EQ(ExpectedOwner(run, 0, 0).value, 0);
  EXPECT_EQ(ExpectedOwner(run, 1, 0).value, 1);
  EXPECT_EQ(ExpectedOwner(run, 3, 2).value, 5);
}

TEST(Padding, AlignedTensorsStartAtSixteenBytes) {
  RunDescription run = MlpRun({1, 1, 3}, true, Sharding(Mode::kFullShard, 8));
  run.sharding.layout = LayoutKind::kFlatAligned;
  // Unit 0: weight at 0, bias at 4. Unit 1: weight at 0..2, bias at 4..6; 3 and 7 are padding.
  EXPECT_EQ(ForwardGatherElements(run), (Bytes{8, 8}));
  EXPECT_EQ(BytesOf(run, 0), (Bytes{8, 8, 16, 0, 8}));
  EXPECT_EQ(BytesOf(run, 3), (Bytes{0, 0, 0, 32, 0}));
  EXPECT_EQ(BytesOf(run, 4), (Bytes{8, 8, 16, 0, 8}));
  EXPECT_EQ(ExpectedOwner(run, 1, 0).value, 4);
  EXPECT_EQ(ExpectedOwner(run, 3, 2).value, 6);
}

TEST(Padding, RowsArePaddedTensorByTensor) {
  RunDescription run = MlpRun({1, 1, 3}, true, Sharding(Mode::kFullShard, 8));
  run.sharding.layout = LayoutKind::kRows;
  // Every tensor has at most 8 rows, so each rank has one row of each: 2 elements a unit.
  EXPECT_EQ(ForwardGatherElements(run), (Bytes{16, 16}));
  EXPECT_EQ(BytesOf(run, 0), (Bytes{16, 16, 32, 0, 16}));
  EXPECT_EQ(BytesOf(run, 2), (Bytes{8, 8, 16, 32, 8}));
  EXPECT_EQ(BytesOf(run, 3), (Bytes{0, 0, 0, 64, 0}));
  EXPECT_EQ(ExpectedOwner(run, 3, 2).value, 2);
}

TEST(Padding, OfUnevenRowsTheLastRankHasFewer) {
  ShardingDescription sharding = Sharding(Mode::kShardGradOp, 4);
  sharding.layout = LayoutKind::kRows;
  const RunDescription run = MlpRun({3, 5}, false, sharding);
  // 5 rows of 3 in parts of 2 rows: 6, 6, 3 and 0 elements of 6.
  EXPECT_EQ(BytesOf(run, 1), (Bytes{24, 24, 48, 0, 4}));
  EXPECT_EQ(BytesOf(run, 2), (Bytes{12, 12, 24, 48, 4}));
  EXPECT_EQ(BytesOf(run, 3), (Bytes{0, 0, 0, 96, 0}));
  EXPECT_EQ(ExpectedOwner(run, 0, 11).value, 1);
  EXPECT_EQ(ExpectedOwner(run, 0, 12).value, 2);
}

TEST(Padding, BucketsOfZero1AndZero2ArePaddedWholeAndInShards) {
  ShardingDescription sharding = Sharding(Mode::kZero2, 4);
  // One bucket of 3 + 3 + 1 + 1 elements, 2 a rank: no padding.
  EXPECT_EQ(BytesOf(MlpRun({1, 1, 3}, true, sharding), 1), (Bytes{32, 8, 16, 0, 8}));
  // One bucket of 3 + 1 + 1 in 4 shards of 2: 3 elements of padding, by rank 0, 0, 1, 2.
  const RunDescription zero2 = VectorRun({1, 1, 3}, sharding);
  EXPECT_EQ(BytesOf(zero2, 2), (Bytes{20, 4, 8, 3 * 4 + 1 * 4 + 1 * 8, 4}));
  EXPECT_EQ(BytesOf(zero2, 3), (Bytes{20, 0, 0, 3 * 4 + 2 * 4 + 2 * 8, 0}));
  sharding.mode = Mode::kZero1AllGather;
  EXPECT_EQ(BytesOf(VectorRun({1, 1, 3}, sharding), 3), (Bytes{20, 20, 0, 3 * 4 + 3 * 4 + 16, 0}));
}

TEST(Owner, TheLargestTensorGoesToTheLightestRank) {
  const RunDescription run = VectorRun({2, 4, 6, 4}, Sharding(Mode::kZero1Broadcast, 2));
  // 6 to rank 0; both 4s to rank 1, which then has 8; 2 to rank 0.
  EXPECT_EQ(ExpectedOwner(run, 0, 1).value, 0);
  EXPECT_EQ(ExpectedOwner(run, 1, 3).value, 1);
  EXPECT_EQ(ExpectedOwner(run, 2, 0).value, 0);
  EXPECT_EQ(ExpectedOwner(run, 3, 0).value, 1);
  EXPECT_EQ(BytesOf(run, 0), (Bytes{64, 64, 64, 0, 8}));
}

TEST(Owner, ShardsOfAUnitArePaddedToTheLargest) {
  ShardingDescription sharding = Sharding(Mode::kFullShard, 3);
  sharding.layout = LayoutKind::kOwner;
  const RunDescription run = MlpRun({2, 3}, true, sharding);
  // Weight (6) on rank 0, bias (3) on rank 1, nothing on rank 2.
  EXPECT_EQ(ForwardGatherElements(run), (Bytes{18}));
  EXPECT_EQ(BytesOf(run, 0), (Bytes{24, 24, 48, 0, 4}));
  EXPECT_EQ(BytesOf(run, 1), (Bytes{12, 12, 24, 48, 4}));
  EXPECT_EQ(BytesOf(run, 2), (Bytes{0, 0, 0, 96, 0}));
}

TEST(Owner, OfReplicatedStateIsEveryRank) {
  EXPECT_EQ(ExpectedOwner(StudyRun(Mode::kReplicated, 4), 3, 17).value, -1);
}

TEST(Owner, OwnersCountedElementByElementAreTheBytesOfTheState) {
  for (const Mode mode : kModes) {
    if (mode == Mode::kReplicated) continue;
    for (const LayoutKind layout :
         {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner}) {
      for (const int32_t ranks : {1, 2, 3, 8}) {
        ShardingDescription sharding = Sharding(mode, ranks);
        sharding.layout = mode == Mode::kZero1Broadcast ? LayoutKind::kOwner : layout;
        sharding.bucket_cap_bytes = 100;
        const RunDescription run = MlpRun({3, 5, 1, 7}, true, sharding);
        std::vector<int64_t> owned(ranks, 0);
        for (size_t t = 0; t < run.model.tensors.size(); ++t) {
          for (int64_t e = 0; e < Elements(run.model.tensors[t]); ++e) {
            ++owned[ExpectedOwner(run, static_cast<int32_t>(t), e).value];
          }
        }
        for (int32_t r = 0; r < ranks; ++r) {
          EXPECT_EQ(ExpectedState(run, Rank{r}).optimizer, 8 * owned[r])
              << ModeRowName(sharding) << " " << Name(layout) << " rank " << r << " of " << ranks;
        }
      }
    }
  }
}

// --- Optimizers, frozen tensors, odd models.

TEST(Optimizer, SgdHasOneMomentOrNoneAndNoCounters) {
  RunDescription run = VectorRun({4}, Sharding(Mode::kFullShard, 2));
  run.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(BytesOf(run, 0), (Bytes{8, 8, 8, 0, 0}));
  run.optimizer.momentum = 0;
  EXPECT_EQ(BytesOf(run, 0), (Bytes{8, 8, 0, 0, 0}));
}

TEST(Frozen, BackwardStopsAtTheFirstTrainableUnit) {
  RunDescription run = VectorRun({4, 4, 4}, Sharding(Mode::kFullShard, 2));
  run.model.tensors[0].trainable = false;
  EXPECT_EQ(Order(run, Phase::kBackward), "G3 G2 c3 S3 c2 S2");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 3, 2, 0, 2, 0}));
  // Unit 0 has parameters alone: no gradient, no moments, no padding for them.
  EXPECT_EQ(BytesOf(run, 0), (Bytes{24, 16, 32, 0, 8}));
  run.sharding = Sharding(Mode::kShardGradOp, 2);
  EXPECT_EQ(Order(run, Phase::kBackward), "c3 S3 c2 S2");
}

TEST(Frozen, AUnitThatBackwardNeverReachesIsReshardedAfterForward) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kShardGradOp, 2));
  run.model.tensors[0].trainable = false;
  // Shards 8 + 8, full units 16. G0 c0 G1 (R0) c1 | c1: gradient 16; S1: shard 8, full unit
  // resharded | update.
  EXPECT_EQ(LiveBytes(run), (Bytes{32, 32, 48, 32, 48, 40, 24}));
}

TEST(Frozen, AUnitAboveIsGatheredForBackwardButNotReduced) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kFullShard, 2));
  run.model.tensors[1].trainable = false;
  EXPECT_EQ(Order(run, Phase::kBackward), "G2 G1 c2 c1 S1");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 2, 2, 0, 1, 0}));
}

TEST(Frozen, PlacesOfFrozenTensorsInGradientsAndMomentsArePadding) {
  RunDescription run = MlpRun({1, 2}, true, Sharding(Mode::kFullShard, 2));
  run.model.tensors[0].trainable = false;
  // Weight on rank 0, bias on rank 1, 2 elements each. Rank 0: gradient and two moments of
  // the frozen weight, 3 x 8 bytes.
  EXPECT_EQ(BytesOf(run, 0), (Bytes{8, 0, 0, 24, 0}));
  EXPECT_EQ(BytesOf(run, 1), (Bytes{8, 8, 16, 0, 4}));
  EXPECT_EQ(ExpectedOwner(run, 0, 1).value, 0);
}

TEST(Frozen, BucketModesKeepFrozenTensorsWholeAndFactorsCountTrainableOnes) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kZero2, 2));
  run.model.tensors[0].trainable = false;
  EXPECT_EQ(BytesOf(run, 1), (Bytes{32, 8, 16, 0, 4}));
  EXPECT_EQ(ExpectedOwner(run, 0, 0).value, -1);
  EXPECT_EQ(ExpectedFactors(run).parameter, 2);
  EXPECT_EQ(ExpectedFactors(run).gradient, 1);
  EXPECT_EQ(ExpectedFactors(run).optimizer, 2);
}

TEST(Frozen, AModelWithNothingToTrainOnlyRunsForward) {
  for (const Mode mode : kModes) {
    RunDescription run = VectorRun({4, 4}, Sharding(mode, 2));
    for (TensorSpec& tensor : run.model.tensors) tensor.trainable = false;
    for (const ExpectedItem& item : ExpectedSequence(run)) {
      EXPECT_EQ(item.phase, Phase::kForward) << Name(mode);
    }
    EXPECT_EQ(ExpectedFactors(run).optimizer, 0);
  }
}

TEST(Units, ARootUnitIsGatheredOnceForItsTwoRunsAndReducedAfterTheLast) {
  RunDescription run = VectorRun({4, 4, 4}, Sharding(Mode::kFullShard, 2));
  // The root holds the first and the last stage, as embedding and head.
  run.model.units[0].stages = {0, 2};
  run.model.units.pop_back();
  EXPECT_EQ(Order(run, Phase::kForward), "G1 c1 G2 c2 c1");
  EXPECT_EQ(Order(run, Phase::kBackward), "G1 G2 c1 c2 S2 c1 S1");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 2, 2, 0, 2, 0}));
}

TEST(Units, NeighbouringStagesAreComputedTogether) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kReplicated, 2));
  run.model.units[0].stages = {0, 1};
  run.model.units.pop_back();
  const ExpectedItem first = ExpectedSequence(run)[0];
  EXPECT_EQ(first.stage, 0);
  EXPECT_EQ(first.stage_count, 2);
  EXPECT_EQ(first.unit, 0);
}

TEST(Units, AUnitWithoutElementsIsNeverGathered) {
  RunDescription run = VectorRun({4, 4, 4}, Sharding(Mode::kFullShard, 2));
  run.model.stages[0].tensors = {0, 1};
  run.model.stages[1].tensors = {};
  EXPECT_EQ(Order(run, Phase::kForward), "G1 c1 c2 G3 c3");
  EXPECT_EQ(Order(run, Phase::kBackward), "G3 c3 S3 G1 c2 c1 S1");
}

// --- Tied tensors. Units are counted from 1; each stage is a unit of its own, of 4 elements.

// The last stage uses the first one's tensor too, beside its own.
RunDescription TiedRun(Mode mode, Prefetch prefetch) {
  RunDescription run = VectorRun({4, 4, 4}, Sharding(mode, 2));
  run.sharding.prefetch = prefetch;
  run.model.stages[2].tensors = {2, 0};
  return run;
}

TEST(Tied, AUnitStaysUnshardedFromItsFirstRunToItsLast) {
  const RunDescription run = TiedRun(Mode::kFullShard, Prefetch::kBackwardPre);
  EXPECT_EQ(Order(run, Phase::kForward), "G1 c1 G2 c2 G3 c3");
  EXPECT_EQ(Order(run, Phase::kBackward), "G3 G1 G2 c3 S3 c2 S2 c1 S1");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 3, 3, 0, 3, 0}));
}

TEST(Tied, ThePrefetchesGatherAllUnitsOfTheRunBelow) {
  EXPECT_EQ(Order(TiedRun(Mode::kFullShard, Prefetch::kBackwardPost), Phase::kBackward),
            "G3 G1 c3 G2 S3 c2 S2 c1 S1");
  EXPECT_EQ(Order(TiedRun(Mode::kFullShard, Prefetch::kNone), Phase::kBackward),
            "G3 G1 c3 S3 G2 c2 S2 c1 S1");
  // The tie in the second run instead: what comes before it is gathered for it, both units.
  RunDescription run = TiedRun(Mode::kFullShard, Prefetch::kBackwardPre);
  run.model.stages[1].tensors = {1, 0};
  run.model.stages[2].tensors = {2};
  EXPECT_EQ(Order(run, Phase::kBackward), "G3 G2 G1 c3 S3 c2 S2 c1 S1");
  run.sharding.prefetch = Prefetch::kBackwardPost;
  EXPECT_EQ(Order(run, Phase::kBackward), "G3 c3 G2 G1 S3 c2 S2 c1 S1");
}

TEST(Tied, LiveBytesFollowTheGathers) {
  // Shards 3 x 8, a full unit or gradient 16. Unit 1 lives from G1 to the end of forward, and from
  // the G1 of backward to c1; its gradient from c3 on.
  EXPECT_EQ(LiveBytes(TiedRun(Mode::kFullShard, Prefetch::kNone)),
            (Bytes{40, 40, 56, 56, 72, 56,              // G1 c1 G2 c2 G3 (R2) c3 (R3 R1)
                   40, 56, 88, 80, 80, 96, 88, 72, 64,  // G3 G1 c3 S3 G2 c2 S2 c1 S1
                   48, 48, 48}));
  // Pre: G2 before c3. At c2 the gradient of unit 3 is the most recently reduced.
  EXPECT_EQ(LiveBytes(TiedRun(Mode::kFullShard, Prefetch::kBackwardPre)),
            (Bytes{40, 40, 56, 56, 72, 56,                 //
                   40, 56, 72, 104, 96, 112, 104, 88, 80,  // G3 G1 G2 c3 S3 c2 S2 c1 S1
                   48, 48, 48}));
}

TEST(Tied, AUnitThatOnlyBorrowsIsNeitherGatheredNorReduced) {
  RunDescription run = VectorRun({4, 4, 4}, Sharding(Mode::kFullShard, 2));
  ASSERT_TRUE(TieTensors("units.2.weight", "units.0.weight", run.model).ok());
  EXPECT_EQ(Order(run, Phase::kForward), "G1 c1 G2 c2 c3");
  EXPECT_EQ(Order(run, Phase::kBackward), "G1 G2 c3 c2 S2 c1 S1");
  EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "u1 u2");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 2, 2, 0, 2, 0}));
  run.sharding = Sharding(Mode::kShardGradOp, 2);
  EXPECT_EQ(Order(run, Phase::kBackward), "c3 c2 S2 c1 S1");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 2, 0, 0, 2, 0}));
  // The tied tensor's bytes are there once: 4 + 4 elements over 2 ranks.
  EXPECT_EQ(BytesOf(run, 0), (Bytes{16, 16, 32, 0, 8}));
}

TEST(Tied, OverThreeUnitsAndInAscendingOrderBehindTheRunsOwn) {
  RunDescription run = VectorRun({4, 4, 4, 4}, Sharding(Mode::kFullShard, 2));
  run.model.stages[1].tensors = {1, 0};
  run.model.stages[3].tensors = {2, 0, 3};  // the third stage's before the first's
  run.sharding.prefetch = Prefetch::kBackwardPost;
  EXPECT_EQ(Order(run, Phase::kForward), "G1 c1 G2 c2 G3 c3 G4 c4");
  EXPECT_EQ(Order(run, Phase::kBackward), "G4 G1 G3 c4 S4 c3 G2 S3 c2 S2 c1 S1");
  run.sharding.prefetch = Prefetch::kNone;
  EXPECT_EQ(Order(run, Phase::kBackward), "G4 G1 G3 c4 S4 c3 S3 G2 c2 S2 c1 S1");
  run.sharding.prefetch = Prefetch::kBackwardPre;
  EXPECT_EQ(Order(run, Phase::kBackward), "G4 G1 G3 c4 S4 G2 c3 S3 c2 S2 c1 S1");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 4, 4, 0, 4, 0}));
}

TEST(Tied, AFrozenUnitIsGatheredForTheLowestRunThatBorrowsFromIt) {
  RunDescription run = VectorRun({4, 4, 4, 4}, Sharding(Mode::kFullShard, 2));
  run.sharding.prefetch = Prefetch::kNone;
  // Nothing below the third stage is trained; it borrows from unit 1, which is frozen.
  run.model.stages[1].tensors = {};
  run.model.stages[2].tensors = {2, 1, 0};
  run.model.units[1].stages = {1, 3};  // of tensor 3; tensor 1 is unit 3's
  run.model.units.pop_back();
  run.model.tensors[0].trainable = false;
  EXPECT_EQ(Order(run, Phase::kForward), "G1 c1 G2 c2 G3 c3 c2");
  EXPECT_EQ(Order(run, Phase::kBackward), "G2 c2 S2 G3 G1 c3 S3");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 3, 3, 0, 2, 0}));
}

TEST(Tied, ARootUnitThatSharesAMiddleUnitsTensorDoesNotOwnIt) {
  RunDescription run = VectorRun({4, 4, 4}, Sharding(Mode::kFullShard, 2));
  run.model.units[0].stages = {0, 2};
  run.model.units.pop_back();
  run.model.stages[2].tensors = {1, 2};
  EXPECT_EQ(ForwardGatherElements(run), (Bytes{8, 4}));
  EXPECT_EQ(Order(run, Phase::kForward), "G1 c1 G2 c2 c1");
  EXPECT_EQ(Order(run, Phase::kBackward), "G1 G2 c1 c2 S2 c1 S1");
  // Tensors 0 and 2 fill unit 1, one a rank; tensor 1 is cut in two.
  EXPECT_EQ(ExpectedOwner(run, 0, 3).value, 0);
  EXPECT_EQ(ExpectedOwner(run, 1, 1).value, 0);
  EXPECT_EQ(ExpectedOwner(run, 1, 2).value, 1);
  EXPECT_EQ(ExpectedOwner(run, 2, 0).value, 1);
}

TEST(Tied, KeptUnitsAreGatheredForTheFirstForwardAlone) {
  RunDescription run = TiedRun(Mode::kFullShard, Prefetch::kNone);
  run.data.num_micro_batches = 2;
  run.sharding.grad_sync = GradSync::kLast;
  run.sharding.keep_unsharded_between_micro_batches = true;
  EXPECT_EQ(Order(run, Phase::kForward, 0), "G1 c1 G2 c2 G3 c3");
  EXPECT_EQ(Order(run, Phase::kBackward, 0), "G3 G1 c3 G2 c2 c1");
  EXPECT_EQ(Order(run, Phase::kForward, 1), "c1 c2 c3");
  EXPECT_EQ(Order(run, Phase::kBackward, 1), "G3 G1 c3 S3 G2 c2 S2 c1 S1");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 3, 6, 0, 3, 0}));
  // Gradients 16 of each unit wait for the last micro-batch; forward begins with three full
  // units and reshards in it.
  EXPECT_EQ(LiveBytes(run), (Bytes{40,  40,  56,  56,  72,  56,               //
                                   40,  56,  88,  104, 120, 120,              // none resharded
                                   120, 120, 104,                             // c1 c2 (R2) c3
                                   88,  104, 104, 96,  96,  96,  88, 72, 64,  //
                                   48,  48,  48}));
}

TEST(Tied, BackwardNeedsTheUnitOfAFrozenTensorThatItsLowestRunUses) {
  RunDescription run = VectorRun({4, 4, 4, 4}, Sharding(Mode::kFullShard, 2));
  run.sharding.prefetch = Prefetch::kNone;
  // Unit 2 has stages 1 and 2 in one run. Its first trained stage is the later one; the earlier
  // one borrows from unit 1.
  run.model.stages[1].tensors = {1, 0};
  run.model.units[1].stages = {1, 2};
  run.model.units.erase(run.model.units.begin() + 2);
  run.model.tensors[0].trainable = run.model.tensors[1].trainable = false;
  EXPECT_EQ(Order(run, Phase::kBackward), "G3 c3 S3 G2 G1 c2 S2");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 3, 3, 0, 2, 0}));
}

TEST(Tied, ABucketIsCompleteAfterTheLowestStageThatWritesToIt) {
  RunDescription run = TiedRun(Mode::kReplicated, Prefetch::kNotApplicable);
  run.sharding.bucket_cap_bytes = 1;
  EXPECT_EQ(Order(run, Phase::kBackward), "c3 AR1 c2 AR2 c1 AR3");
  // c3 writes to the buckets of tensors 2 and 0.
  EXPECT_EQ(LiveBytes(run), (Bytes{48, 48, 48, 80, 80, 96, 96, 96, 96, 96, 96, 96}));
}

// --- Clipping.

TEST(Clip, ShardedGradientsSumTheirSquaresOnceBeforeTheFirstUpdate) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kFullShard, 3));
  const Bytes counts = CountsOf(run);
  run.clip_grad_norm = 0.5;
  EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "N u1 u2");
  EXPECT_EQ(CountsOf(run), counts);
  run.sharding = Sharding(Mode::kShardGradOp, 3);
  EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "N u1 u2");
  run.sharding = Sharding(Mode::kZero2, 3);
  run.sharding.bucket_cap_bytes = 1;
  EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "N u1 G1 u2 G2");
  run.clip_grad_norm = 0;
  EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "u1 G1 u2 G2");
}

TEST(Clip, TheNormIsOneDoubleAmongAllRanks) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kZero2, 3));
  run.clip_grad_norm = 1;
  const std::vector<ExpectedItem> items = ExpectedSequence(run);
  const auto norm = std::find_if(items.begin(), items.end(), [](const ExpectedItem& item) {
    return item.purpose == Purpose::kClipNorm;
  });
  ASSERT_NE(norm, items.end());
  EXPECT_EQ(norm->kind, EventKind::kCollective);
  EXPECT_EQ(norm->collective, CollectiveKind::kAllReduce);
  EXPECT_EQ(norm->phase, Phase::kOptimizer);
  EXPECT_EQ(norm->dtype, Dtype::kFloat64);
  EXPECT_EQ(norm->group, (Group{0, 1, 3}));
  EXPECT_EQ(norm->elements, 1);
  EXPECT_EQ(std::tuple(norm->unit, norm->bucket, norm->micro_batch), std::tuple(-1, -1, -1));
  EXPECT_EQ(norm->live_bytes, (norm + 1)->live_bytes);
  // Whatever the precision of gradients is.
  run.sharding.precision.reduce = Dtype::kBFloat16;
  for (const ExpectedItem& item : ExpectedSequence(run)) {
    if (item.purpose == Purpose::kClipNorm) {
      EXPECT_EQ(item.dtype, Dtype::kFloat64);
    }
  }
}

TEST(Clip, WholeGradientsSendNothingAndNoModeKeepsState) {
  for (const Mode mode : kModes) {
    RunDescription run = VectorRun({4, 3}, Sharding(mode, 3));
    const size_t items = ExpectedSequence(run).size();
    const StateBytes state = ExpectedState(run, Rank{0});
    run.clip_grad_norm = 1;
    const bool sharded = mode == Mode::kZero2 || ShardsUnits(mode);
    EXPECT_EQ(ExpectedSequence(run).size(), items + (sharded ? 1 : 0)) << Name(mode);
    EXPECT_EQ(ExpectedState(run, Rank{0}), state) << Name(mode);
    for (TensorSpec& tensor : run.model.tensors) tensor.trainable = false;
    EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "") << Name(mode);
  }
}

// --- Tensors without elements.

TEST(Empty, AUnitOfThemIsOnlyComputedInEveryLayout) {
  for (const LayoutKind layout :
       {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner}) {
    RunDescription run = VectorRun({4, 0, 4}, Sharding(Mode::kFullShard, 2));
    run.sharding.layout = layout;
    EXPECT_EQ(Order(run, Phase::kForward), "G1 c1 c2 G3 c3") << Name(layout);
    EXPECT_EQ(Order(run, Phase::kBackward), "G3 c3 S3 G1 c2 c1 S1") << Name(layout);
    EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "u1 u3") << Name(layout);
    EXPECT_EQ(CountsOf(run), (Bytes{0, 2, 2, 0, 2, 0})) << Name(layout);
  }
}

// One unit: [3], [5, 0], [0], [2].
RunDescription EmptyInsideRun(LayoutKind layout) {
  RunDescription run = VectorRun({3, 0, 0, 2}, Sharding(Mode::kFullShard, 2));
  run.sharding.layout = layout;
  run.model.tensors[1].shape = {5, 0};
  run.model.units[0].stages = {0, 1, 2, 3};
  run.model.units.resize(1);
  return run;
}

TEST(Empty, TheyTakeNoPlaceAmongOthersAndHaveNoCounter) {
  // 3 + 2 in shards of 3: 3 on rank 0; 2 and one of padding on rank 1.
  const RunDescription flat = EmptyInsideRun(LayoutKind::kFlat);
  EXPECT_EQ(BytesOf(flat, 0), (Bytes{12, 12, 24, 0, 4}));
  EXPECT_EQ(BytesOf(flat, 1), (Bytes{8, 8, 16, 16, 4}));
  // [3] at 0, [2] at 4: shards of 3, the first with three, the second with one of padding.
  const RunDescription aligned = EmptyInsideRun(LayoutKind::kFlatAligned);
  EXPECT_EQ(BytesOf(aligned, 0), (Bytes{12, 12, 24, 0, 4}));
  EXPECT_EQ(ExpectedOwner(aligned, 3, 0).value, 1);
  // 2 of the 3 and 1 of the 2; 1 of each and one of padding.
  const RunDescription rows = EmptyInsideRun(LayoutKind::kRows);
  EXPECT_EQ(BytesOf(rows, 0), (Bytes{12, 12, 24, 0, 8}));
  EXPECT_EQ(BytesOf(rows, 1), (Bytes{8, 8, 16, 16, 8}));
  const RunDescription owner = EmptyInsideRun(LayoutKind::kOwner);
  EXPECT_EQ(BytesOf(owner, 0), (Bytes{12, 12, 24, 0, 4}));
  EXPECT_EQ(BytesOf(owner, 1), (Bytes{8, 8, 16, 16, 4}));
}

TEST(Empty, FlatAlignedRoundsUpToWhereOneWouldStart) {
  RunDescription run = VectorRun({5, 0}, Sharding(Mode::kFullShard, 2));
  run.model.units[0].stages = {0, 1};
  run.model.units.resize(1);
  EXPECT_EQ(ForwardGatherElements(run), (Bytes{6}));
  run.sharding.layout = LayoutKind::kFlatAligned;
  EXPECT_EQ(ForwardGatherElements(run), (Bytes{8}));
}

TEST(Empty, NoBucketAndNoBroadcastHasOne) {
  RunDescription run = VectorRun({4, 0, 4, 0}, Sharding(Mode::kZero2, 2));
  run.sharding.bucket_cap_bytes = 1;
  EXPECT_EQ(Order(run, Phase::kBackward), "c4 c3 S1 c2 c1 S2");
  EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "u1 G1 u2 G2");
  EXPECT_EQ(CountsOf(run), (Bytes{0, 0, 0, 2, 2, 0}));
  run.sharding = Sharding(Mode::kZero1Broadcast, 3);
  EXPECT_EQ(CountsOf(run), (Bytes{1, 0, 0, 0, 0, 2}));
  std::vector<int32_t> sent;
  for (const ExpectedItem& item : ExpectedSequence(run)) {
    if (item.collective == CollectiveKind::kBroadcast) sent.push_back(item.tensor);
  }
  EXPECT_EQ(sent, (std::vector<int32_t>{0, 2}));
  run.sharding.broadcast_bucket_view = true;
  EXPECT_EQ(CountsOf(run), (Bytes{1, 0, 0, 0, 0, 2}));  // rank 2 owns empty ones alone
  EXPECT_EQ(BytesOf(run, 2), (Bytes{32, 32, 0, 0, 0}));
  run.sharding = Sharding(Mode::kReplicated, 3);
  EXPECT_EQ(BytesOf(run, 2), (Bytes{32, 32, 64, 0, 8}));
}

TEST(Empty, TrainableOnesNeitherLeadBackwardNorHaveAGradient) {
  RunDescription run = VectorRun({4, 4, 0}, Sharding(Mode::kFullShard, 2));
  run.model.stages[0].tensors = {0, 2};
  run.model.stages.pop_back();
  run.model.units.pop_back();
  run.model.tensors[0].trainable = false;
  EXPECT_EQ(Order(run, Phase::kBackward), "G2 c2 S2");
  EXPECT_EQ(Order(run, Phase::kOptimizer, -1), "u2");
  EXPECT_EQ(BytesOf(run, 0), (Bytes{16, 8, 16, 0, 4}));
  // Parameters 16, full units 16, gradient 16, its shard 8.
  EXPECT_EQ(LiveBytes(run), (Bytes{32, 32, 48, 32,     // G1 c1 G2 (R1) c2 (R2)
                                   32, 48, 40, 24}));  // G2 c2 (R2) S2, u2
  run.sharding = Sharding(Mode::kReplicated, 2);
  EXPECT_EQ(Order(run, Phase::kBackward), "c2 AR1");
  // Above a trained stage the empty one is reached, and its run writes to nothing.
  run = VectorRun({4, 4, 0}, Sharding(Mode::kFullShard, 2));
  run.model.tensors[1].trainable = false;
  EXPECT_EQ(Order(run, Phase::kBackward), "G2 c3 G1 c2 c1 S1");
}

// --- Micro-batches.

TEST(MicroBatches, EverySynchronizesEachAndLastOnlyOne) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kFullShard, 2));
  run.data.num_micro_batches = 3;
  EXPECT_EQ(CountsOf(run), (Bytes{0, 6, 6, 0, 6, 0}));
  run.sharding.grad_sync = GradSync::kLast;
  EXPECT_EQ(CountsOf(run), (Bytes{0, 6, 6, 0, 2, 0}));
  EXPECT_EQ(Order(run, Phase::kBackward, 0), "G2 G1 c2 c1");
  EXPECT_EQ(Order(run, Phase::kBackward, 2), "G2 G1 c2 S2 c1 S1");
}

TEST(MicroBatches, KeptUnitsAreGatheredOnceAStep) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kShardGradOp, 2));
  run.data.num_micro_batches = 3;
  run.sharding.grad_sync = GradSync::kLast;
  EXPECT_EQ(CountsOf(run), (Bytes{0, 6, 0, 0, 2, 0}));
  run.sharding.keep_unsharded_between_micro_batches = true;
  EXPECT_EQ(CountsOf(run), (Bytes{0, 2, 0, 0, 2, 0}));
  EXPECT_EQ(Order(run, Phase::kForward, 0), "G1 c1 G2 c2");
  EXPECT_EQ(Order(run, Phase::kForward, 1), "c1 c2");
}

TEST(MicroBatches, BucketsOfReplicatedCollectTheFirstAndAddTheOthers) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kReplicated, 2));
  run.sharding.bucket_cap_bytes = 1;
  run.data.num_micro_batches = 2;
  // Parameters 32. First micro-batch: each c allocates its bucket (16). Second: each c an
  // unreduced one; that of bucket 0 is still there at c0, being the most recently reduced.
  EXPECT_EQ(LiveBytes(run), (Bytes{32, 32, 48, 48, 64, 64,  //
                                   64, 64, 80, 80, 96, 96,  //
                                   64, 64}));
  run.sharding.grad_sync = GradSync::kLast;
  EXPECT_EQ(LiveBytes(run), (Bytes{32, 32, 48, 64, 64, 64, 64, 64, 64, 64, 64, 64}));
}

TEST(MicroBatches, ShardsOfZero2GrowAndLaterReductionsNeedATemporary) {
  RunDescription run = VectorRun({4, 4}, Sharding(Mode::kZero2, 2));
  run.sharding.bucket_cap_bytes = 1;
  run.data.num_micro_batches = 2;
  // Parameters 32, full bucket 16, shard 8. c S c S, then all but the shards is released.
  EXPECT_EQ(LiveBytes(run), (Bytes{32, 32, 48, 56, 72, 80,  //
                                   48, 48, 64, 72, 88, 96,  //
                                   48, 48, 48, 48}));
  run.sharding.grad_sync = GradSync::kLast;
  EXPECT_EQ(LiveBytes(run), (Bytes{32, 32, 48, 64,          //
                                   64, 64, 64, 72, 72, 80,  //
                                   48, 48, 48, 48}));
}

// --- Peaks of uniform models: L units of U bytes on N ranks, K = 1, N >= 2, L >= 3. In
// backward of unit i (from L down to 1), with the shards of the L - i units above reduced:
//   backward_pre   units i and i-1, gradients i+1 (reduced last) and i: at i = 2 that is
//                  4U + (L-2)U/N; at i = 1 only 3U + (L-1)U/N.
//   backward_post  at S of i: unit i-1 gathered, gradients i+1 and i, shards of L-i+1 units:
//                  at i = 2 3U + (L-1)U/N; c of 1 the same.
//   none           at c of i: unit i, its gradient: at i = 1 2U + (L-1)U/N.
//   shard_grad_op  at c of L-1: L-1 units, gradients L and L-1, one shard: (L+1)U + U/N; each
//                  further unit frees U and adds U/N.
// plus parameters PL = L U/N, moments 2 L U/N and 4 bytes a step counter.

RunDescription UniformRun(Mode mode, int32_t units, int64_t elements, int32_t ranks) {
  return VectorRun(std::vector<int64_t>(units, elements), Sharding(mode, ranks));
}

TEST(Peak, OfFourUnitsOfThirtyTwoBytesOnTwoRanks) {
  RunDescription run = UniformRun(Mode::kFullShard, 4, 8, 2);
  // Shards 64, moments 128, counters: 4 tensors on both ranks, 16.
  const int64_t resident = 64 + 128 + 16;
  EXPECT_EQ(ExpectedPeakBytes(run, Rank{0}), resident + 4 * 32 + 2 * 16);
  run.sharding.prefetch = Prefetch::kBackwardPost;
  EXPECT_EQ(ExpectedPeakBytes(run, Rank{1}), resident + 3 * 32 + 3 * 16);
  run.sharding.prefetch = Prefetch::kNone;
  EXPECT_EQ(ExpectedPeakBytes(run, Rank{0}), resident + 2 * 32 + 3 * 16);
  run.sharding = Sharding(Mode::kShardGradOp, 2);
  EXPECT_EQ(ExpectedPeakBytes(run, Rank{1}), resident + 5 * 32 + 16);
}

TEST(Peak, FollowsTheFormulaForEveryUniformModel) {
  for (const int32_t l : {3, 4, 9}) {
    for (const int32_t n : {2, 4, 8}) {
      const int64_t u = 4 * 64;
      const int64_t base = 3 * l * u / n + 4 * l;
      RunDescription run = UniformRun(Mode::kFullShard, l, 64, n);
      EXPECT_EQ(ExpectedPeakBytes(run, Rank{0}), base + 4 * u + (l - 2) * u / n);
      run.sharding.prefetch = Prefetch::kBackwardPost;
      EXPECT_EQ(ExpectedPeakBytes(run, Rank{0}), base + 3 * u + (l - 1) * u / n);
      run.sharding.prefetch = Prefetch::kNone;
      EXPECT_EQ(ExpectedPeakBytes(run, Rank{0}), base + 2 * u + (l - 1) * u / n);
      run.sharding = Sharding(Mode::kShardGradOp, n);
      EXPECT_EQ(ExpectedPeakBytes(run, Rank{0}), base + (l + 1) * u + u / n);
    }
  }
}

TEST(Peak, OfReplicatedIsItsSteadyState) {
  const RunDescription run = UniformRun(Mode::kReplicated, 4, 8, 2);
  EXPECT_EQ(ExpectedPeakBytes(run, Rank{0}), 4 * 128 + 16);
  EXPECT_EQ(ExpectedState(run, Rank{0}).steady(), 4 * 128 + 16);
}

TEST(Peak, OfZero1BroadcastDiffersBetweenOwners) {
  const RunDescription run = VectorRun({6, 2}, Sharding(Mode::kZero1Broadcast, 2));
  EXPECT_EQ(ExpectedPeakBytes(run, Rank{0}), 32 + 32 + 48 + 4);
  EXPECT_EQ(ExpectedPeakBytes(run, Rank{1}), 32 + 32 + 16 + 4);
}

// --- Two derivations of the same number, over every mode and the axes that bend the step.

std::vector<int64_t> CountSequence(const RunDescription& run) {
  Bytes counts(6, 0);
  for (const ExpectedItem& item : ExpectedSequence(run)) {
    if (item.kind != EventKind::kCollective || item.purpose == Purpose::kClipNorm) continue;
    switch (item.collective) {
      case CollectiveKind::kAllReduce:
        ++counts[0];
        break;
      case CollectiveKind::kAllGather:
        ++counts[1 + static_cast<int>(item.phase)];
        break;
      case CollectiveKind::kReduceScatter:
        ++counts[4];
        break;
      case CollectiveKind::kBroadcast:
        ++counts[5];
        break;
      case CollectiveKind::kBarrier:
        ADD_FAILURE() << "a step has no barrier";
        break;
    }
  }
  return counts;
}

std::vector<RunDescription> ManyRuns() {
  std::vector<RunDescription> runs;
  for (const Mode mode : kModes) {
    for (const int32_t ranks : {1, 3}) {
      for (int options = 0; options < 256; ++options) {
        RunDescription run = MlpRun({3, 5, 1, 7, 2}, true, Sharding(mode, ranks));
        run.sharding.bucket_cap_bytes = 64;
        run.data.num_micro_batches = options & 1 ? 3 : 1;
        run.sharding.grad_sync = options & 2 ? GradSync::kLast : GradSync::kEvery;
        run.sharding.keep_unsharded_between_micro_batches = (options & 6) == 6;
        run.model.tensors[0].trainable = run.model.tensors[1].trainable = !(options & 8);
        run.model.tensors[4].trainable = run.model.tensors[5].trainable = !(options & 8);
        run.model.units[1].reshard_after_forward = !(options & 16);
        if (options & 32) {  // a root unit around the others
          run.model.units[0].stages = {0, 3};
          run.model.units.pop_back();
        }
        if (options & 64) {  // ties: one over neighbours, one with a first stage that may be frozen
          run.model.stages[2].tensors.push_back(2);
          run.model.stages[3].tensors.push_back(0);
        }
        run.clip_grad_norm = options & 128 ? 1 : 0;
        runs.push_back(run);
        if (mode != Mode::kFullShard) continue;
        run.sharding.prefetch = Prefetch::kBackwardPost;
        runs.push_back(run);
        run.sharding.prefetch = Prefetch::kNone;
        runs.push_back(run);
      }
    }
  }
  return runs;
}

TEST(Agreement, TheTableCountsWhatTheSequenceIssues) {
  for (const RunDescription& run : ManyRuns()) {
    EXPECT_EQ(CountsOf(run), CountSequence(run)) << ModeRowName(run.sharding);
  }
}

TEST(Agreement, AfterTheUpdateOnlyTheStateOfTheBoundaryLives) {
  for (const RunDescription& run : ManyRuns()) {
    const std::vector<ExpectedItem> items = ExpectedSequence(run);
    for (int32_t r = 0; r < run.sharding.world_size.value; ++r) {
      EXPECT_EQ(items.back().live_bytes + ClosedForms(run).ResidentBytes(Rank{r}),
                ExpectedState(run, Rank{r}).steady())
          << ModeRowName(run.sharding) << " rank " << r;
    }
  }
}

TEST(Agreement, PeaksAreOrderedAsThePrefetchesAre) {
  RunDescription run = MlpRun({3, 5, 1, 7, 2, 8}, true, Sharding(Mode::kFullShard, 3));
  const int64_t pre = ExpectedPeakBytes(run, Rank{0});
  run.sharding.prefetch = Prefetch::kBackwardPost;
  const int64_t post = ExpectedPeakBytes(run, Rank{0});
  run.sharding.prefetch = Prefetch::kNone;
  const int64_t none = ExpectedPeakBytes(run, Rank{0});
  run.sharding = Sharding(Mode::kShardGradOp, 3);
  EXPECT_GE(pre, post);
  EXPECT_GE(post, none);
  EXPECT_GE(ExpectedPeakBytes(run, Rank{0}), pre);
}

// --- Bus bytes, and what is not defined.

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_EQ(BusFactor(CollectiveKind::kAllReduce, 4), 1.5);
  EXPECT_EQ(BusFactor(CollectiveKind::kAllGather, 4), 0.75);
  EXPECT_EQ(BusFactor(CollectiveKind::kReduceScatter, 8), 0.875);
  EXPECT_EQ(BusFactor(CollectiveKind::kBroadcast, 4), 1);
  EXPECT_EQ(BusFactor(CollectiveKind::kAllReduce, 1), 0);
  EXPECT_EQ(BusFactor(CollectiveKind::kBroadcast, 1), 0);
}

TEST(NotDefined, MixedPrecisionHasDtypesButNoBytes) {
  RunDescription run = StudyRun(Mode::kFullShard, 2);
  EXPECT_EQ(NoStateRule(run), "");
  run.sharding.precision.parameter = Dtype::kBFloat16;
  EXPECT_NE(NoStateRule(run), "");
  EXPECT_EQ(NoStepRule(run), "");
  for (const ExpectedItem& item : ExpectedSequence(run)) {
    if (item.kind != EventKind::kCollective) continue;
    const bool gathers = item.collective == CollectiveKind::kAllGather;
    EXPECT_EQ(item.dtype, gathers ? Dtype::kBFloat16 : Dtype::kFloat32);
  }
}

TEST(NotDefined, HybridShardingHasStateButNoStep) {
  RunDescription run = StudyRun(Mode::kFullShard, 8);
  run.sharding.shard_group_size = 4;
  EXPECT_NE(NoStepRule(run), "");
  EXPECT_EQ(ExpectedState(run, Rank{5}), ExpectedState(run, Rank{1}));
  EXPECT_EQ(ExpectedFactors(run).parameter, 2);
}

}  // namespace
}  // namespace shardproof
