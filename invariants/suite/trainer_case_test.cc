// Trainers that fail, refuse, hang or say little: what RunTrainerCase makes of each.
#include "invariants/suite/trainer_case.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A rank that is two functions.
class ScriptedRank : public RankTrainer {
 public:
  using StepFn = std::function<absl::Status(int64_t step)>;
  using ObserveFn = std::function<absl::Status(RankReport&)>;
  ScriptedRank(StepFn step, ObserveFn observe)
      : step_(std::move(step)), observe_(std::move(observe)) {}
  absl::Status Step() override { return step_ ? step_(next_++) : absl::OkStatus(); }
  absl::Status Observe(RankReport& report) override {
    return observe_ ? observe_(report) : absl::OkStatus();
  }

 private:
  const StepFn step_;
  const ObserveFn observe_;
  int64_t next_ = 0;
};

using Made = absl::StatusOr<std::unique_ptr<RankTrainer>>;

Made Scripted(ScriptedRank::StepFn step, ScriptedRank::ObserveFn observe = nullptr) {
  return std::make_unique<ScriptedRank>(std::move(step), std::move(observe));
}

TrainerUnderTest Trainer(std::function<Made(const TrainerInputs&)> make) {
  return {.name = "scripted", .arithmetic = Arithmetic::kRankOrder, .make = std::move(make)};
}

RunDescription TestRun() { return *ParseRunText("model=probe:4;mode=replicated;world_size=3"); }

absl::StatusOr<CaseResult> RunCaseOf(const TrainerUnderTest& trainer,
                                     const TrainerCaseOptions& options = {}) {
  return RunTrainerCase(trainer, TestRun(), options);
}

std::string ErrorOf(const TrainerUnderTest& trainer, const TrainerCaseOptions& options = {}) {
  const absl::StatusOr<CaseResult> result = RunCaseOf(trainer, options);
  EXPECT_FALSE(result.ok());
  return result.status().ToString();
}

const CheckResult& Check(const CaseResult& result, const std::string& name) {
  for (const CheckResult& check : result.checks) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no check " << name;
  return result.checks.front();
}

// The gradients' only collective in this run.
absl::Status AllReduce(const TrainerInputs& inputs, bool waits = true) {
  // By rank, and for ever: what is not waited for may end after the step.
  static std::vector<std::vector<float>> gradients(3);
  std::vector<float>& gradient = gradients[inputs.rank.value];
  gradient.assign(4, 1.0f);
  Operation operation = {.phase = Phase::kBackward, .micro_batch = 0};
  operation.bucket = 0;
  inputs.log.Label(Purpose::kReduceGradients, operation);
  CollectiveCall call;
  call.kind = CollectiveKind::kAllReduce;
  call.elements = 4;
  call.send = call.recv = gradient.data();
  const absl::StatusOr<CollectiveHandle> handle = inputs.communicator.Start(call);
  if (!handle.ok()) return handle.status();
  return waits ? inputs.communicator.Wait(*handle, absl::Seconds(1)) : absl::OkStatus();
}

TEST(TrainerCaseTest, AnErrorOfAStepNamesTrainerRankStepAndWords) {
  const TrainerUnderTest trainer = Trainer([](const TrainerInputs& inputs) -> Made {
    return Scripted([rank = inputs.rank.value](int64_t step) {
      return rank == 1 && step == 2 ? absl::DataLossError("a bit fell over") : absl::OkStatus();
    });
  });
  EXPECT_THAT(ErrorOf(trainer), AllOf(HasSubstr("DATA_LOSS"), HasSubstr("trainer 'scripted'"),
                                      HasSubstr("rank 1"), HasSubstr("step 2: a bit fell over")));
}

TEST(TrainerCaseTest, AnErrorOfMakeNamesTheRank) {
  const TrainerUnderTest trainer = Trainer([](const TrainerInputs& inputs) -> Made {
    if (inputs.rank.value == 2) return absl::InternalError("no memory for me");
    return Scripted(nullptr);
  });
  EXPECT_THAT(ErrorOf(trainer), AllOf(HasSubstr("rank 2"), HasSubstr("make: no memory for me")));
}

TEST(TrainerCaseTest, AnErrorOfObserveNamesRankAndStep) {
  const TrainerUnderTest trainer = Trainer([](const TrainerInputs& inputs) -> Made {
    return Scripted(nullptr, [rank = inputs.rank.value](RankReport&) {
      return rank == 1 ? absl::UnavailableError("cannot copy") : absl::OkStatus();
    });
  });
  EXPECT_THAT(ErrorOf(trainer), HasSubstr("step 0, rank 1: Observe: cannot copy"));
}

