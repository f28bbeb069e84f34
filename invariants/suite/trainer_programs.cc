#include "invariants/suite/trainer_programs.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "invariants/checks/all_checks.h"
#include "invariants/report/failure_text.h"
#include "invariants/run_description/flags.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/console.h"
#include "invariants/suite/mode_rows.h"
#include "invariants/suite/run_case.h"
#include "invariants/suite/trainer_case.h"
#include "invariants/suite/trainer_search.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "property_tests/replay_file.h"
#include "rapidcheck.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

// --- what the programs share ---

// A trainer of which one check, or every check, is asked. Both outlive the judge.
struct Question {
  const TrainerUnderTest* trainer = nullptr;
  std::vector<std::string> checks = {};  // empty: all
  // The check is known to see nothing of this trainer, and is to say so.
  bool expect_not_observed = false;
  std::string replay_target = {};
};

std::string ReplayLine(const Question& question, const RunDescription& run) {
  const std::string quoted =
      absl::StrCat("'", absl::StrReplaceAll(RunLine(run), {{"'", "'\\''"}}), "'");
  const std::string command = question.replay_target.empty()
                                  ? std::string("the replay program with")
                                  : absl::StrCat("bazel run ", question.replay_target, " --");
  return absl::StrCat("replay: ", command, " --run=", quoted, "\n");
}

std::string FailureOf(const Question& question, const CheckResult& check) {
  if (question.expect_not_observed) {
    if (check.verdict == Verdict::kNotObserved) return "";
    return absl::StrCat(check.name, " was listed as not observed, and its verdict is ",
                        Name(check.verdict), ": take it off the list\n");
  }
  if (check.verdict == Verdict::kFail)
    return absl::StrCat(check.name, " fails\n", FailureText(check));
  if (check.verdict != Verdict::kNotObserved) return "";
  // Of all checks together, only what was seen is judged.
  if (question.checks.empty()) return "";
  return absl::StrCat(check.name, " was not observed: ", check.reason, "\n");
}

std::string WhereText(const RunDescription& run) {
  return absl::StrCat(ModeRowName(run.sharding), " on ", run.sharding.world_size.value, " ranks: ");
}

// A run of which no check saw anything has tested nothing, whatever was asked.
std::string NothingObserved(const CaseResult& result) {
  std::string text = "no check saw anything, so nothing was judged\n";
  for (const CheckResult& check : result.checks) {
    absl::StrAppend(&text, "  ", check.name, ": ", check.reason, "\n");
  }
  return text;
}

JudgedCase JudgeResult(const Question& question, const RunDescription& run,
                       const absl::StatusOr<CaseResult>& result) {
  const std::string where = WhereText(run);
  if (!result.ok()) {
    return {CaseOutcome::kFailed,
            absl::StrCat(where, result.status().ToString(), "\n", ReplayLine(question, run)),
            "error"};
  }
  if (result->verdict == Verdict::kRefused) return {CaseOutcome::kRefused, result->refusal};
  if (question.checks.empty() && result->verdict == Verdict::kNotObserved) {
    return {CaseOutcome::kFailed,
            absl::StrCat(where, NothingObserved(*result), ReplayLine(question, run)),
            "not_observed"};
  }
  JudgedCase judged;
  for (const CheckResult& check : result->checks) {
    const std::string wrong = FailureOf(question, check);
    if (wrong.empty()) continue;
    if (judged.cause.empty()) judged.cause = check.name;
    absl::StrAppend(&judged.text, wrong);
  }
  if (judged.cause.empty()) return judged;
  judged.outcome = CaseOutcome::kFailed;
  judged.text = absl::StrCat(where, judged.text, ReplayLine(question, run));
  return judged;
}

JudgedCase JudgeRun(const Question& question, const RunDescription& run) {
  return JudgeResult(question, run,
                     RunTrainerCase(*question.trainer, run, {.checks = question.checks}));
}

absl::StatusOr<std::vector<int32_t>> ParseWorldSizes(const std::string& text) {
  std::vector<int32_t> sizes;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    int32_t size = 0;
    if (!absl::SimpleAtoi(word, &size) || size < 1 || size > 64) {
      return absl::InvalidArgumentError(absl::StrCat("--world_sizes=", text, ": '", word,
                                                     "' is not accepted; accepted: numbers from "
                                                     "1 to 64, separated by commas"));
    }
    sizes.push_back(size);
  }
  return sizes;
}

