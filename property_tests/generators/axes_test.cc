#include "property_tests/generators/axes.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

std::string ValueOf(absl::string_view axis, absl::string_view line) {
  const absl::StatusOr<RunDescription> run = ParseRun(line, ImportModel);
  EXPECT_TRUE(run.ok()) << line << ": " << run.status();
  for (const auto& [name, value] : DescribeAxes(*run)) {
    if (name == axis) return std::string(value);
  }
  return "no such axis";
}

TEST(DescribeAxes, ReadsThemOffTheRun) {
  EXPECT_EQ(ValueOf("mode", "model=mlp:2,2"), "replicated");
  EXPECT_EQ(ValueOf("mode", "model=mlp:2,2;mode=zero2"), "zero2");
  EXPECT_EQ(ValueOf("mode", "model=mlp:2,2;mode=full_shard"), "full_shard/backward_pre");
  EXPECT_EQ(ValueOf("mode", "model=mlp:2,2;mode=full_shard;prefetch=none"), "full_shard/none");
  EXPECT_EQ(ValueOf("layout", "model=mlp:2,2;mode=zero2;layout=rows"), "rows");
  EXPECT_EQ(ValueOf("world_size", "model=mlp:2,2;world_size=5"), "5");
  EXPECT_EQ(ValueOf("world_size", "model=mlp:2,2;world_size=6"), "other");
  EXPECT_EQ(ValueOf("model", "model=mlp:2,2:bias"), "mlp_bias");
  EXPECT_EQ(ValueOf("micro_batches", "model=mlp:2,2;num_micro_batches=9"), "more");
  EXPECT_EQ(ValueOf("optimizer", "model=mlp:2,2;optimizer=sgd;momentum=0"), "sgd");
  EXPECT_EQ(ValueOf("groups", "model=mlp:2,2,2;groups=0@weight_decay:0,1@beta1:0"), "several");
  EXPECT_EQ(ValueOf("clip", "model=mlp:2,2;clip_grad_norm=0.001"), "tiny");
  EXPECT_EQ(ValueOf("frozen", "model=mlp:2,2,2;frozen=1"), "last");
  EXPECT_EQ(ValueOf("frozen", "model=mlp:2,2,2;frozen=0,1"), "all");
}

TEST(DescribeAxes, Ties) {
  constexpr absl::string_view kTied =
      "model=mlp:3,3,3;ties=layers.1.weight:layers.0.weight;world_size=2";
  EXPECT_EQ(ValueOf("ties", "model=mlp:3,3,3"), "none");
  EXPECT_EQ(ValueOf("ties", kTied), "across_units");
  EXPECT_EQ(ValueOf("ties", absl::StrCat(kTied, ";units=0-1")), "within_a_unit");
  EXPECT_EQ(ValueOf("tied_uneven", kTied), "yes");
  EXPECT_EQ(ValueOf("tied_uneven", absl::StrCat(kTied.substr(0, kTied.size() - 1), "3")), "no");
  EXPECT_EQ(ValueOf("stage_used_twice", kTied), "yes");
  EXPECT_EQ(
      ValueOf("stage_used_twice", "model=mlp:3,3,3:bias;ties=layers.1.weight:layers.0.weight"),
      "no");
}

TEST(DescribeAxes, Usage) {
  const auto line = [](absl::string_view usage) {
    return absl::StrCat("model=probe:2,3;world_size=2;num_micro_batches=2;usage=", usage);
  };
  EXPECT_EQ(ValueOf("never_used", line("0@steps:never")), "yes");
  EXPECT_EQ(ValueOf("used_in_some_steps", line("0@steps:odd")), "yes");
  EXPECT_EQ(ValueOf("used_on_one_rank", line("1@rank:1")), "yes");
  EXPECT_EQ(ValueOf("used_on_one_rank", line("1@micro_batch:1")), "no");
  EXPECT_EQ(ValueOf("used_in_one_micro_batch", line("1@micro_batch:1")), "yes");
}

