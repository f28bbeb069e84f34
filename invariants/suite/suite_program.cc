#include "invariants/suite/suite_program.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "invariants/checks/all_checks.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/mode_rows.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "property_tests/random_cases.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

constexpr int32_t kMostRanks = 64;

// An engine and the number of ranks it trains on.
struct Setting {
  EngineKind engine = EngineKind::kCpu;
  int32_t world_size = 1;
};

struct SuiteArguments {
  std::string check;  // a check's name, or "all"
  ModeRow row;
  std::vector<Setting> settings;
  bool names_settings = false;  // several, or one by --on: tests then say which they are of
  absl::Duration timeout;
};

// What all tests of a program share.
struct Suite {
  const SuiteProgram& program;
  const SuiteArguments& arguments;
  absl::Status broken;  // of the first `agree` that failed
};

constexpr char kJobIsOver[] = "the job is over: stderr says why";

std::vector<std::string> ChecksOf(const SuiteArguments& arguments) {
  if (arguments.check == "all") return AllCheckNames();
  return {arguments.check};
}

// The case on which the job breaks fails. After it nothing is judged, and nothing is wrong with
// smaller cases, so that none is sought.
EngineVerdict JudgeOn(const RunDescription& run, Suite& suite, const Setting& setting) {
  if (!suite.broken.ok()) return {.engine = setting.engine};
  CaseOptions options = {.engine = setting.engine, .checks = ChecksOf(suite.arguments)};
  if (suite.program.prepare) suite.program.prepare(options);
  const EngineVerdict verdict = JudgeCase(run, options);
  if (!suite.program.agree) return verdict;
  absl::StatusOr<EngineVerdict> agreed = suite.program.agree(verdict);
  if (agreed.ok()) return *std::move(agreed);
  suite.broken = agreed.status();
  return {.engine = setting.engine, .passes = false, .cause = "job", .headline = kJobIsOver};
}

// What is wrong with the run as the checks see it; empty when it passes.
std::string Judge(const RunDescription& run, Suite& suite, const Setting& setting) {
  const EngineVerdict verdict = JudgeOn(run, suite, setting);
  if (verdict.passes) return "";
  if (!suite.program.tells) return "rank 0 says what failed";
  return absl::StrCat(ModeRowName(run.sharding), " on ", run.sharding.world_size.value,
                      " ranks: ", verdict.headline, "\n", verdict.details,
                      ReplayLine(run, setting.engine), "\n");
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

std::vector<std::string> FixedCasesOf(const SuiteProgram& program) {
  std::vector<std::string> cases(std::begin(kFixedCases), std::end(kFixedCases));
  cases.insert(cases.end(), program.more_fixed_cases.begin(), program.more_fixed_cases.end());
  return cases;
}

std::vector<LayoutKind> LayoutsOf(Mode mode) {
  if (mode == Mode::kReplicated) return {LayoutKind::kFlat};
  if (mode == Mode::kZero1Broadcast) return {LayoutKind::kOwner};
  return {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner};
}

template <typename Item>
size_t IndexOf(const Item& item, const std::vector<Item>& all) {
  return std::find(all.begin(), all.end(), item) - all.begin();
}

std::vector<LayoutKind> LayoutsOfCase(size_t case_index, const SuiteProgram& program,
                                      const SuiteArguments& arguments) {
  const std::vector<LayoutKind> all = LayoutsOf(arguments.row.mode);
  if (!program.one_layout_a_case) return all;
  const size_t first = arguments.check == "all" ? IndexOf(arguments.row, AllModeRows())
                                                : IndexOf(arguments.check, AllCheckNames());
  return {all[(case_index + first) % all.size()]};
}

class FixedCasesTest : public testing::Test {
 public:
  FixedCasesTest(Suite& suite, const Setting& setting) : suite_(suite), setting_(setting) {}
  void TestBody() override {
    const std::vector<std::string> cases = FixedCasesOf(suite_.program);
    for (size_t i = 0; i < cases.size(); ++i) {
      for (const LayoutKind layout : LayoutsOfCase(i, suite_.program, suite_.arguments)) {
        absl::StatusOr<RunDescription> run = ParseRun(cases[i], ImportModel);
        ASSERT_TRUE(run.ok()) << run.status();
        ApplyModeRow(suite_.arguments.row, layout, run->sharding);
        run->sharding.world_size = WorldSize{setting_.world_size};
        const std::string wrong = Judge(*run, suite_, setting_);
        ASSERT_TRUE(suite_.broken.ok()) << kJobIsOver;
        if (!wrong.empty()) ADD_FAILURE() << wrong;
      }
    }
  }

 private:
  Suite& suite_;
  const Setting setting_;
};

class RandomCasesTest : public testing::Test {
 public:
  RandomCasesTest(Suite& suite, const Setting& setting) : suite_(suite), setting_(setting) {}
  void TestBody() override {
    const ModeRow& row = suite_.arguments.row;
    CaseLimits limits;
    limits.modes = {row.mode};
    if (row.mode == Mode::kFullShard) limits.prefetches = {row.prefetch};
    limits.world_sizes = {setting_.world_size};
    const std::string report = CheckRandomCases(
        {.name = absl::StrCat(suite_.arguments.check, " passes"),
         .limits = limits,
         .judge = [this](const RunDescription& run) { return JudgeOn(run, suite_, setting_); }});
    ASSERT_TRUE(suite_.broken.ok()) << kJobIsOver;
    if (!report.empty()) {
      ADD_FAILURE() << "\n" << (suite_.program.tells ? report : "rank 0 says what failed");
    }
  }

 private:
  Suite& suite_;
  const Setting setting_;
};

absl::StatusOr<std::vector<Setting>> ParseSettings(absl::string_view text) {
  std::vector<Setting> settings;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(entry, ':');
    Setting setting;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &setting.world_size) ||
        setting.world_size < 1 || setting.world_size > kMostRanks) {
      return absl::InvalidArgumentError(absl::StrCat("--on: '", entry,
                                                     "' is not ENGINE:RANKS with 1 to ", kMostRanks,
                                                     " ranks, such as cpu:4"));
    }
    SHARDPROOF_ASSIGN_OR_RETURN(setting.engine, ParseEngineKind(parts[0]));
    settings.push_back(setting);
  }
  return settings;
}

