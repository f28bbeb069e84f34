// Observations with holes and lies: each one clear error, or visibly empty.
#include "invariants/suite/trainer_observation.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

// Two ranks that tell of one computation and show three elements of two tensors.
class MergeStepTest : public testing::Test {
 protected:
  MergeStepTest()
      : run_(*ParseRun("model=probe:3,4;mode=full_shard;world_size=2;num_micro_batches=2",
                       ImportModel)) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      logs_.push_back(std::make_unique<StepLog>(Rank{rank}));
      logs_[rank]->AddBuffer({.elements = 6}, /*alive=*/true);
      logs_[rank]->BeginStep();
      logs_[rank]->Compute(Forward());
      reports_[rank].state.push_back({StateClass::kParameter, 0, {0, 3}, values_, 0, 0});
      reports_[rank].updates.push_back({0, 1});
      reports_[rank].loss = 0.5;
    }
  }

  static Operation Forward() {
    Operation forward = {.phase = Phase::kForward, .micro_batch = 0, .unit = 0};
    forward.stage = 0;
    forward.stage_count = 1;
    return forward;
  }

  absl::StatusOr<StepObservation> Merge() const {
    const std::vector<RankStep> ranks = {{&reports_[0], logs_[0].get()},
                                         {&reports_[1], logs_[1].get()}};
    return MergeStep(run_, /*step=*/7, Arithmetic::kRankOrder, ranks);
  }

  // The error of what is there now.
  std::string Error() const {
    const absl::StatusOr<StepObservation> merged = Merge();
    EXPECT_EQ(merged.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(merged.status().message());
  }

  // The error after `change` of what rank 1 shows first.
  std::string ErrorOf(const std::function<void(ShownRange&)>& change) {
    const ShownRange before = reports_[1].state[0];
    change(reports_[1].state[0]);
    const std::string error = Error();
    reports_[1].state[0] = before;
    EXPECT_THAT(error, HasSubstr("step 7, rank 1: "));
    return error;
  }

  // The error when rank 1 logs this computation too.
  std::string ErrorOfCompute(const std::function<void(Operation&)>& change) {
    Operation operation = Forward();
    change(operation);
    logs_[1]->BeginStep();
    logs_[1]->Compute(operation);
    return Error();
  }

  const RunDescription run_;
  const std::vector<float> values_ = {1, 2, 3};
  std::vector<std::unique_ptr<StepLog>> logs_;
  RankReport reports_[2];
};

TEST_F(MergeStepTest, KeepsWhatRanksShowed) {
  const absl::StatusOr<StepObservation> merged = Merge();
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->step, 7);
  EXPECT_FALSE(merged->any_order);
  EXPECT_EQ(merged->losses, (std::vector<double>{0.5, 0.5}));
  ASSERT_EQ(merged->states.size(), 2u);
  EXPECT_EQ(merged->states[1].ranks, (Group{1, 1, 1}));
  EXPECT_EQ(merged->states[1].segments[0].values, values_.data());
  EXPECT_EQ(merged->states[1].bytes, (StateBytes{.parameter = 12, .scalar = 4}));
  ASSERT_EQ(merged->events.size(), 2u);
  EXPECT_EQ(merged->events[1].events[0].kind, EventKind::kCompute);
  EXPECT_EQ(merged->events[1].live_before, std::vector<int32_t>{0});
}

TEST_F(MergeStepTest, StatedBytesGoBeforeShownOnes) {
  reports_[0].bytes = StateBytes{.gradient = 8};
  const absl::StatusOr<StepObservation> merged = Merge();
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->states[0].bytes, (StateBytes{.gradient = 8}));
}

TEST_F(MergeStepTest, NothingToldIsEmptyAndNoError) {
  for (int32_t rank = 0; rank < 2; ++rank) {
    reports_[rank] = RankReport();
    logs_[rank]->BeginStep();
  }
  const absl::StatusOr<StepObservation> merged = Merge();
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_TRUE(merged->states.empty());
  // Nobody communicated, and that is known.
  ASSERT_EQ(merged->events.size(), 2u);
  EXPECT_TRUE(merged->events[0].events.empty());
  EXPECT_TRUE(merged->losses.empty());
  EXPECT_TRUE(merged->clips.empty());
}

TEST_F(MergeStepTest, CollectivesOfWhichNothingIsToldAreNotObserved) {
  for (int32_t rank = 0; rank < 2; ++rank) {
    logs_[rank]->BeginStep();
    logs_[rank]->CollectiveStarted({});
  }
  const absl::StatusOr<StepObservation> merged = Merge();
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_TRUE(merged->events.empty());
}