TEST(TrainerCaseTest, ContradictionsOfAReportAreErrors) {
  const TrainerUnderTest trainer = Trainer([](const TrainerInputs&) -> Made {
    return Scripted(nullptr, [](RankReport& report) {
      report.state.push_back({StateClass::kParameter, 0, {0, 5}, {}, -1, 0});
      return absl::OkStatus();
    });
  });
  EXPECT_THAT(ErrorOf(trainer), HasSubstr("5 elements from 0; accepted: a range within its 4"));
}

TEST(TrainerCaseTest, NoTrainerIsAnError) {
  EXPECT_THAT(ErrorOf(Trainer(nullptr)), HasSubstr("has no function `make`"));
  EXPECT_THAT(ErrorOf(Trainer([](const TrainerInputs&) -> Made { return nullptr; })),
              HasSubstr("returned OK and no trainer"));
}

TEST(TrainerCaseTest, AnUnknownCheckIsAnErrorBeforeTheTrainerRuns) {
  const TrainerUnderTest trainer = Trainer([](const TrainerInputs&) -> Made {
    ADD_FAILURE() << "was made";
    return Scripted(nullptr);
  });
  EXPECT_THAT(ErrorOf(trainer, {.checks = {"sharpness"}}), HasSubstr("sharpness"));
}

TEST(TrainerCaseTest, ARefusalOfAllRanksIsAResultWithItsReason) {
  const absl::StatusOr<CaseResult> result = RunCaseOf(Trainer(
      [](const TrainerInputs&) -> Made { return absl::UnimplementedError("no such layer"); }));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict, Verdict::kRefused);
  EXPECT_EQ(result->refusal, "no such layer");
  EXPECT_TRUE(result->checks.empty());
}

TEST(TrainerCaseTest, ARefusalOfSomeRanksIsAnError) {
  const TrainerUnderTest trainer = Trainer([](const TrainerInputs& inputs) -> Made {
    if (inputs.rank.value == 1) return absl::UnimplementedError("odd");
    return Scripted(nullptr);
  });
  EXPECT_THAT(ErrorOf(trainer), HasSubstr("rank 1 refuses the run (odd) and rank 0 does not"));
}

TEST(TrainerCaseTest, ARankThatNeverArrivesIsNamedAtOnce) {
  const TrainerUnderTest trainer = Trainer([](const TrainerInputs& inputs) -> Made {
    return Scripted([inputs](int64_t) {
      return inputs.rank.value == 1 ? absl::OkStatus() : AllReduce(inputs);
    });
  });
  EXPECT_THAT(ErrorOf(trainer), AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("step 0: deadlock"),
                                      HasSubstr("all_reduce"), HasSubstr("not arrived: rank 1")));
}

TEST(TrainerCaseTest, ARankThatComputesForeverIsNamed) {
  const TrainerUnderTest trainer = Trainer([](const TrainerInputs& inputs) -> Made {
    return Scripted([rank = inputs.rank.value](int64_t) {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(800));
      return absl::OkStatus();
    });
  });
  EXPECT_THAT(ErrorOf(trainer, {.step_timeout = absl::Milliseconds(50)}),
              AllOf(HasSubstr("step 0"), HasSubstr("rank 2")));
}

TEST(TrainerCaseTest, ATrainerThatSaysNothingIsNotObservedInAnyCheck) {
  const absl::StatusOr<CaseResult> result =
      RunCaseOf(Trainer([](const TrainerInputs& inputs) -> Made {
        return Scripted([inputs](int64_t) {
          const absl::StatusOr<CollectiveHandle> handle = inputs.communicator.Start({});
          return handle.ok() ? inputs.communicator.Wait(*handle, absl::Seconds(1))
                             : handle.status();
        });
      }));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict, Verdict::kNotObserved);
  EXPECT_EQ(result->checks.size(), 9u);
  for (const CheckResult& check : result->checks) {
    EXPECT_EQ(check.verdict, Verdict::kNotObserved) << check.name;
    EXPECT_NE(check.reason, "") << check.name;
  }
}

