// One check, one mode, one world size: on fixed cases and on random ones.
//
// Hundreds of Bazel targets run this binary with other arguments (ci/rules/suite.bzl):
//   --check=padding --mode=full_shard/backward_pre --world_size=4 [--engine=provenance]
// The seed of the random cases is fixed; RC_PARAMS="seed=7 max_success=1000" changes it.
// SHARDPROOF_CASES=1000 asks for as many. A random case that fails leaves a replay file among the
// test's undeclared outputs.
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "invariants/checks/all_checks.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/parse.h"
#include "invariants/suite/mode_rows.h"
#include "invariants/suite/run_case.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "property_tests/judge_case.h"
#include "property_tests/random_cases.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

struct SuiteArguments {
  std::string check;
  ModeRow row;
  int32_t world_size = 1;
  EngineKind engine = EngineKind::kCpu;
};

// What is wrong with the run as the check sees it; empty when it passes.
std::string Judge(const RunDescription& run, const SuiteArguments& arguments) {
  const EngineVerdict verdict =
      JudgeCase(run, {.engine = arguments.engine, .checks = {arguments.check}});
  if (verdict.passes) return "";
  return absl::StrCat(ModeRowName(run.sharding), " on ", run.sharding.world_size.value,
                      " ranks: ", verdict.headline, "\n", verdict.details,
                      ReplayLine(run, arguments.engine), "\n");
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
    // Tied over units with a first extent that nothing divides, clipped, in groups; empty tensors;
    // one rank uses a tensor.
    "model=probe:7x3,7x3,0,5,2x2;ties=t1:t0;units=0+4!,1+3,2;usage=2@rank:0,3@steps:odd;"
    "groups=0@weight_decay:0;num_micro_batches=2;micro_batch_size=1;bucket_cap_bytes=84;"
    "clip_grad_norm=0.5",
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
        const std::string wrong = Judge(*run, arguments_);
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
    const std::string report = CheckRandomCases({.name = absl::StrCat(arguments_.check, " passes"),
                                                 .limits = limits,
                                                 .engines = {arguments_.engine},
                                                 .checks = {arguments_.check}});
    if (!report.empty()) ADD_FAILURE() << "\n" << report;
  }

 private:
  const SuiteArguments arguments_;
};

absl::StatusOr<SuiteArguments> ParseArguments(int argc, char** argv) {
  SuiteArguments arguments;
  std::string mode;
  std::string engine = "cpu";
  int64_t world_size = 0;
  Flags flags("one check on one mode row and world size");
  flags.String("check", &arguments.check, "a check's name");
  flags.String("mode", &mode, "one mode row, such as zero2 or full_shard/none");
  flags.Int("world_size", &world_size, 1, 64, "ranks");
  flags.String("engine", &engine, "what runs the cases: cpu, provenance or accounting");
  absl::Status status = flags.Parse(argc, argv);
  if (!status.ok()) return status;
  const absl::StatusOr<std::unique_ptr<Check>> check = MakeCheck(arguments.check);
  if (!check.ok()) return check.status();
  const absl::StatusOr<std::vector<ModeRow>> rows = ParseModeRows(mode);
  if (!rows.ok()) return rows.status();
  if (rows->size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("--mode=", mode, " names several rows"));
  }
  const absl::StatusOr<EngineKind> parsed = ParseEngineKind(engine);
  if (!parsed.ok()) return parsed.status();
  arguments.engine = *parsed;
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
