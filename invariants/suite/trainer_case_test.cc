// Trainers that fail, refuse, hang or say little: what RunTrainerCase makes of each.
#include "invariants/suite/trainer_case.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/report/failure_text.h"
#include "invariants/suite/run_case.h"
#include "invariants/suite/scripted_trainer.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  const TrainerUnderTest trainer = ScriptedTrainer([](const TrainerInputs& inputs) -> Made {
    return Scripted([rank = inputs.rank.value](int64_t step) {
      return rank == 1 && step == 2 ? absl::DataLossError("a bit fell over") : absl::OkStatus();
    });
  });
  EXPECT_THAT(ErrorOf(trainer), AllOf(HasSubstr("DATA_LOSS"), HasSubstr("trainer 'scripted'"),
                                      HasSubstr("rank 1"), HasSubstr("step 2: a bit fell over")));
}

TEST(TrainerCaseTest, AnErrorOfMakeNamesTheRank) {
  const TrainerUnderTest trainer = ScriptedTrainer([](const TrainerInputs& inputs) -> Made {
    if (inputs.rank.value == 2) return absl::InternalError("no memory for me");
    return Scripted(nullptr);
  });
  EXPECT_THAT(ErrorOf(trainer), AllOf(HasSubstr("rank 2"), HasSubstr("make: no memory for me")));
}

TEST(TrainerCaseTest, AnErrorOfObserveNamesRankAndStep) {
  const TrainerUnderTest trainer = ScriptedTrainer([](const TrainerInputs& inputs) -> Made {
    return Scripted(nullptr, [rank = inputs.rank.value](RankReport&) {
      return rank == 1 ? absl::UnavailableError("cannot copy") : absl::OkStatus();
    });
  });
  EXPECT_THAT(ErrorOf(trainer), HasSubstr("step 0, rank 1: Observe: cannot copy"));
}

TEST(TrainerCaseTest, ContradictionsOfAReportAreErrors) {
  const TrainerUnderTest trainer = ScriptedTrainer([](const TrainerInputs&) -> Made {
    return Scripted(nullptr, [](RankReport& report) {
      report.state.push_back({StateClass::kParameter, 0, {0, 5}, {}, -1, 0});
      return absl::OkStatus();
    });
  });
  EXPECT_THAT(ErrorOf(trainer), HasSubstr("5 elements from 0; accepted: a range within its 4"));
}

TEST(TrainerCaseTest, NoTrainerIsAnError) {
  EXPECT_THAT(ErrorOf(ScriptedTrainer(nullptr)), HasSubstr("has no function `make`"));
  EXPECT_THAT(ErrorOf(ScriptedTrainer([](const TrainerInputs&) -> Made { return nullptr; })),
              HasSubstr("returned OK and no trainer"));
}

TEST(TrainerCaseTest, AnUnknownCheckIsAnErrorBeforeTheTrainerRuns) {
  const TrainerUnderTest trainer = ScriptedTrainer([](const TrainerInputs&) -> Made {
    ADD_FAILURE() << "was made";
    return Scripted(nullptr);
  });
  EXPECT_THAT(ErrorOf(trainer, {.checks = {"sharpness"}}), HasSubstr("sharpness"));
}

TEST(TrainerCaseTest, ARefusalOfAllRanksIsAResultWithItsReason) {
  const absl::StatusOr<CaseResult> result = RunCaseOf(ScriptedTrainer(
      [](const TrainerInputs&) -> Made { return absl::UnimplementedError("no such layer"); }));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict, Verdict::kRefused);
  EXPECT_EQ(result->refusal, "no such layer");
  EXPECT_TRUE(result->checks.empty());
}

TEST(TrainerCaseTest, ARefusalOfSomeRanksIsAnError) {
  const TrainerUnderTest trainer = ScriptedTrainer([](const TrainerInputs& inputs) -> Made {
    if (inputs.rank.value == 1) return absl::UnimplementedError("odd");
    return Scripted(nullptr);
  });
  EXPECT_THAT(ErrorOf(trainer), HasSubstr("rank 1 refuses the run (odd) and rank 0 does not"));
}

TEST(TrainerCaseTest, ARankThatNeverArrivesIsNamedAtOnce) {
  const TrainerUnderTest trainer = ScriptedTrainer([](const TrainerInputs& inputs) -> Made {
    return Scripted([inputs](int64_t) {
      return inputs.rank.value == 1 ? absl::OkStatus() : AllReduce(inputs);
    });
  });
  EXPECT_THAT(ErrorOf(trainer), AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("step 0: deadlock"),
                                      HasSubstr("all_reduce"), HasSubstr("not arrived: rank 1")));
}