CaseLimits LimitsOf(const std::vector<ModeRow>& rows, std::vector<int32_t> world_sizes) {
  CaseLimits limits;
  for (const ModeRow& row : rows) {
    limits.modes.push_back(row.mode);
    if (row.mode == Mode::kFullShard) limits.prefetches.push_back(row.prefetch);
  }
  limits.world_sizes = std::move(world_sizes);
  return limits;
}

// Before a program reads its flags: help is printed, bad flags end it.
struct FlagsRead {
  bool go_on = false;
  int exit_code = 0;
};

FlagsRead ReadFlags(const char* program, int argc, char** argv, Flags& flags) {
  const absl::Status status = flags.Parse(argc, argv);
  if (!status.ok()) return {.exit_code = ReportBadInput(program, status)};
  if (!flags.help_asked()) return {.go_on = true};
  std::cout << flags.Help();
  return {};
}

// --- the test ---

struct TestArguments {
  ModeRow row;
  std::vector<int32_t> world_sizes;
  Question question;
};

// Mode, layout and world size come from the target.
constexpr const char* kFixedRuns[] = {
    // Eight bias-free layers, two buckets.
    "model=mlp:8x16;bucket_cap_bytes=4096;micro_batch_size=4",
    // Odd widths with bias: padding in every layout.
    "model=mlp:33,65,17,129,7:bias;bucket_cap_bytes=9000;micro_batch_size=3",
    // Fewer elements than ranks: empty shards.
    "model=mlp:1,1,3:bias;bucket_cap_bytes=4;micro_batch_size=1",
    // A root unit that holds the ends and stays unsharded; of three micro-batches the last reduces.
    "model=mlp:5,4,3,2,9:bias;units=0+3!,1,2;num_micro_batches=3;grad_sync=last;"
    "micro_batch_size=2;bucket_cap_bytes=64",
    // Every micro-batch reduces, two layers a unit, SGD.
    "model=mlp:7,7,7,7,7;units=0-1,2-3;num_micro_batches=3;optimizer=sgd;micro_batch_size=2;"
    "bucket_cap_bytes=200",
    // Shapes without layers: exact in any order, at any learning rate.
    "model=probe:10x3,7,2x2x2,1,33x5;learning_rate=0.5;num_micro_batches=2;bucket_cap_bytes=100",
    // Frozen tensors at the start and within a unit.
    "model=mlp:6,5,4,3:bias;units=0,1-2;frozen=0,1,4;weight_decay=0.1;bucket_cap_bytes=80",
    // A norm so small that every step is clipped.
    "model=mlp:12,10,8:bias;clip_grad_norm=0.1;micro_batch_size=3;bucket_cap_bytes=400",
    // The same with SGD that keeps nothing between steps.
    "model=mlp:9,8,7:bias;optimizer=sgd;momentum=0;learning_rate=0.1;clip_grad_norm=0.1;"
    "num_micro_batches=3;micro_batch_size=2;bucket_cap_bytes=300",
};

std::vector<LayoutKind> LayoutsOf(Mode mode) {
  if (mode == Mode::kReplicated) return {LayoutKind::kFlat};
  if (mode == Mode::kZero1Broadcast) return {LayoutKind::kOwner};
  return {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner};
}

// For `replay --file`, where the test may write.
void KeepCounterexample(const RunDescription& run) {
  const char* directory = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  if (directory == nullptr) return;
  std::ofstream(absl::StrCat(directory, "/counterexample.json")) << PrintRunJson(run);
}

std::string NothingTested(int64_t refused, const std::string& reason) {
  return absl::StrCat("all ", refused, " runs were refused, so nothing was tested: ", reason);
}

class FixedRuns : public testing::Test {
 public:
  explicit FixedRuns(const TestArguments& arguments) : arguments_(arguments) {}

  void TestBody() override {
    for (const char* line : kFixedRuns) {
      for (const LayoutKind layout : LayoutsOf(arguments_.row.mode)) {
        for (const int32_t world_size : arguments_.world_sizes) RunOne(line, layout, world_size);
      }
    }
    EXPECT_GT(trained_, 0) << NothingTested(refused_, last_refusal_);
  }