TEST(DescribeAxes, SizesAndBuckets) {
  EXPECT_EQ(ValueOf("empty_tensors", "model=probe:2,0x3"), "yes");
  EXPECT_EQ(ValueOf("elements", "model=probe:2;world_size=3"), "fewer_than_ranks");
  EXPECT_EQ(ValueOf("elements", "model=probe:4;world_size=3"), "uneven");
  EXPECT_EQ(ValueOf("elements", "model=probe:6;world_size=3"), "even");
  const auto cap = [](absl::string_view bytes) {
    return absl::StrCat("model=probe:4,8,16;bucket_cap_bytes=", bytes);
  };
  EXPECT_EQ(ValueOf("bucket_cap", cap("8")), "below_all");
  EXPECT_EQ(ValueOf("bucket_cap", cap("32")), "a_tensor");
  EXPECT_EQ(ValueOf("bucket_cap", cap("36")), "one_off");
  EXPECT_EQ(ValueOf("bucket_cap", cap("48")), "between");
  EXPECT_EQ(ValueOf("bucket_cap", cap("112")), "the_model");
  EXPECT_EQ(ValueOf("bucket_cap", cap("400")), "above");
  // 16 | 8 4 at 64 bytes: the first closes a bucket by itself.
  EXPECT_EQ(ValueOf("buckets", cap("64")), "2");
  EXPECT_EQ(ValueOf("buckets", cap("65")), "2");
  EXPECT_EQ(ValueOf("buckets", cap("97")), "1");
  EXPECT_EQ(ValueOf("buckets", absl::StrCat(cap("4"), ";frozen=0,1,2")), "0");
}

TEST(DescribeAxes, Units) {
  EXPECT_EQ(ValueOf("units", "model=probe:1,1,1,1"), "one_a_stage");
  EXPECT_EQ(ValueOf("units", "model=probe:1,1,1,1;units=0-3"), "one");
  EXPECT_EQ(ValueOf("units", "model=probe:1,1,1,1;units=0-1,2-3"), "consecutive");
  EXPECT_EQ(ValueOf("units", "model=probe:1,1,1,1;units=0+2,1+3"), "interleaved");
  EXPECT_EQ(ValueOf("unit_stays_unsharded", "model=probe:1,1;units=0!,1"), "yes");
}

TEST(Coverage, CountsValuesAndPairs) {
  const absl::StatusOr<RunDescription> run = ParseRun("model=mlp:2,2;mode=zero2", ImportModel);
  ASSERT_TRUE(run.ok());
  const std::vector<int32_t> values = AxisValues(*run);
  const int64_t axes = static_cast<int64_t>(AllAxes().size());
  Coverage coverage;
  EXPECT_EQ(coverage.ValuesSeen(), 0);
  EXPECT_EQ(coverage.PairsSeen(), 0);
  coverage.Add(values);
  coverage.Add(values);
  EXPECT_EQ(coverage.ValuesSeen(), axes);
  EXPECT_EQ(coverage.PairsSeen(), axes * (axes - 1) / 2);
  EXPECT_EQ(coverage.Seen(0, static_cast<size_t>(values[0])), 2);
  Coverage merged;
  merged.Add(coverage);
  EXPECT_EQ(merged.Table(), coverage.Table());
  EXPECT_EQ(merged.PairsSeen(), coverage.PairsSeen());
  EXPECT_THAT(merged.Table(), testing::HasSubstr("zero2 100%"));
}

TEST(Coverage, KnowsWhatCannotMeet) {
  const std::vector<std::string> missing = Coverage().PairsMissing();
  EXPECT_EQ(static_cast<int64_t>(missing.size()), Coverage().PairsPossible());
  EXPECT_THAT(missing, testing::Contains("mode=zero2 x layout=rows"));
  EXPECT_THAT(missing, testing::Not(testing::Contains("mode=replicated x layout=rows")));
  EXPECT_THAT(missing, testing::Not(testing::Contains("model=mlp x empty_tensors=yes")));
}

}  // namespace
}  // namespace shardproof