TEST_F(MergeStepTest, WhatOnlySomeRanksToldNamesTheRankWithout) {
  reports_[1].loss.reset();
  EXPECT_THAT(Error(), HasSubstr("step 7: rank 1 told no loss, and rank 0 did"));
  reports_[1].loss = 0.5;
  reports_[1].clip = ClipObservation();
  EXPECT_THAT(Error(), HasSubstr("rank 0 told no clip, and rank 1 did"));
  reports_[1].clip.reset();
  reports_[1].state.clear();
  reports_[1].updates.clear();
  EXPECT_THAT(Error(), HasSubstr("rank 1 told no state"));
  reports_[1] = reports_[0];
  logs_[1]->BeginStep();
  EXPECT_THAT(Error(), HasSubstr("rank 1 told no operations"));
}

TEST_F(MergeStepTest, AMissingRankIsAnError) {
  const std::vector<RankStep> ranks = {{&reports_[0], logs_[0].get()}};
  const absl::StatusOr<StepObservation> merged = MergeStep(run_, 7, Arithmetic::kRankOrder, ranks);
  EXPECT_THAT(std::string(merged.status().message()), HasSubstr("1 ranks were shown; accepted: 2"));
}

TEST_F(MergeStepTest, RangesLieWithinTheirTensors) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(ErrorOf([](ShownRange& shown) {
                shown.range = {1, 3};
              }),
              HasSubstr("parameter of t0, 3 elements from 1; accepted: a range within its 3"));
  EXPECT_THAT(ErrorOf([](ShownRange& shown) { shown.range = {-1, 2}; }), HasSubstr("from -1"));
  EXPECT_THAT(ErrorOf([](ShownRange& shown) { shown.range = {1, -2}; }), HasSubstr("-2 elements"));
  EXPECT_THAT(ErrorOf([](ShownRange& shown) {
                shown.range = {kMost, kMost};
              }),
              HasSubstr("a range within"));
  EXPECT_THAT(ErrorOf([](ShownRange& shown) { shown.tensor = 2; }),
              HasSubstr("state of tensor 2; accepted: -1 to 1"));
  EXPECT_THAT(ErrorOf([](ShownRange& shown) { shown.tensor = -2; }), HasSubstr("tensor -2"));
  EXPECT_THAT(ErrorOf([](ShownRange& shown) {
                shown.tensor = -1;
                shown.range.first = -1;
              }),
              HasSubstr("parameter of padding"));
}

TEST_F(MergeStepTest, ValuesAreAsLongAsTheirRange) {
  EXPECT_THAT(ErrorOf([](ShownRange& shown) { shown.values = shown.values.subspan(1); }),
              HasSubstr("with 2 values"));
  EXPECT_THAT(ErrorOf([](ShownRange& shown) {
                shown.values = absl::Span<const float>(static_cast<const float*>(nullptr), 3);
              }),
              HasSubstr("with null values"));
}

TEST_F(MergeStepTest, ValuesMayBeLeftOut) {
  reports_[1].state[0].values = {};
  const absl::StatusOr<StepObservation> merged = Merge();
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->states[1].segments[0].values, nullptr);
}

TEST_F(MergeStepTest, StateLiesWithinItsBuffer) {
  EXPECT_THAT(ErrorOf([](ShownRange& shown) { shown.buffer = 1; }), HasSubstr("buffer 1"));
  EXPECT_THAT(ErrorOf([](ShownRange& shown) { shown.buffer_offset = 4; }),
              HasSubstr("at offset 4 of buffer 0; accepted: a place within its 6 elements"));
  EXPECT_THAT(ErrorOf([](ShownRange& shown) { shown.buffer_offset = -1; }),
              HasSubstr("at offset -1"));
}

TEST_F(MergeStepTest, CountersAreOneATensor) {
  reports_[1].updates = {{2, 1}};
  EXPECT_THAT(Error(), HasSubstr("a step counter of tensor 2; accepted: 0 to 1"));
  reports_[1].updates = {{0, -1}};
  EXPECT_THAT(Error(), HasSubstr("-1 updates of t0"));
  reports_[1].updates = {{0, 1}, {0, 1}};
  EXPECT_THAT(Error(), HasSubstr("a second step counter of t0"));
}

TEST_F(MergeStepTest, BytesAreNotNegative) {
  reports_[1].bytes = StateBytes{.padding = -4};
  EXPECT_THAT(Error(), HasSubstr("-4 bytes of state"));
}