TEST(TrainerCaseTest, ARankThatComputesForeverIsNamed) {
  // Ends after the verdict, not by the clock; the bound only keeps a broken test from hanging.
  std::promise<void> judged;
  const std::shared_future<void> end = judged.get_future().share();
  const TrainerUnderTest trainer = ScriptedTrainer([end](const TrainerInputs& inputs) -> Made {
    return Scripted([end, rank = inputs.rank.value](int64_t) {
      if (rank == 2) end.wait_for(std::chrono::seconds(30));
      return absl::OkStatus();
    });
  });
  EXPECT_THAT(ErrorOf(trainer, {.step_timeout = absl::Milliseconds(50)}),
              AllOf(HasSubstr("step 0"), HasSubstr("rank 2")));
  judged.set_value();
}

TEST(TrainerCaseTest, ATrainerThatSaysNothingIsNotObservedInAnyCheck) {
  const absl::StatusOr<CaseResult> result =
      RunCaseOf(ScriptedTrainer([](const TrainerInputs& inputs) -> Made {
        return Scripted([inputs](int64_t) { return Meet(inputs); });
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
      RunCaseOf(ScriptedTrainer([](const TrainerInputs&) -> Made { return Scripted(nullptr); }));
  ASSERT_TRUE(result.ok()) << result.status();
  for (const CheckResult& check : result->checks) {
    const bool ledger = check.name == "collective_ledger";
    EXPECT_EQ(check.verdict, ledger ? Verdict::kFail : Verdict::kNotObserved) << check.name;
  }
}

TEST(TrainerCaseTest, CollectivesAloneAreJudgedAndTheRestIsNotObserved) {
  const absl::StatusOr<CaseResult> result =
      RunCaseOf(ScriptedTrainer([](const TrainerInputs& inputs) -> Made {
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
        RunCaseOf(ScriptedTrainer([labels, waits](const TrainerInputs& inputs) -> Made {
          return Scripted([inputs, labels, waits](int64_t) {
            const absl::Status status = AllReduce(inputs, waits);
            if (labels || !status.ok()) return status;
            return Meet(inputs);  // one more, of which nothing is told
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
  const TrainerUnderTest trainer = ScriptedTrainer([](const TrainerInputs&) -> Made {
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

// --- padding, as sharded_trainer.h asks for it ---

// zero2 of 7 elements on 5 ranks: parts of 2, so that rank 3 holds one element and one of padding,
// and rank 4 padding only.
constexpr int64_t kElements = 7, kPart = 2, kPadded = 10;

// What the trainer takes the number of a buffer to be.
enum class Buffers : uint8_t { kTold, kNotTold };
using PaddingFill = std::function<float(int32_t buffer)>;

// Stage 2 in short: reduces and gathers over padded buffers, updates its own elements only.
class PaddedRank : public RankTrainer {
 public:
  PaddedRank(const TrainerInputs& inputs, Buffers buffers, const PaddingFill& fill)
      : inputs_(inputs), own_(Mine(inputs.rank)) {
    for (auto [flat, role, elements] :
         {std::tuple(&parameter_, BufferRole::kParameter, kPadded),
          std::tuple(&gradient_, BufferRole::kUnreducedGradient, kPadded),
          std::tuple(&reduced_, BufferRole::kGradient, kPart),
          std::tuple(&m_, BufferRole::kOptimizerState, kPart),
          std::tuple(&v_, BufferRole::kOptimizerState, kPart)}) {
      if (buffers == Buffers::kTold) {
        flat->id = inputs.log.AddBuffer({.role = role, .elements = elements}, /*alive=*/true);
      }
      flat->values.assign(elements, fill(flat->id));
    }
    inputs.initial_values.Fill(0, {0, kElements}, parameter_.values.data());
    std::fill_n(m_.values.begin(), own_.count, 0.0f);
    std::fill_n(v_.values.begin(), own_.count, 0.0f);
  }

  absl::Status Step() override {
    std::fill_n(gradient_.values.begin(), kElements, 1.0f);
    absl::Status status = Run(CollectiveKind::kReduceScatter, gradient_.values.data(), reduced_);
    if (!status.ok()) return status;
    for (int64_t i = 0; i < own_.count; ++i) {
      parameter_.values[own_.first + i] -= 0.01f * reduced_.values[i];
    }
    const float* part = parameter_.values.data() + inputs_.rank.value * kPart;
    return Run(CollectiveKind::kAllGather, part, parameter_);
  }

  absl::Status Observe(RankReport& report) override {
    Show(StateClass::kParameter, {0, kElements}, parameter_, report);
    Show(StateClass::kReducedGradient, own_, reduced_, report);
    Show(StateClass::kExpAvg, own_, m_, report);
    Show(StateClass::kExpAvgSq, own_, v_, report);
    return absl::OkStatus();
  }

 private:
  struct Flat {
    int32_t id = -1;
    std::vector<float> values;
  };

  static ElementRange Mine(Rank rank) {
    const int64_t first = std::min(kElements, rank.value * kPart);
    return {first, std::min(kElements, first + kPart) - first};
  }

  absl::Status Run(CollectiveKind kind, const float* send, Flat& to) {
    CollectiveCall call;
    call.kind = kind;
    call.elements = kPadded;
    call.send = send;
    call.recv = to.values.data();
    const absl::StatusOr<CollectiveHandle> handle = inputs_.communicator.Start(call);
    if (!handle.ok()) return handle.status();
    return inputs_.communicator.Wait(*handle, absl::Seconds(1));
  }

  static void Show(StateClass state, ElementRange range, const Flat& flat, RankReport& report) {
    const absl::Span<const float> values = flat.values;
    const int64_t padding = static_cast<int64_t>(values.size()) - range.count;
    report.state.push_back({state, 0, range, values.first(range.count), flat.id, 0});
    report.state.push_back(
        {state, -1, {range.count, padding}, values.last(padding), flat.id, range.count});
  }

  const TrainerInputs inputs_;
  const ElementRange own_;
  Flat parameter_, gradient_, reduced_, m_, v_;
};

CheckResult PaddingOf(Buffers buffers, const PaddingFill& fill) {
  const RunDescription run = *ParseRunText("model=probe:7;mode=zero2;world_size=5");
  const absl::StatusOr<CaseResult> result =
      RunTrainerCase(ScriptedTrainer([=](const TrainerInputs& inputs) -> Made {
                       return std::make_unique<PaddedRank>(inputs, buffers, fill);
                     }),
                     run, {.checks = {"padding"}});
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->checks.at(0) : CheckResult();
}

TEST(TrainerCaseTest, PaddingFilledAsDocumentedPassesOnUnevenShards) {
  for (const Buffers buffers : {Buffers::kTold, Buffers::kNotTold}) {
    const CheckResult result = PaddingOf(buffers, PaddingValue);
    EXPECT_EQ(result.verdict, Verdict::kPass) << FailureText(result);
    EXPECT_EQ(result.reason, "");  // values were shown
  }
}

TEST(TrainerCaseTest, PaddingFilledOtherwiseFails) {
  const PaddingFill zero = [](int32_t) { return 0.0f; };
  const PaddingFill any_nan = [](int32_t) { return std::numeric_limits<float>::quiet_NaN(); };
  const PaddingFill of_another_buffer = [](int32_t buffer) { return PaddingValue(buffer + 1); };
  for (const Buffers buffers : {Buffers::kTold, Buffers::kNotTold}) {
    EXPECT_EQ(PaddingOf(buffers, zero).verdict, Verdict::kFail);
    EXPECT_EQ(PaddingOf(buffers, any_nan).verdict, Verdict::kFail);
  }
  EXPECT_EQ(PaddingOf(Buffers::kTold, of_another_buffer).verdict, Verdict::kFail);
  // Without buffers any number will do.
  EXPECT_EQ(PaddingOf(Buffers::kNotTold, of_another_buffer).verdict, Verdict::kPass);
}

TEST(TrainerCaseTest, RunLineReadsBack) {
  for (const char* line : {"model=mlp:4,3:bias;mode=zero2;world_size=3", "model=probe:4;steps=5"}) {
    const RunDescription run = *ParseRunText(line);
    const absl::StatusOr<RunDescription> again = ParseRunText(RunLine(run));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(RunLine(*again), RunLine(run));
  }
  RunDescription by_hand = TestRun();
  by_hand.model.tensors[0].shape = {2, 3};
  EXPECT_EQ(RunLine(by_hand)[0], '{');
  const absl::StatusOr<RunDescription> again = ParseRunText(RunLine(by_hand));
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