absl::StatusOr<ModeRow> ParseOneRow(const std::string& mode) {
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<ModeRow> rows, ParseModeRows(mode));
  if (rows.size() == 1) return rows[0];
  return absl::InvalidArgumentError(absl::StrCat("--mode=", mode, " names several rows"));
}

absl::StatusOr<SuiteArguments> ParseArguments(int argc, char** argv) {
  SuiteArguments arguments;
  std::string mode;
  std::string engine = "cpu";
  std::string on;
  int64_t world_size = 1;
  int64_t timeout_s = 40;
  Flags flags("one check on one mode row");
  flags.String("check", &arguments.check, "a check's name, or 'all' for the nine");
  flags.String("mode", &mode, "one mode row, such as zero2 or full_shard/none");
  flags.Int("world_size", &world_size, 1, kMostRanks, "ranks");
  flags.String("engine", &engine, "what runs the cases");
  flags.String("on", &on, "engines and ranks, such as cuda:1,cuda_shared:2, instead of the two");
  flags.Int("timeout_s", &timeout_s, 1, 86400, "seconds that a rank waits for others");
  SHARDPROOF_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (arguments.check != "all") SHARDPROOF_RETURN_IF_ERROR(MakeCheck(arguments.check).status());
  SHARDPROOF_ASSIGN_OR_RETURN(arguments.row, ParseOneRow(mode));
  arguments.timeout = absl::Seconds(timeout_s);
  arguments.names_settings = flags.given("on");
  if (arguments.names_settings == flags.given("world_size") ||
      (arguments.names_settings && flags.given("engine"))) {
    return absl::InvalidArgumentError(
        "expected either --world_size, with or without --engine, or --on");
  }
  if (!arguments.names_settings) on = absl::StrCat(engine, ":", world_size);
  SHARDPROOF_ASSIGN_OR_RETURN(arguments.settings, ParseSettings(on));
  return arguments;
}

template <typename Test>
void Register(std::string name, Suite& suite, const Setting& setting) {
  if (suite.arguments.names_settings) {
    absl::StrAppend(&name, "_", Name(setting.engine), "_w", setting.world_size);
  }
  testing::RegisterTest("Invariant", name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                        [&suite, setting]() -> testing::Test* { return new Test(suite, setting); });
}

}  // namespace

absl::StatusOr<int> RunSuite(int argc, char** argv, const SuiteProgram& program) {
  testing::InitGoogleTest(&argc, argv);
  SetRapidCheckDefaults(program.random_cases);
  SHARDPROOF_ASSIGN_OR_RETURN(const SuiteArguments arguments, ParseArguments(argc, argv));
  if (program.join) SHARDPROOF_RETURN_IF_ERROR(program.join(arguments.timeout));
  if (program.ready) SHARDPROOF_RETURN_IF_ERROR(program.ready());
  Suite suite = {program, arguments, absl::OkStatus()};
  for (const Setting& setting : arguments.settings) {
    Register<FixedCasesTest>("HoldsOnFixedCases", suite, setting);
    Register<RandomCasesTest>("HoldsOnRandomCases", suite, setting);
  }
  const int exit_code = RUN_ALL_TESTS();
  SHARDPROOF_RETURN_IF_ERROR(suite.broken);
  return exit_code;
}

}  // namespace shardproof
