// A layout decides which rank owns which element, so small cases are written out in full
// and random ones must cover every element once.
#include "trainer/sharding/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ModelDescription Shapes(const std::vector<std::vector<int64_t>>& shapes) {
  ModelDescription model;
  for (const std::vector<int64_t>& shape : shapes) {
    TensorSpec tensor;
    tensor.name = absl::StrCat("t", model.tensors.size());
    tensor.shape = shape;
    model.tensors.push_back(tensor);
  }
  return model;
}

std::vector<int32_t> AllOf(const ModelDescription& model) {
  std::vector<int32_t> tensors(model.tensors.size());
  std::iota(tensors.begin(), tensors.end(), 0);
  return tensors;
}

// "t0[0,3) t1[0,2) pad1 | ..." by rank, with every shard's segments back to back.
std::string Text(const FlatLayout& layout) {
  std::string text;
  for (int32_t rank = 0; rank < layout.shards; ++rank) {
    if (rank > 0) absl::StrAppend(&text, " |");
    int64_t offset = 0;
    for (const Segment& segment : layout.shard(rank)) {
      EXPECT_EQ(segment.rank, rank);
      EXPECT_EQ(segment.shard_offset, offset);
      EXPECT_EQ(layout.offset(segment), rank * layout.shard_elements + offset);
      offset += segment.count;
      absl::StrAppend(&text, text.empty() ? "" : " ");
      if (segment.tensor < 0) {
        absl::StrAppend(&text, "pad", segment.count);
      } else {
        absl::StrAppend(&text, "t", segment.tensor, "[", segment.first, ",",
                        segment.first + segment.count, ")");
      }
    }
    EXPECT_EQ(offset, layout.shard_elements) << "of rank " << rank;
  }
  return text;
}

std::string LayoutText(const std::vector<std::vector<int64_t>>& shapes, LayoutKind kind,
                       int32_t shards, int64_t element_bytes = 4) {
  const ModelDescription model = Shapes(shapes);
  return Text(MakeLayout(model, AllOf(model), kind, shards, element_bytes));
}

// ---------------------------------------------------------------- by hand

TEST(FlatLayout, CutsTensorsBackToBackAndPadsTheEnd) {
  EXPECT_EQ(LayoutText({{5}, {2, 2}}, LayoutKind::kFlat, 2), "t0[0,5) | t1[0,4) pad1");
  EXPECT_EQ(LayoutText({{5}, {2, 2}}, LayoutKind::kFlat, 3), "t0[0,3) | t0[3,5) t1[0,1) | t1[1,4)");
  EXPECT_EQ(LayoutText({{7}}, LayoutKind::kFlat, 3), "t0[0,3) | t0[3,6) | t0[6,7) pad2");
}

TEST(FlatLayout, LeavesShardsEmptyWhereElementsRunOut) {
  EXPECT_EQ(LayoutText({{2}}, LayoutKind::kFlat, 4), "t0[0,1) | t0[1,2) | pad1 | pad1");
  EXPECT_EQ(LayoutText({{5}, {4}}, LayoutKind::kFlat, 4),
            "t0[0,3) | t0[3,5) t1[0,1) | t1[1,4) | pad3");
}

TEST(FlatAlignedLayout, StartsEachTensorAtSixteenBytes) {
  EXPECT_EQ(LayoutText({{5}, {4}}, LayoutKind::kFlatAligned, 1), "t0[0,5) pad3 t1[0,4)");
  // The gap before t1 is cut like anything else.
  EXPECT_EQ(LayoutText({{5}, {4}}, LayoutKind::kFlatAligned, 2), "t0[0,5) pad1 | pad2 t1[0,4)");
  // A gap that ends with its shard leaves no empty segment behind.
  EXPECT_EQ(LayoutText({{3}, {4}}, LayoutKind::kFlatAligned, 2), "t0[0,3) pad1 | t1[0,4)");
  // The last tensor is not padded to the alignment.
  EXPECT_EQ(LayoutText({{4}, {3}}, LayoutKind::kFlatAligned, 1), "t0[0,4) t1[0,3)");
}

TEST(FlatAlignedLayout, AlignsByBytesWhateverTheDtype) {
  EXPECT_EQ(LayoutText({{3}, {4}}, LayoutKind::kFlatAligned, 1, /*element_bytes=*/2),
            "t0[0,3) pad5 t1[0,4)");
  EXPECT_EQ(LayoutText({{3}, {4}}, LayoutKind::kFlatAligned, 1, /*element_bytes=*/8),
            "t0[0,3) pad1 t1[0,4)");
}

TEST(RowsLayout, CutsEachTensorByRowsAndPadsItsPart) {
  EXPECT_EQ(LayoutText({{3, 2}, {5}}, LayoutKind::kRows, 2),
            "t0[0,4) t1[0,3) | t0[4,6) pad2 t1[3,5) pad1");
  // ceil(5 / 4) = 2 rows a rank, so the last rank has none.
  EXPECT_EQ(LayoutText({{5, 1, 2}}, LayoutKind::kRows, 4),
            "t0[0,4) | t0[4,8) | t0[8,10) pad2 | pad4");
  EXPECT_EQ(LayoutText({{1, 3}}, LayoutKind::kRows, 3), "t0[0,3) | pad3 | pad3");
}

