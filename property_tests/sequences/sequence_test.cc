// What a program does between training steps must not change training. The second half seeds
// faults into single commands: the sequences have to find each.
//
// SHARDPROOF_RUN and SHARDPROOF_SEQUENCE replay one failure; the test prints the command.
#include "property_tests/sequences/sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/parse.h"
#include "property_tests/generators/case_generator.h"
#include "property_tests/generators/case_spec.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "trainer/model/importers.h"
#include "trainer/plan/planner.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

// The line that runs one sequence of one run again, and nothing else.
std::string ReplayLine(const RunDescription& run, const std::vector<Command>& commands) {
  std::string json = PrintRunJson(run);
  std::replace(json.begin(), json.end(), '\n', ' ');
  return absl::StrCat("replay: ci/bazel test --test_env=SHARDPROOF_RUN='", json,
                      "' --test_env=SHARDPROOF_SEQUENCE='", PrintSequence(commands),
                      "' //property_tests/sequences:sequence_test");
}

TEST(Sequences, LeaveTrainingAsItIs) {
  const bool passes = rc::check("a random sequence passes", [] {
    const CaseSpec spec = *AnyCase({});
    const std::vector<Command> commands = *AnySequence();
    const absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
    if (!run.ok()) RC_FAIL(run.status().ToString());
    const absl::Status status = RunSequence(*run, commands);
    if (!status.ok()) {
      RC_FAIL(absl::StrCat(status.message(), "\n", ReplayLine(*run, commands)));
    }
  });
  EXPECT_TRUE(passes);
}

TEST(Sequences, Replay) {
  const char* const line = std::getenv("SHARDPROOF_RUN");
  const char* const sequence = std::getenv("SHARDPROOF_SEQUENCE");
  if (line == nullptr || sequence == nullptr) return;
  const absl::string_view text = line;
  const absl::StatusOr<RunDescription> run =
      text.find('{') == 0 ? ParseRunJson(text, ImportModel) : ParseRun(text, ImportModel);
  ASSERT_TRUE(run.ok()) << run.status();
  const absl::StatusOr<std::vector<Command>> commands = ParseSequence(sequence);
  ASSERT_TRUE(commands.ok()) << commands.status();
  EXPECT_TRUE(RunSequence(*run, *commands).ok()) << RunSequence(*run, *commands);
}

TEST(Sequences, AreReadAsTheyArePrinted) {
  const std::string text =
      "train,forward,evaluate:3,fail:40,drop_gradients,view,edit:2,"
      "discard_edit:1";
  const absl::StatusOr<std::vector<Command>> commands = ParseSequence(text);
  ASSERT_TRUE(commands.ok()) << commands.status();
  EXPECT_EQ(PrintSequence(*commands), text);
  for (const char* bad : {"", "walk", "fail", "fail:x", "fail:100", "train:1", "train,,train"}) {
    EXPECT_THAT(std::string(ParseSequence(bad).status().message()), HasSubstr("accepted: train"))
        << bad;
  }
}

// Every command at every point of a step, in every mode, before and after training.
TEST(Sequences, HoldForEveryCommandInEveryMode) {
  const absl::StatusOr<std::vector<Command>> commands = ParseSequence(
      "forward,view,train,fail:50,train,fail:99,evaluate:1,train,drop_gradients,edit:1,train,"
      "discard_edit:0,fail:10,forward,train,drop_gradients,drop_gradients,fail:0,train");
  ASSERT_TRUE(commands.ok()) << commands.status();
  for (const char* model : {"mlp:5,7,3,2:bias", "probe:3,5x2,1"}) {
    for (const RunDescription& mode : InEveryMode(TestRun(model, Mode::kReplicated, 3))) {
      for (const RunDescription& run : WithEveryGradSync(mode)) {
        const absl::Status status = RunSequence(run, *commands);
        EXPECT_TRUE(status.ok()) << ModeRowName(run.sharding) << ": " << status.message();
      }
    }
  }
}

// ---------------------------------------------------------------- seeded faults

std::string Found(const LivePlans& plans, absl::string_view sequence,
                  Mode mode = Mode::kFullShard) {
  RunDescription run = TestRun("mlp:5,7,3,2:bias", mode, 2);
  if (ShardsUnits(mode)) run.model.units[0].reshard_after_forward = false;
  return std::string(RunSequence(run, *ParseSequence(sequence), plans).message());
}

void DropLast(OpKind kind, StepPlan& plan) {
  for (size_t op = plan.ops.size(); op-- > 0;) {
    if (plan.ops[op].kind != kind) continue;
    plan.ops[op].kind = OpKind::kRelease;
    plan.ops[op].access_count = 0;
    return;
  }
}

TEST(SequenceFaults, FindAForwardThatLeavesItsRootUnsharded) {
  LivePlans plans = PlannedCommands();
  plans.forward = [](const RunDescription& run, const Placement& placement, Rank rank, bool live) {
    StepPlan plan = PlanForwardOnly(run, placement, rank, live);
    DropLast(OpKind::kReshard, plan);
    return plan;
  };
  EXPECT_THAT(Found(plans, "train,evaluate:1"), HasSubstr("still allocated"));
}

