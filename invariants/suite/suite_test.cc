// One check, one mode, one world size: on fixed cases and on random ones.
//
// Hundreds of Bazel targets run this binary with other arguments (ci/rules/suite.bzl):
//   --check=padding --mode=full_shard/backward_pre --world_size=4
// The seed of the random cases is fixed; RC_PARAMS="seed=7 max_success=1000" changes it.
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "invariants/checks/all_checks.h"
#include "invariants/report/failure_text.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/parse.h"
#include "invariants/suite/mode_rows.h"
#include "invariants/suite/run_case.h"
#include "property_tests/generators/case_generator.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "rapidcheck.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

struct SuiteArguments {
  std::string check;
  ModeRow row;
  int32_t world_size = 1;
};

// What is wrong with the run as the check sees it; empty when it passes.
std::string Judge(const RunDescription& run, const std::string& check) {
  CaseOptions options;
  options.checks = {check};
  const absl::StatusOr<CaseResult> result = RunCase(run, options);
  if (!result.ok()) {
    return absl::StrCat(result.status().ToString(), "\n", ReplayLine(run, EngineKind::kCpu));
  }
  if (result->verdict == Verdict::kRefused) {
    return absl::StrCat("refused: ", result->refusal, "\n", ReplayLine(run, EngineKind::kCpu));
  }
  const CheckResult& judged = result->checks[0];
  if (judged.verdict == Verdict::kPass) return "";
  return absl::StrCat(ModeRowName(run.sharding), " on ", run.sharding.world_size.value,
                      " ranks: ", Name(judged.verdict), " ", judged.reason, "\n",
                      FailureText(judged), ReplayLine(run, EngineKind::kCpu), "\n");
}

// Lines of runs; mode, layout and world size come from the target.
constexpr const char* kFixedCases[] = {
    // The study's shape in small: eight bias-free layers, two buckets.
    "model=mlp:8x16;bucket_cap_bytes=4096;micro_batch_size=4",
    // Odd widths with bias: padding in every layout.
    "model=mlp:33,65,17,129,7:bias;bucket_cap_bytes=9000;micro_batch_size=3",
    // Fewer elements than ranks: empty shards.
    "model=mlp:1,1,3:bias;bucket_cap_bytes=4;micro_batch_size=1",
    // A root unit that holds the ends and stays unsharded, micro-batches, the last reduces.
    "model=mlp:5,4,3,2,9:bias;units=0+3!,1,2;num_micro_batches=3;grad_sync=last;"
    "micro_batch_size=2;bucket_cap_bytes=64",
    // Every micro-batch reduces, two layers a unit, SGD.
    "model=mlp:7,7,7,7,7;units=0-1,2-3;num_micro_batches=3;optimizer=sgd;micro_batch_size=2;"
    "bucket_cap_bytes=200",
    // Shapes without layers: exact in any order, at any learning rate.
    "model=probe:10x3,7,2x2x2,1,33x5;learning_rate=0.5;num_micro_batches=2;bucket_cap_bytes=100",
};

std::vector<LayoutKind> LayoutsOf(Mode mode) {
  if (mode == Mode::kReplicated) return {LayoutKind::kFlat};
  if (mode == Mode::kZero1Broadcast) return {LayoutKind::kOwner};
  return {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner};
}

class FixedCases : public testing::Test {
 public:
  explicit FixedCases(const SuiteArguments& arguments) : arguments_(arguments) {}
  void TestBody() override {
    for (const char* line : kFixedCases) {
      for (LayoutKind layout : LayoutsOf(arguments_.row.mode)) {
        absl::StatusOr<RunDescription> run = ParseRun(line, ImportModel);
        ASSERT_TRUE(run.ok()) << run.status();
        ApplyModeRow(arguments_.row, layout, run->sharding);
        run->sharding.world_size = WorldSize{arguments_.world_size};
        const std::string wrong = Judge(*run, arguments_.check);
        if (!wrong.empty()) ADD_FAILURE() << wrong;
      }
    }
  }

 private:
  const SuiteArguments arguments_;
};

class RandomCases : public testing::Test {
 public:
  explicit RandomCases(const SuiteArguments& arguments) : arguments_(arguments) {}
  void TestBody() override {
    CaseLimits limits;
    limits.modes = {arguments_.row.mode};
    if (arguments_.row.mode == Mode::kFullShard) limits.prefetches = {arguments_.row.prefetch};
    limits.world_sizes = {arguments_.world_size};
    const bool passes = rc::check(absl::StrCat(arguments_.check, " passes"), [&] {
      const CaseSpec spec = *AnyCase(limits);
      const absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
      if (!run.ok()) RC_FAIL(run.status().ToString());
      const std::string wrong = Judge(*run, arguments_.check);
      if (!wrong.empty()) RC_FAIL(wrong);
    });
    EXPECT_TRUE(passes);
  }

 private:
  const SuiteArguments arguments_;
};

absl::StatusOr<SuiteArguments> ParseArguments(int argc, char** argv) {
  SuiteArguments arguments;
  std::string mode;
  int64_t world_size = 0;
  Flags flags("one check on one mode row and world size");
  flags.String("check", &arguments.check, "a check's name");
  flags.String("mode", &mode, "one mode row, such as zero2 or full_shard/none");
  flags.Int("world_size", &world_size, 1, 64, "ranks");
  absl::Status status = flags.Parse(argc, argv);
  if (!status.ok()) return status;
  const absl::StatusOr<std::unique_ptr<Check>> check = MakeCheck(arguments.check);
  if (!check.ok()) return check.status();
  const absl::StatusOr<std::vector<ModeRow>> rows = ParseModeRows(mode);
  if (!rows.ok()) return rows.status();
  if (rows->size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("--mode=", mode, " names several rows"));
  }
  arguments.row = (*rows)[0];
  arguments.world_size = static_cast<int32_t>(world_size);
  return arguments;
}

template <typename Test>
void Register(const char* name, const SuiteArguments& arguments) {
  testing::RegisterTest("Invariant", name, nullptr, nullptr, __FILE__, __LINE__,
                        [=]() -> testing::Test* { return new Test(arguments); });
}

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  SetRapidCheckDefaults(/*max_success=*/24);
  const absl::StatusOr<SuiteArguments> arguments = ParseArguments(argc, argv);
  if (!arguments.ok()) {
    std::cerr << "suite_test: " << arguments.status().message() << "\n";
    return 2;
  }
  Register<FixedCases>("HoldsOnFixedCases", *arguments);
  Register<RandomCases>("HoldsOnRandomCases", *arguments);
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
