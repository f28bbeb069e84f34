// What is refused before any GPU is looked for.
#include "trainer/bench/bench_program.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

TEST(BenchProgram, EnginesWithoutGpusAreRefused) {
  for (EngineKind engine : {EngineKind::kCpu, EngineKind::kAccounting, EngineKind::kProvenance}) {
    BenchRequest request;
    request.engine.engine = engine;
    request.runs = {TestRun("mlp:2x8", Mode::kZero2, 2)};
    const absl::Status status = RunBenchProgram(request, /*job=*/nullptr, /*device=*/0);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(Name(engine))));
  }
}

TEST(BenchProgram, NothingToBenchmarkIsRefused) {
  BenchRequest request;
  request.engine.engine = EngineKind::kCuda;
  EXPECT_EQ(RunBenchProgram(request, /*job=*/nullptr, /*device=*/0).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace shardproof
