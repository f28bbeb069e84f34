#include "property_tests/gpu_cases.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "property_tests/found_case.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// In place of a GPU's engines: refuses, and counts how often it was asked.
DeviceEngineFactory Counting(int& asked, EngineKind& last) {
  return [&asked, &last](const RunDescription&, EngineKind engine, const EngineParts&,
                         bool) -> absl::StatusOr<CaseEngine> {
    ++asked;
    last = engine;
    return absl::InternalError("an engine that only counts");
  };
}

TEST(UseGpusTest, CasesAreJudgedOnTheFactorysEngines) {
  int asked = 0;
  EngineKind last = EngineKind::kCpu;
  CampaignOptions options;
  options.engines = {EngineKind::kCudaShared};
  options.max_cases = 1;
  ASSERT_TRUE(UseGpus(1, Counting(asked, last), options).ok());
  EXPECT_THAT(options.limits.world_sizes, IsEmpty()) << "ranks that share a GPU may be many";
  options.shrink.tries = 3;
  const absl::StatusOr<CampaignResult> result = RunCampaign(options);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(result->found.has_value());
  EXPECT_EQ(result->found->verdict.engine, EngineKind::kCudaShared);
  EXPECT_THAT(result->found->verdict.headline, HasSubstr("an engine that only counts"));
  EXPECT_GT(asked, 0);
  EXPECT_EQ(last, EngineKind::kCudaShared);
}

// What is left behind of a failing case runs it again on the engine on which it failed.
TEST(UseGpusTest, TheReplayLineNamesTheEngine) {
  int asked = 0;
  EngineKind last = EngineKind::kCpu;
  CampaignOptions options;
  options.engines = {EngineKind::kCudaShared};
  options.max_cases = 1;
  options.shrink.tries = 3;
  ASSERT_TRUE(UseGpus(1, Counting(asked, last), options).ok());
  const absl::StatusOr<CampaignResult> result = RunCampaign(options);
  ASSERT_TRUE(result.ok() && result->found.has_value());
  const std::string report = ReportFoundCase(*result->found, "");
  EXPECT_THAT(report, HasSubstr("replay: ci/bazel run //invariants:audit -- --engine=cuda_shared"));
  EXPECT_THAT(report, HasSubstr("engines: cuda_shared error: an engine that only counts; cpu "));
}

TEST(UseGpusTest, CudaHasNoMoreRanksThanGpus) {
  for (const auto& [gpus, ranks] : std::vector<std::pair<int, size_t>>{{1, 1}, {2, 2}, {16, 8}}) {
    CampaignOptions options;
    options.engines = {EngineKind::kCuda};
    ASSERT_TRUE(UseGpus(gpus, {}, options).ok());
    EXPECT_EQ(options.limits.world_sizes.size(), ranks);
    EXPECT_EQ(options.limits.world_sizes.back(), static_cast<int32_t>(ranks));
  }
}

TEST(UseGpusTest, WithoutGpusOnlyEnginesThatNeedNoneAreLeft) {
  const absl::Status none = absl::FailedPreconditionError("no GPU was found");
  CampaignOptions on_gpus;
  on_gpus.engines = {EngineKind::kCuda};
  EXPECT_EQ(UseGpus(none, {}, on_gpus), none);
  CampaignOptions on_cpus;
  EXPECT_TRUE(UseGpus(none, {}, on_cpus).ok());
  EXPECT_FALSE(on_cpus.judge);
  EXPECT_TRUE(UseGpus(on_cpus).ok());
}

}  // namespace
}  // namespace shardproof