 private:
  void RunOne(const char* line, LayoutKind layout, int32_t world_size) {
    absl::StatusOr<RunDescription> run = ParseRunText(line);
    ASSERT_TRUE(run.ok()) << run.status();
    ApplyModeRow(arguments_.row, layout, run->sharding);
    run->sharding.world_size = WorldSize{world_size};
    const JudgedCase judged = JudgeRun(arguments_.question, *run);
    if (judged.outcome == CaseOutcome::kRefused) {
      ++refused_;
      last_refusal_ = judged.text;
      return;
    }
    ++trained_;
    if (judged.outcome == CaseOutcome::kPassed) return;
    KeepCounterexample(*run);
    ADD_FAILURE() << judged.text;
  }

  const TestArguments arguments_;
  int64_t trained_ = 0;
  int64_t refused_ = 0;
  std::string last_refusal_;
};

class RandomRuns : public testing::Test {
 public:
  explicit RandomRuns(const TestArguments& arguments) : arguments_(arguments) {}

  void TestBody() override {
    const auto& parameters = rc::detail::configuration().testParams;
    SearchOptions options;
    options.limits = LimitsOf({arguments_.row}, arguments_.world_sizes);
    options.seed = parameters.seed;
    options.max_cases = parameters.maxSuccess;
    options.max_draws = options.max_cases * 64;
    const SearchResult result = SearchCases(
        options, [&](const RunDescription& run) { return JudgeRun(arguments_.question, run); });
    if (result.failed) {
      KeepCounterexample(result.run);
      ADD_FAILURE() << "random run " << result.failing_draw << ", shrunk in " << result.shrink_tries
                    << " tries:\n"
                    << result.failure;
      return;
    }
    std::cout << result.cases << " random runs trained, " << result.refused << " refused\n";
    EXPECT_GT(result.cases, 0) << NothingTested(result.refused, result.last_refusal);
  }

 private:
  const TestArguments arguments_;
};

template <typename Test>
void Register(const char* name, const TestArguments& arguments) {
  testing::RegisterTest("ShardedTrainer", name, nullptr, nullptr, __FILE__, __LINE__,
                        [=]() -> testing::Test* { return new Test(arguments); });
}

}  // namespace

int TrainerTestMain(int argc, char** argv, const TrainerUnderTest& trainer) {
  testing::InitGoogleTest(&argc, argv);
  SetRapidCheckDefaults(/*max_success=*/24);
  TestArguments arguments;
  arguments.question.trainer = &trainer;
  std::string check, mode, world_sizes = "1,2,3,4";
  Flags flags("one check on one mode row of a sharded trainer, on fixed and random runs");
  flags.String("check", &check, "a check's name");
  flags.String("mode", &mode, "one mode row, such as zero2 or full_shard/none");
  flags.String("world_sizes", &world_sizes, "numbers of ranks, separated by commas");
  flags.Bool("expect_not_observed", &arguments.question.expect_not_observed,
             "the check is known to see nothing of this trainer");
  flags.String("replay_target", &arguments.question.replay_target, "label of the replay program");
  if (const FlagsRead read = ReadFlags("trainer_test", argc, argv, flags); !read.go_on) {
    return read.exit_code;
  }
  if (const absl::Status status = MakeCheck(check).status(); !status.ok()) {
    return ReportBadInput("trainer_test", status);
  }
  arguments.question.checks = {check};
  const absl::StatusOr<std::vector<ModeRow>> rows = ParseModeRows(mode);
  if (!rows.ok()) return ReportBadInput("trainer_test", rows.status());
  if (rows->size() != 1) {
    return ReportBadInput("trainer_test", absl::InvalidArgumentError(absl::StrCat(
                                              "--mode=", mode, " names several rows")));
  }
  arguments.row = rows->front();
  absl::StatusOr<std::vector<int32_t>> sizes = ParseWorldSizes(world_sizes);
  if (!sizes.ok()) return ReportBadInput("trainer_test", sizes.status());
  arguments.world_sizes = *std::move(sizes);
  Register<FixedRuns>("HoldsOnFixedRuns", arguments);
  Register<RandomRuns>("HoldsOnRandomRuns", arguments);
  return RUN_ALL_TESTS();
}