TEST(SequenceFaults, FindAnExceptionThatLeaksWhatWasUnsharded) {
  LivePlans plans = PlannedCommands();
  plans.cut_short = [](StepPlan plan, size_t ops) {
    plan = CutShort(std::move(plan), ops);
    plan.ops.back().access_count = 0;
    return plan;
  };
  EXPECT_THAT(Found(plans, "fail:50"), HasSubstr("still allocated"));
}

// The gradients of a step that failed are added to those of its repetition.
TEST(SequenceFaults, FindARepeatedStepThatKeepsTheGradientsOfTheFailedOne) {
  LivePlans plans = PlannedCommands();
  plans.step = [](const RunDescription& run, const Placement& placement, Rank rank, int64_t step,
                  bool live) {
    StepPlan plan = PlanStepAfter(run, placement, rank, step, live);
    if (live) return plan;
    for (SetUse& use : plan.gradient_uses) use.accumulate = true;
    return plan;
  };
  EXPECT_THAT(Found(plans, "train,fail:80,train", Mode::kZero1AllGather),
              HasSubstr("numeric_equivalence"));
}

TEST(SequenceFaults, FindAViewThatForgetsToWriteBack) {
  LivePlans plans = PlannedCommands();
  plans.close_view = [](const RunDescription& run, const Placement& placement, Rank rank, bool live,
                        bool) {
    return PlanCloseView(run, placement, rank, live, /*write_back=*/false);
  };
  EXPECT_THAT(Found(plans, "train,edit:0"), HasSubstr("is not the model's"));
}

TEST(SequenceFaults, FindAViewThatWritesBackWhatWasToBeDiscarded) {
  LivePlans plans = PlannedCommands();
  plans.close_view = [](const RunDescription& run, const Placement& placement, Rank rank, bool live,
                        bool) {
    return PlanCloseView(run, placement, rank, live, /*write_back=*/true);
  };
  EXPECT_THAT(Found(plans, "train,discard_edit:0"), HasSubstr("is not the model's"));
}

// One shard is copied back at the place of the next rank's.
TEST(SequenceFaults, FindAViewThatWritesBackTheWrongShard) {
  LivePlans plans = PlannedCommands();
  plans.close_view = [](const RunDescription& run, const Placement& placement, Rank rank, bool live,
                        bool write_back) {
    StepPlan plan = PlanCloseView(run, placement, rank, live, write_back);
    for (Op& op : plan.ops) {
      if (op.kind == OpKind::kCopy) op.send.range.first = 0;
    }
    return plan;
  };
  EXPECT_THAT(Found(plans, "train,edit:0"), HasSubstr("rank 1"));
}

TEST(SequenceFaults, FindAViewHandedOutBeforeItsGather) {
  LivePlans plans = PlannedCommands();
  plans.open_view = [](const RunDescription& run, const Placement& placement, Rank rank,
                       bool live) {
    StepPlan plan = PlanOpenView(run, placement, rank, live);
    for (Op& op : plan.ops) {
      if (op.unit == 1) op.kind = OpKind::kRelease;
    }
    return plan;
  };
  EXPECT_THAT(Found(plans, "train,view"), HasSubstr("view of layers.1"));
}

TEST(SequenceFaults, FindGradientsThatAreNotDropped) {
  LivePlans plans = PlannedCommands();
  plans.drop_gradients = [](const RunDescription& run, const Placement& placement, Rank rank,
                            bool live) {
    StepPlan plan = PlanDropGradients(run, placement, rank, live);
    plan.ops.clear();
    return plan;
  };
  EXPECT_THAT(Found(plans, "train,drop_gradients"), HasSubstr("still allocated"));
}

TEST(LiveTrainer, RefusesCommandsWhileAViewIsOpenAndCloseWithoutOne) {
  const RunDescription run = TestRun("mlp:2x4", Mode::kFullShard, 2);
  const auto trainer = LiveTrainer::Create(run, {.limit_bytes = int64_t{1} << 30});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const auto code = [](const absl::StatusOr<const StepObservation*>& result) {
    return result.status().code();
  };
  EXPECT_EQ(code((*trainer)->CloseView(true)), absl::StatusCode::kFailedPrecondition);
  const auto view_code = [&](Rank rank, int32_t tensor) {
    return (*trainer)->Read(rank, tensor).status().code();
  };
  EXPECT_EQ(view_code(Rank{0}, 0), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code((*trainer)->FailInTheMiddle(1)), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE((*trainer)->OpenView().ok());
  EXPECT_EQ(view_code(Rank{0}, 2), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(view_code(Rank{2}, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*trainer)->Write(Rank{0}, 0, {1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code((*trainer)->Train()), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code((*trainer)->OpenView()), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE((*trainer)->CloseView(false).ok());
  EXPECT_TRUE((*trainer)->Train().ok());
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  shardproof::SetRapidCheckDefaults(/*max_success=*/1500);
  return RUN_ALL_TESTS();
}
