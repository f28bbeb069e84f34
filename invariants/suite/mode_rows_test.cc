#include "invariants/suite/mode_rows.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(ParseModeRows, AllIsTheEightRowsOfTheTable) {
  const auto rows = ParseModeRows("all");
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->size(), 8u);
  EXPECT_EQ(*rows, AllModeRows());
}

TEST(ParseModeRows, ExpandsModesAndAliasesOnceInOrderOfMention) {
  const auto rows = ParseModeRows("zero3,fsdp,zero1,ddp,full_shard/none");
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 7u);
  EXPECT_EQ((*rows)[0].prefetch, Prefetch::kBackwardPre);
  EXPECT_EQ((*rows)[2].prefetch, Prefetch::kNone);
  EXPECT_EQ((*rows)[3].mode, Mode::kShardGradOp);
  EXPECT_EQ((*rows)[4].mode, Mode::kZero1Broadcast);
  EXPECT_EQ((*rows)[5].mode, Mode::kZero1AllGather);
  EXPECT_EQ((*rows)[6].mode, Mode::kReplicated);
}

TEST(ParseModeRows, TakesOneRowOfFullShard) {
  const auto rows = ParseModeRows("full_shard/backward_post");
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ((*rows)[0].prefetch, Prefetch::kBackwardPost);
}

TEST(ParseModeRows, NamesTheUnknownEntryAndWhatIsAccepted) {
  for (const char* bad : {"zero4", "full_shard/sideways", "zero2/none", "", "ddp,,zero2",
                          "full_shard/not_applicable", "replicated/not_applicable"}) {
    const auto rows = ParseModeRows(bad);
    EXPECT_EQ(rows.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(rows.status().message()), testing::HasSubstr("shard_grad_op")) << bad;
  }
}

TEST(ApplyModeRow, LeavesTheLayoutToModesThatCutTensors) {
  ShardingDescription sharding;
  ApplyModeRow({Mode::kZero2, Prefetch::kNotApplicable}, LayoutKind::kRows, sharding);
  EXPECT_EQ(sharding.layout, LayoutKind::kRows);
  ApplyModeRow({Mode::kZero1Broadcast, Prefetch::kNotApplicable}, LayoutKind::kRows, sharding);
  EXPECT_EQ(sharding.layout, LayoutKind::kOwner);
  ApplyModeRow({Mode::kReplicated, Prefetch::kNotApplicable}, LayoutKind::kRows, sharding);
  EXPECT_EQ(sharding.layout, LayoutKind::kFlat);
}

}  // namespace
}  // namespace shardproof