// --- the fuzzer ---

namespace {

// Which checks saw nothing, in how many of the runs and, of the last of them, why.
class Unobserved {
 public:
  void Note(const CaseResult& result) {
    if (result.verdict == Verdict::kRefused) return;
    ++runs_;
    for (const CheckResult& check : result.checks) {
      if (check.verdict != Verdict::kNotObserved) continue;
      Entry& entry = checks_[check.name];
      ++entry.runs;
      entry.reason = check.reason;
    }
  }

  // A line a check; "" when all of them saw something in every run.
  std::string Text() const {
    std::string text;
    for (const auto& [name, entry] : checks_) {
      absl::StrAppend(&text, name, " saw nothing in ", entry.runs, " of ", runs_,
                      " runs: ", entry.reason, "\n");
    }
    return text;
  }

 private:
  struct Entry {
    int64_t runs = 0;
    std::string reason;
  };

  int64_t runs_ = 0;
  std::map<std::string, Entry> checks_;  // by name
};

struct FuzzFlags {
  std::string duration = "60s";
  uint64_t seed = 0;
  int64_t max_cases = int64_t{1} << 40;
  std::string modes = "all";
  std::string world_sizes = "1,2,3,4,5,8";
};

absl::StatusOr<SearchOptions> MakeSearch(const FuzzFlags& raw, bool seed_given) {
  SearchOptions options;
  absl::Duration duration;
  if (!absl::ParseDuration(raw.duration, &duration) || duration <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--duration=", raw.duration, " is not accepted; accepted: a time such as 30s or 10m"));
  }
  SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<ModeRow> rows, ParseModeRows(raw.modes));
  SHARDPROOF_ASSIGN_OR_RETURN(std::vector<int32_t> sizes, ParseWorldSizes(raw.world_sizes));
  options.limits = LimitsOf(rows, std::move(sizes));
  options.seed = seed_given ? raw.seed : static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  options.max_cases = raw.max_cases;
  options.max_draws = int64_t{1} << 60;
  options.deadline = absl::Now() + duration;
  return options;
}

std::string CountsText(const SearchResult& result, absl::Duration elapsed) {
  return absl::StrFormat(
      "%d runs trained, %d refused, %.0f a second", result.cases, result.refused,
      static_cast<double>(result.cases) / std::max(absl::ToDoubleSeconds(elapsed), 1e-3));
}

}  // namespace

int TrainerFuzzMain(int argc, char** argv, const TrainerUnderTest& trainer) {
  FuzzFlags raw;
  Question question = {.trainer = &trainer};
  Flags flags(
      "Random runs of a sharded trainer through all checks, until one fails.\n"
      "Exit 0: all that were trained pass; 1: one fails, or nothing was tested; 2: bad flags.");
  flags.String("duration", &raw.duration, "how long to search, such as 30s or 10m");
  flags.Unsigned("seed", &raw.seed, "of the random runs; left out: a fresh one");
  flags.Int("max_cases", &raw.max_cases, 1, int64_t{1} << 40, "trained runs after which to stop");
  flags.String("modes", &raw.modes, "modes or mode rows, separated by commas");
  flags.String("world_sizes", &raw.world_sizes, "numbers of ranks, separated by commas");
  flags.String("replay_target", &question.replay_target, "label of the replay program");
  if (const FlagsRead read = ReadFlags("fuzz", argc, argv, flags); !read.go_on) {
    return read.exit_code;
  }
  absl::StatusOr<SearchOptions> options = MakeSearch(raw, flags.given("seed"));
  if (!options.ok()) return ReportBadInput("fuzz", options.status());
  const absl::Time begin = absl::Now();
  SearchResult result;
  Unobserved unobserved;
  {
    ProgressLine progress;
    options->on_draw = [&](const SearchResult& now) {
      if ((now.cases + now.refused) % 16 != 0) return;
      progress.Show(CountsText(now, absl::Now() - begin));
    };
    result = SearchCases(*options, [&](const RunDescription& run) {
      const absl::StatusOr<CaseResult> judged = RunTrainerCase(trainer, run, {});
      if (judged.ok()) unobserved.Note(*judged);
      return JudgeResult(question, run, judged);
    });
  }
  std::cout << "trainer " << trainer.name << ", --seed=" << options->seed << ": "
            << CountsText(result, absl::Now() - begin) << "\n";
  if (result.failed) {
    std::cout << "run " << result.failing_draw << " fails; shrunk in " << result.shrink_tries
              << " tries" << (result.shrunk_completely ? "" : ", not to the end") << ":\n"
              << result.failure;
    return 1;
  }
  if (result.cases == 0) {
    std::cout << NothingTested(result.refused, result.last_refusal) << "\n";
    return 1;
  }
  std::cout << result.coverage.Table() << unobserved.Text();
  return 0;
}

