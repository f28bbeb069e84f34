// Flags that do not go together are refused in one line that names them.
#include "trainer/bench/bench_flags.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Parses `arguments` beside flags that zero_train has; the result of parsing, then of checking.
absl::Status Check(const std::vector<const char*>& arguments, EngineKind engine,
                   BenchFlags* parsed = nullptr) {
  Flags flags("a program");
  BenchFlags raw;
  int64_t steps = 3;
  std::string observe;
  flags.Int("steps", &steps, 1, 100, "steps");
  flags.String("observe", &observe, "a file");
  DeclareBenchFlags(raw, flags);
  std::vector<const char*> argv = {"program"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const absl::Status status = flags.Parse(static_cast<int>(argv.size()), argv.data());
  if (!status.ok()) return status;
  if (parsed != nullptr) *parsed = raw;
  return CheckBenchFlags(raw, engine, flags);
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(BenchFlags, SixtyStepsAfterTen) {
  BenchFlags flags;
  ASSERT_TRUE(Check({"--bench"}, EngineKind::kCuda, &flags).ok());
  EXPECT_TRUE(flags.bench);
  EXPECT_EQ(flags.bench_steps, 60);
  EXPECT_EQ(flags.warmup_steps, 10);
  ASSERT_TRUE(
      Check({"--bench", "--bench_steps=5", "--warmup_steps=2"}, EngineKind::kCudaShared, &flags)
          .ok());
  EXPECT_EQ(flags.bench_steps, 5);
  EXPECT_EQ(flags.warmup_steps, 2);
}

TEST(BenchFlags, OnlyEnginesWithGpusAreTimed) {
  for (EngineKind engine : {EngineKind::kCpu, EngineKind::kAccounting, EngineKind::kProvenance}) {
    EXPECT_THAT(Message(Check({"--bench"}, engine)),
                AllOf(HasSubstr(std::string(Name(engine))), HasSubstr("cuda or cuda_shared")));
    EXPECT_TRUE(Check({}, engine).ok());
  }
}

TEST(BenchFlags, OthersThatDoNotFitAreRefused) {
  EXPECT_THAT(Message(Check({"--bench", "--steps=9"}, EngineKind::kCuda)), HasSubstr("--steps"));
  EXPECT_THAT(Message(Check({"--bench", "--observe=x"}, EngineKind::kCuda)),
              HasSubstr("--observe"));
  EXPECT_THAT(Message(Check({"--bench_steps=9"}, EngineKind::kCuda)), HasSubstr("--bench_steps"));
  EXPECT_THAT(Message(Check({"--warmup_steps=9"}, EngineKind::kCpu)), HasSubstr("--warmup_steps"));
  EXPECT_THAT(Message(Check({"--bench", "--bench_steps=1"}, EngineKind::kCuda)),
              HasSubstr("bench_steps"));
  EXPECT_THAT(Message(Check({"--bench", "--warmup_steps=0"}, EngineKind::kCuda)),
              HasSubstr("warmup_steps"));
}

}  // namespace
}  // namespace shardproof