TEST(TrainerCaseTest, ThatNobodyCommunicatesNeedsNoWordOfTheTrainer) {
  const absl::StatusOr<CaseResult> result =
      RunCaseOf(Trainer([](const TrainerInputs&) -> Made { return Scripted(nullptr); }));
  ASSERT_TRUE(result.ok()) << result.status();
  for (const CheckResult& check : result->checks) {
    const bool ledger = check.name == "collective_ledger";
    EXPECT_EQ(check.verdict, ledger ? Verdict::kFail : Verdict::kNotObserved) << check.name;
  }
}

TEST(TrainerCaseTest, CollectivesAloneAreJudgedAndTheRestIsNotObserved) {
  const absl::StatusOr<CaseResult> result =
      RunCaseOf(Trainer([](const TrainerInputs& inputs) -> Made {
        return Scripted([inputs](int64_t) { return AllReduce(inputs); });
      }));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict, Verdict::kPass);
  EXPECT_EQ(Check(*result, "collective_ledger").verdict, Verdict::kPass);
  for (const char* name : {"issue_order", "unshard_lifecycle", "peak_memory", "ordering",
                           "numeric_equivalence", "padding", "aggregate_factors", "liveness"}) {
    EXPECT_EQ(Check(*result, name).verdict, Verdict::kNotObserved) << name;
  }
  EXPECT_THAT(Check(*result, "issue_order").reason, HasSubstr("StepLog::Compute"));
}

TEST(TrainerCaseTest, WhatACollectiveWasIsTheCommunicatorsWord) {
  // Without a label nobody knows what it is for; without a wait nobody knows that it ended.
  const auto ledger_of = [](bool labels, bool waits) {
    const absl::StatusOr<CaseResult> result =
        RunCaseOf(Trainer([labels, waits](const TrainerInputs& inputs) -> Made {
          return Scripted([inputs, labels, waits](int64_t) {
            const absl::Status status = AllReduce(inputs, waits);
            if (labels || !status.ok()) return status;
            // One more, of which nothing is told.
            CollectiveCall barrier;
            const absl::StatusOr<CollectiveHandle> handle = inputs.communicator.Start(barrier);
            return handle.ok() ? inputs.communicator.Wait(*handle, absl::Seconds(1))
                               : handle.status();
          });
        }));
    EXPECT_TRUE(result.ok()) << result.status();
    return Check(*result, "collective_ledger").verdict;
  };
  EXPECT_EQ(ledger_of(/*labels=*/true, /*waits=*/true), Verdict::kPass);
  EXPECT_EQ(ledger_of(/*labels=*/false, /*waits=*/true), Verdict::kFail);
  EXPECT_EQ(ledger_of(/*labels=*/true, /*waits=*/false), Verdict::kFail);
}

TEST(TrainerCaseTest, ATensorThatNobodyShowsIsAFailureOfPadding) {
  RunDescription run = *ParseRunText("model=probe:4,2;mode=replicated;world_size=2");
  const TrainerUnderTest trainer = Trainer([](const TrainerInputs&) -> Made {
    return Scripted(nullptr, [](RankReport& report) {
      static const std::vector<float> kValues(4, 0.5f);
      report.state.push_back({StateClass::kParameter, 0, {0, 4}, kValues, -1, 0});
      return absl::OkStatus();
    });
  });
  const absl::StatusOr<CaseResult> result = RunTrainerCase(trainer, run, {.checks = {"padding"}});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->verdict, Verdict::kFail);
  EXPECT_EQ(result->checks[0].violations[0].tensor, "t1");
}

TEST(TrainerCaseTest, RunTextReadsBack) {
  for (const char* line : {"model=mlp:4,3:bias;mode=zero2;world_size=3", "model=probe:4;steps=5"}) {
    const RunDescription run = *ParseRunText(line);
    const absl::StatusOr<RunDescription> again = ParseRunText(RunText(run));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(RunText(*again), RunText(run));
  }
  RunDescription by_hand = TestRun();
  by_hand.model.tensors[0].shape = {2, 3};
  EXPECT_EQ(RunText(by_hand)[0], '{');
  const absl::StatusOr<RunDescription> again = ParseRunText(RunText(by_hand));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->model.tensors[0].shape, by_hand.model.tensors[0].shape);
}

TEST(TrainerCaseTest, RunsOfAnotherKindAreErrors) {
  for (const char* text : {"", "model=nothing", "{", "{\"schema\": \"shardproof.run/99\"}",
                           "model=probe:4;colour=blue"}) {
    EXPECT_FALSE(ParseRunText(text).ok()) << text;
  }
}

}  // namespace
}  // namespace shardproof