TEST(OwnerLayout, GivesWholeTensorsInTheOrderOfTheSet) {
  EXPECT_EQ(LayoutText({{3}, {5}, {5}, {1}}, LayoutKind::kOwner, 2),
            "t0[0,3) t1[0,5) | t2[0,5) t3[0,1) pad2");
  EXPECT_EQ(LayoutText({{2}}, LayoutKind::kOwner, 3), "t0[0,2) | pad2 | pad2");
}

TEST(MakeLayout, OfOneShardHasNoPadding) {
  for (LayoutKind kind : {LayoutKind::kFlat, LayoutKind::kRows, LayoutKind::kOwner}) {
    EXPECT_EQ(LayoutText({{3, 2}, {5}, {1}}, kind, 1), "t0[0,6) t1[0,5) t2[0,1)") << Name(kind);
  }
}

TEST(MakeLayout, FollowsTheOrderOfTheSetNotOfTheModel) {
  const ModelDescription model = Shapes({{2}, {3}, {4}});
  EXPECT_EQ(Text(MakeLayout(model, {2, 0}, LayoutKind::kFlat, 2, 4)), "t2[0,3) | t2[3,4) t0[0,2)");
  EXPECT_EQ(Text(MakeLayout(model, {2, 0}, LayoutKind::kOwner, 1, 4)), "t2[0,4) t0[0,2)");
}

TEST(MakeLayout, OfNoTensorsHasEmptyShards) {
  const ModelDescription model = Shapes({{2}});
  for (LayoutKind kind :
       {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner}) {
    const FlatLayout layout = MakeLayout(model, {}, kind, 3, 4);
    EXPECT_EQ(layout.padded_elements(), 0) << Name(kind);
    EXPECT_THAT(layout.segments, IsEmpty()) << Name(kind);
    EXPECT_THAT(layout.shard(2), IsEmpty()) << Name(kind);
  }
}

// DESIGN: recorded from PyTorch at two ranks.
TEST(MakeLayout, HasTheSizesThatPyTorchGathers) {
  const ModelDescription model = TestRun("mlp:33,65,17,129,7:bias", Mode::kFullShard, 2).model;
  std::vector<int64_t> aligned, rows;
  for (int32_t unit = 0; unit < 4; ++unit) {
    const std::vector<int32_t> tensors = TensorsOfUnits(model)[unit];
    aligned.push_back(MakeLayout(model, tensors, LayoutKind::kFlatAligned, 2, 4).padded_elements());
    rows.push_back(MakeLayout(model, tensors, LayoutKind::kRows, 2, 4).padded_elements());
  }
  EXPECT_THAT(aligned, ElementsAre(2214, 1126, 2326, 912));
  EXPECT_THAT(rows, ElementsAre(2244, 1188, 2340, 1040));
}

TEST(MakeLayout, CountsBeyondThirtyTwoBits) {
  const ModelDescription model = Shapes({{int64_t{1} << 20, 1 << 13}, {3}});
  const FlatLayout flat = MakeLayout(model, {0, 1}, LayoutKind::kFlat, 2, 4);
  EXPECT_EQ(flat.padded_elements(), (int64_t{1} << 33) + 4);
  EXPECT_EQ(flat.offset(flat.segments.back()), (int64_t{1} << 33) + 3);
  const FlatLayout rows = MakeLayout(model, {0}, LayoutKind::kRows, 64, 4);
  EXPECT_EQ(rows.segments.back().first, int64_t{63} << 27);
}

// ---------------------------------------------------------------- at random

// What every layout promises: see layout.h and closed_forms.h.
void ExpectCoversEachElementOnce(const ModelDescription& model, const FlatLayout& layout) {
  std::vector<int64_t> covered(model.tensors.size(), 0);
  std::vector<int32_t> last_rank(model.tensors.size(), -1);
  ASSERT_EQ(layout.first_segment_of_rank.size(), static_cast<size_t>(layout.shards) + 1);
  EXPECT_EQ(layout.first_segment_of_rank.back(), static_cast<int32_t>(layout.segments.size()));
  int64_t offset = 0;
  for (const Segment& segment : layout.segments) {
    EXPECT_GE(segment.count, 1);
    EXPECT_EQ(layout.offset(segment), offset);
    EXPECT_LE(segment.shard_offset + segment.count, layout.shard_elements);
    offset += segment.count;
    if (segment.tensor < 0) continue;
    // Ranges ascend without a gap, and a rank has one of them at most.
    EXPECT_EQ(segment.first, covered[segment.tensor]);
    EXPECT_GT(segment.rank, last_rank[segment.tensor]);
    covered[segment.tensor] += segment.count;
    last_rank[segment.tensor] = segment.rank;
  }
  EXPECT_EQ(offset, layout.padded_elements());
  for (size_t tensor = 0; tensor < covered.size(); ++tensor) {
    EXPECT_EQ(covered[tensor], Elements(model.tensors[tensor])) << "of tensor " << tensor;
  }
}