// --- the replay ---

namespace {

absl::StatusOr<RunDescription> ReadRun(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.empty()) {
    return absl::NotFoundError(absl::StrCat("--file=", path, " cannot be read or is empty"));
  }
  // A replay file of shardproof's own trainer says on which engine it failed; here it is a run.
  if (absl::StrContains(text, "shardproof.replay/")) {
    SHARDPROOF_ASSIGN_OR_RETURN(ReplayFile replay, ReadReplayFile(path, ImportModel));
    return std::move(replay.run);
  }
  absl::StatusOr<RunDescription> run = ParseRunText(text);
  if (run.ok()) return run;
  return absl::Status(run.status().code(), absl::StrCat(path, ": ", run.status().message()));
}

absl::StatusOr<RunDescription> ReadRequest(const std::string& line, const std::string& path) {
  if (line.empty() == path.empty()) {
    return absl::InvalidArgumentError("give either --run=LINE or --file=PATH");
  }
  if (path.empty()) return ParseRunText(line);
  SHARDPROOF_RETURN_IF_ERROR(EnterCallersDirectory());
  return ReadRun(path);
}

// A valid run, so that an error of training it is the trainer's and not the input's.
absl::StatusOr<RunDescription> RunToReplay(const std::string& line, const std::string& path) {
  SHARDPROOF_ASSIGN_OR_RETURN(RunDescription run, ReadRequest(line, path));
  SHARDPROOF_RETURN_IF_ERROR(Validate(run));
  return run;
}

// The verdict in words, then what each check said.
void PrintResult(const CaseResult& result) {
  std::cout << Name(result.verdict) << "\n";
  for (const CheckResult& check : result.checks) {
    std::cout << "  " << check.name << ": " << Name(check.verdict)
              << (check.reason.empty() ? "" : " (" + check.reason + ")") << "\n";
    if (check.verdict == Verdict::kFail) std::cout << FailureText(check);
  }
}

}  // namespace

int TrainerReplayMain(int argc, char** argv, const TrainerUnderTest& trainer) {
  std::string line, path;
  Flags flags(
      "One run of a sharded trainer through all checks.\n"
      "Exit 0: it passes; 1: a check fails, the trainer ends in an error, or no check saw\n"
      "anything; 2: bad input, or the trainer refuses the run.");
  flags.String("run", &line, "the run, as a failure prints it");
  flags.String("file", &path, "a file that holds it, a line or JSON");
  if (const FlagsRead read = ReadFlags("replay", argc, argv, flags); !read.go_on) {
    return read.exit_code;
  }
  const absl::StatusOr<RunDescription> run = RunToReplay(line, path);
  if (!run.ok()) return ReportBadInput("replay", run.status());
  const absl::StatusOr<CaseResult> result = RunTrainerCase(trainer, *run, {});
  std::cout << "trainer " << trainer.name << ", " << WhereText(*run);
  if (!result.ok()) {
    std::cout << "error\n  " << result.status().ToString() << "\n";
    return 1;
  }
  if (result->verdict == Verdict::kRefused) {
    // Nothing was judged, as with a run that cannot be read.
    std::cout << "refused: " << result->refusal << "\n" << std::flush;
    return ReportBadInput("replay", absl::UnimplementedError(result->refusal));
  }
  PrintResult(*result);
  return result->verdict == Verdict::kFail || result->verdict == Verdict::kNotObserved ? 1 : 0;
}

}  // namespace shardproof
