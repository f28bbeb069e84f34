// The fuzzer and the replay program on trainers that show nothing, little, or end badly: exit codes
// and words. fixtures/independent_trainer/programs_test.sh runs the programs themselves.
#include "invariants/suite/trainer_programs.h"

#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fixtures/independent_trainer/independent_trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/suite/scripted_trainer.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What a stream gets while this lives.
class Captured {
 public:
  explicit Captured(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(text_.rdbuf())) {}
  ~Captured() { stream_.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::ostream& stream_;
  std::streambuf* const before_;
};

struct Ended {
  int exit_code = -1;
  std::string out;
  std::string err;
};

using Program = int (*)(int argc, char** argv, const TrainerUnderTest& trainer);

Ended Run(Program program, const TrainerUnderTest& trainer, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "program");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const Captured out(std::cout);
  const Captured err(std::cerr);
  const int exit_code = program(static_cast<int>(arguments.size()), argv.data(), trainer);
  return {exit_code, out.text(), err.text()};
}

Ended Fuzz(const TrainerUnderTest& trainer) {
  return Run(TrainerFuzzMain, trainer,
             {"--seed=3", "--max_cases=8", "--modes=zero2", "--world_sizes=1,2,3"});
}

Ended Replay(const TrainerUnderTest& trainer,
             const std::string& line = "model=probe:4;mode=zero2;world_size=3") {
  return Run(TrainerReplayMain, trainer, {"--run=" + line});
}

// Communicates, tells nothing of it and shows nothing.
TrainerUnderTest Silent() {
  return ScriptedTrainer([](const TrainerInputs& inputs) -> Made {
    return Scripted([inputs](int64_t) { return Meet(inputs); });
  });
}

// Shows what it holds, and tells of no operation: the log that it writes is its own.
class QuietRank : public RankTrainer {
 public:
  static Made Make(const TrainerInputs& inputs) {
    auto quiet = std::make_unique<QuietRank>(inputs);
    SHARDPROOF_ASSIGN_OR_RETURN(
        quiet->rank_, MakeIndependentRank<>({inputs.run, inputs.rank, inputs.initial_values,
                                             inputs.data, inputs.communicator, quiet->log_}));
    return quiet;
  }
  explicit QuietRank(const TrainerInputs& inputs) : log_(inputs.rank) {}
  absl::Status Step() override { return rank_->Step(); }
  absl::Status Observe(RankReport& report) override { return rank_->Observe(report); }

 private:
  StepLog log_;
  std::unique_ptr<RankTrainer> rank_;
};

TrainerUnderTest Stepping(std::function<absl::Status(const TrainerInputs&)> step) {
  return ScriptedTrainer([step = std::move(step)](const TrainerInputs& inputs) -> Made {
    return Scripted([inputs, step](int64_t) { return step(inputs); });
  });
}

TEST(FuzzTest, ATrainerThatShowsNothingHasNotPassed) {
  const Ended ended = Fuzz(Silent());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("no check saw anything, so nothing was judged"),
                               HasSubstr("  padding: no segments of the state were shown"),
                               HasSubstr("replay: ")));
}

TEST(FuzzTest, ChecksThatSawNothingAreListedWithTheReason) {
  const Ended ended = Fuzz({.name = "quiet", .make = QuietRank::Make});
  EXPECT_EQ(ended.exit_code, 0) << ended.out;
  EXPECT_THAT(ended.out, HasSubstr("8 runs trained"));
  for (const char* check : {"unshard_lifecycle", "peak_memory", "issue_order", "ordering"}) {
    EXPECT_THAT(ended.out, HasSubstr(std::string(check) + " saw nothing in 8 of 8 runs: no rank"));
  }
  // Where nothing is trained nobody communicates, and that needs no word of the trainer.
  EXPECT_THAT(ended.out, HasSubstr("collective_ledger saw nothing in 4 of 8 runs: step 0 showed"));
  EXPECT_THAT(ended.out, Not(HasSubstr("numeric_equivalence saw nothing")));
  EXPECT_THAT(ended.out, Not(HasSubstr("padding saw nothing")));
}

TEST(FuzzTest, NothingIsListedOfATrainerThatTellsEverything) {
  const Ended ended = Fuzz({.name = "independent", .make = MakeIndependentRank<>});
  EXPECT_EQ(ended.exit_code, 0) << ended.out;
  EXPECT_THAT(ended.out, Not(HasSubstr("saw nothing")));
}

TEST(ReplayTest, AnErrorOfTheTrainerIsAFailureWithItsWords) {
  const Ended ended = Replay(Stepping([](const TrainerInputs& inputs) {
    return inputs.rank.value == 1 ? absl::DataLossError("a bit fell over") : absl::OkStatus();
  }));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("zero2 on 3 ranks: error"), HasSubstr("rank 1"),
                               HasSubstr("step 0: a bit fell over")));
  EXPECT_THAT(ended.err, IsEmpty());
}

TEST(ReplayTest, ADeadlockIsAFailureThatNamesTheMissingRank) {
  const Ended ended = Replay(Stepping([](const TrainerInputs& inputs) {
    return inputs.rank.value == 1 ? absl::OkStatus() : Meet(inputs);
  }));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("deadlock"), HasSubstr("not arrived: rank 1")));
}

TEST(ReplayTest, ARefusalIsTwoWithTheReason) {
  const Ended ended = Replay(ScriptedTrainer(
      [](const TrainerInputs&) -> Made { return absl::UnimplementedError("no such layer"); }));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.out, HasSubstr("zero2 on 3 ranks: refused: no such layer"));
  EXPECT_EQ(ended.err, "replay: no such layer\n");
}

TEST(ReplayTest, NothingObservedIsAFailure) {
  const Ended ended = Replay(Silent());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("zero2 on 3 ranks: not_observed"),
                               HasSubstr("padding: not_observed (")));
}

TEST(ReplayTest, RunsThatCannotBeReadOrAreInvalidAreTwo) {
  for (const char* line : {"model=probe:4;colour=blue", "model=probe:4;mode=zero2;world_size=0"}) {
    const Ended ended = Replay(Silent(), line);
    EXPECT_EQ(ended.exit_code, 2) << line;
    EXPECT_THAT(ended.out, IsEmpty()) << line;
    EXPECT_THAT(ended.err, HasSubstr("replay: ")) << line;
  }
}

}  // namespace
}  // namespace shardproof