void ExpectKeepsTheRuleOf(LayoutKind kind, const ModelDescription& model,
                          const FlatLayout& layout) {
  for (const Segment& segment : layout.segments) {
    if (segment.tensor < 0) continue;
    const TensorSpec& tensor = model.tensors[segment.tensor];
    const int64_t row = Elements(tensor) / tensor.shape[0];
    if (kind == LayoutKind::kFlatAligned && segment.first == 0) {
      EXPECT_EQ(layout.offset(segment) % 4, 0);
    }
    if (kind == LayoutKind::kRows) {
      EXPECT_EQ(segment.first % row, 0);
      EXPECT_EQ(segment.count % row, 0);
    }
    if (kind == LayoutKind::kOwner) {
      EXPECT_EQ(segment.count, Elements(tensor));
    }
  }
}

TEST(MakeLayout, CoversEachElementOfRandomModelsOnce) {
  std::mt19937_64 random(20240607);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % bound); };
  for (int32_t round = 0; round < 150; ++round) {
    std::vector<std::vector<int64_t>> shapes(1 + below(5));
    for (std::vector<int64_t>& shape : shapes) {
      shape.assign(1 + below(3), 1);
      for (int64_t& extent : shape) extent = 1 + below(9);
    }
    const ModelDescription model = Shapes(shapes);
    const int32_t shards = static_cast<int32_t>(1 + below(9));
    for (LayoutKind kind :
         {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner}) {
      const FlatLayout layout = MakeLayout(model, AllOf(model), kind, shards, 4);
      SCOPED_TRACE(
          absl::StrCat("round ", round, " ", Name(kind), " over ", shards, ": ", Text(layout)));
      ExpectCoversEachElementOnce(model, layout);
      ExpectKeepsTheRuleOf(kind, model, layout);
      if (kind == LayoutKind::kFlat) {
        EXPECT_LT(layout.padded_elements(), ParameterElements(model) + shards);
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
}

// ---------------------------------------------------------------- owners

TEST(AssignOwners, GivesTheLargestLeftToTheRankWithTheLeast) {
  const ModelDescription model = Shapes({{3}, {9}, {4}, {4}, {8}});
  // 9 -> 0, 8 -> 1, 4 -> 1 (12), 4 -> 0 (13), 3 -> 1.
  EXPECT_THAT(AssignOwners(model, AllOf(model), 2), ElementsAre(1, 0, 1, 0, 1));
}

TEST(AssignOwners, BreaksTiesByEarlierTensorAndLowerRank) {
  const ModelDescription model = Shapes({{4}, {2, 2}, {4}, {4}});
  EXPECT_THAT(AssignOwners(model, AllOf(model), 3), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(AssignOwners(model, {3, 2, 1, 0}, 3), ElementsAre(0, 1, 2, 0));
}

TEST(AssignOwners, LeavesRanksWithoutTensorsWhenThereAreTooFew) {
  const ModelDescription model = Shapes({{1}, {2}});
  EXPECT_THAT(AssignOwners(model, AllOf(model), 4), ElementsAre(1, 0));
  EXPECT_THAT(AssignOwners(model, {}, 4), IsEmpty());
}

// ---------------------------------------------------------------- buckets

TEST(MakeBuckets, ClosesABucketThatReachesOrPassesTheCap) {
  const ModelDescription model = Shapes({{10}, {20}, {30}, {40}});  // 40, 80, 120, 160 bytes
  EXPECT_THAT(MakeBuckets(model, 280), ElementsAre(ElementsAre(3, 2), ElementsAre(1, 0)));
  EXPECT_THAT(MakeBuckets(model, 281), ElementsAre(ElementsAre(3, 2, 1), ElementsAre(0)));
  EXPECT_THAT(MakeBuckets(model, 279), ElementsAre(ElementsAre(3, 2), ElementsAre(1, 0)));
  // As large as the first tensor: it fills a bucket alone.
  EXPECT_THAT(MakeBuckets(model, 160),
              ElementsAre(ElementsAre(3), ElementsAre(2, 1), ElementsAre(0)));
}

TEST(MakeBuckets, HasOneTensorEachAtCapOneAndAllInOneAtALargeCap) {
  const ModelDescription model = Shapes({{10}, {20}, {30}});
  EXPECT_THAT(MakeBuckets(model, 1), ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  EXPECT_THAT(MakeBuckets(model, 240), ElementsAre(ElementsAre(2, 1, 0)));
  EXPECT_THAT(MakeBuckets(model, int64_t{1} << 40), ElementsAre(ElementsAre(2, 1, 0)));
}

TEST(MakeBuckets, SkipsFrozenTensors) {
  ModelDescription model = Shapes({{10}, {20}, {30}, {40}});
  Freeze({1, 3}, model);
  EXPECT_THAT(MakeBuckets(model, 121), ElementsAre(ElementsAre(2, 0)));
  EXPECT_THAT(MakeBuckets(model, 120), ElementsAre(ElementsAre(2), ElementsAre(0)));
  Freeze({0, 2}, model);
  EXPECT_THAT(MakeBuckets(model, 120), IsEmpty());
}

}  // namespace
}  // namespace shardproof