TEST_F(MergeStepTest, OperationsAreOfTheRun) {
  EXPECT_THAT(ErrorOfCompute([](Operation& operation) { operation.stage_count = 3; }),
              HasSubstr("operation 0 (compute): 3 stages from 0"));
  EXPECT_THAT(ErrorOfCompute([](Operation& operation) { operation.stage = -1; }),
              HasSubstr("1 stages from -1"));
  EXPECT_THAT(ErrorOfCompute([](Operation& operation) { operation.unit = 2; }),
              HasSubstr("unit 2; accepted: -1 to 1"));
  EXPECT_THAT(ErrorOfCompute([](Operation& operation) { operation.micro_batch = 2; }),
              HasSubstr("micro-batch 2"));
  EXPECT_THAT(ErrorOfCompute([](Operation& operation) { operation.bucket = 9; }),
              HasSubstr("bucket 9"));
  EXPECT_THAT(ErrorOfCompute([](Operation& operation) { operation.tensor = -7; }),
              HasSubstr("tensor -7"));
}

TEST_F(MergeStepTest, AccessesAreOfBuffers) {
  EXPECT_THAT(ErrorOfCompute([](Operation& operation) {
                operation.accesses = {{5, AccessKind::kRead, {0, 1}, 0}};
              }),
              HasSubstr("read of buffer 5; accepted: 0 to 0"));
  EXPECT_THAT(ErrorOfCompute([](Operation& operation) {
                operation.accesses = {{0, AccessKind::kWrite, {5, 2}, -1}};
              }),
              HasSubstr("write of buffer 0, 2 elements from 5"));
  EXPECT_THAT(ErrorOfCompute([](Operation& operation) {
                operation.accesses = {{0, AccessKind::kRead, {0, 6}, -5}};
              }),
              HasSubstr("at version -5"));
}

TEST_F(MergeStepTest, ALabelIsFollowedByItsCollective) {
  logs_[1]->Label(Purpose::kReduceGradients, {});
  EXPECT_THAT(Error(), HasSubstr("rank 1: a label was given and no collective was started"));
  logs_[1]->Label(Purpose::kReduceGradients, {});
  logs_[1]->CollectiveStarted({});
  EXPECT_THAT(Error(), HasSubstr("a label was given"));
}

// A local operation comes after the collectives that were waited for; a collective after what
// was done before it was started.
TEST(StepLogTest, DerivesWaitsFromTheOrderOfTheProgram) {
  StepLog log(Rank{0});
  log.BeginStep();
  log.Local({});                                     // 0
  const int32_t first = log.CollectiveStarted({});   // 1
  const int32_t second = log.CollectiveStarted({});  // 2
  log.Local({});                                     // 3: beside both
  log.CollectiveDone(second);
  log.CollectiveDone(first);
  log.CollectiveDone(first);
  log.Local({});  // 4
  log.Local({});  // 5
  const RankEvents& events = log.events();
  const auto waits = [&](int32_t event) {
    const Event& of = events.events[event];
    return std::vector<int32_t>(events.waits.begin() + of.first_wait,
                                events.waits.begin() + of.first_wait + of.wait_count);
  };
  EXPECT_EQ(waits(0), std::vector<int32_t>{});
  EXPECT_EQ(waits(1), std::vector<int32_t>{0});
  EXPECT_EQ(waits(2), std::vector<int32_t>{0});
  EXPECT_EQ(waits(3), std::vector<int32_t>{});
  EXPECT_EQ(waits(4), (std::vector<int32_t>{2, 1}));
  EXPECT_EQ(waits(5), std::vector<int32_t>{});
  EXPECT_TRUE(events.events[1].completed);
}

TEST(StepLogTest, RemembersWhatIsAlive) {
  StepLog log(Rank{0});
  const int32_t kept = log.AddBuffer({.elements = 1}, /*alive=*/true);
  const int32_t made = log.AddBuffer({.elements = 1}, /*alive=*/false);
  log.BeginStep();
  EXPECT_EQ(log.events().live_before, std::vector<int32_t>{kept});
  Operation operation;
  operation.accesses = {{kept, AccessKind::kFree, {0, 1}}, {made, AccessKind::kAllocate, {0, 1}}};
  log.Local(operation);
  EXPECT_EQ(log.events().accesses[0].kind, AccessKind::kAllocate);
  log.BeginStep();
  EXPECT_EQ(log.events().live_before, std::vector<int32_t>{made});
}

}  // namespace
}  // namespace shardproof
