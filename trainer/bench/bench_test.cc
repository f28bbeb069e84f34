// The order of measurements, and what becomes of them, on a machine that is made up: its times are
// chosen so that what a report must say is known.
#include "trainer/bench/bench.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a machine with two local ranks was asked for, one letter a call: S step, F floor, X watched
// step, C copies, B bus, P prepare, p gone.
struct Script {
  std::string calls;
  int steps = 0;
  int fails_at_step = -1;
  std::string exposed_missing;          // why, of the watched steps below; none: all are known
  std::vector<int> unknown_steps = {};  // watched steps, from 0 on; empty: all of them
  int watched = 0;
  bool has_floor = true;
  std::optional<TypicalCollective> bus_call;
};

class FakeSubject : public BenchSubject {
 public:
  explicit FakeSubject(Script& script) : script_(script) {}
  ~FakeSubject() override { script_.calls += "p"; }

  // Step i takes i ms on the first rank and 2 i on the second.
  absl::StatusOr<std::vector<double>> Step() override {
    script_.calls += "S";
    const double ms = script_.steps++;
    if (script_.steps - 1 == script_.fails_at_step) return absl::InternalError("a broken GPU");
    return std::vector<double>{ms, 2 * ms};
  }
  absl::StatusOr<std::vector<double>> Floor() override {
    script_.calls += "F";
    if (!script_.has_floor) return std::vector<double>();
    return std::vector<double>{1.0, 0.5};
  }
  absl::StatusOr<ExposedTimes> ExposedStep() override {
    script_.calls += "X";
    const std::vector<int>& unknown = script_.unknown_steps;
    const bool known = !unknown.empty() &&
                       std::find(unknown.begin(), unknown.end(), script_.watched) == unknown.end();
    ++script_.watched;
    if (!script_.exposed_missing.empty() && !known) {
      return ExposedTimes{.missing = script_.exposed_missing};
    }
    return ExposedTimes{.ms = {0.25, 0.75}};
  }
  std::vector<BenchMemory> memory() const override {
    return {{.rank = 0, .arena_steady = 4 << 20}, {.rank = 1, .arena_steady = 5 << 20}};
  }

 private:
  Script& script_;
};

class FakeMachine : public BenchMachine {
 public:
  explicit FakeMachine(Script& script) : script_(script) {}
  absl::StatusOr<BenchMachineFacts> Facts() override {
    return BenchMachineFacts{.device = "a device"};
  }
  absl::StatusOr<std::vector<double>> CopyBandwidth() override {
    script_.calls += "C";
    return std::vector<double>{1000.0};
  }
  absl::StatusOr<std::vector<double>> BusBandwidth(const TypicalCollective& call) override {
    script_.calls += "B";
    script_.bus_call = call;
    return std::vector<double>{100.0};
  }
  absl::StatusOr<std::unique_ptr<BenchSubject>> Prepare(const RunDescription&) override {
    script_.calls += "P";
    return std::make_unique<FakeSubject>(script_);
  }

 private:
  Script& script_;
};

// Says it is `rank` of two processes. Rank 0 receives its own samples and `other`.
class FakeJob : public Job {
 public:
  FakeJob(int32_t rank, std::string other) : rank_(rank), other_(std::move(other)) {}
  Rank rank() const override { return Rank{rank_}; }
  WorldSize world_size() const override { return WorldSize{2}; }
  absl::Status Set(absl::string_view, absl::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::optional<std::string>> Get(absl::string_view) override {
    return std::optional<std::string>();
  }
  absl::StatusOr<std::string> Await(absl::string_view, absl::string_view, absl::Duration) override {
    return absl::DeadlineExceededError("nobody sets it");
  }
  absl::StatusOr<std::vector<std::string>> Gather(std::string bytes, absl::Duration) override {
    if (rank_ != 0) return std::vector<std::string>();
    return std::vector<std::string>{std::move(bytes), other_};
  }
  absl::StatusOr<std::vector<Rank>> GoneRanks() override { return std::vector<Rank>(); }

 private:
  const int32_t rank_;
  const std::string other_;
};

BenchOptions Short() {
  BenchOptions options;
  options.warmup_steps = 1;
  options.bench_steps = 3;
  options.witness_steps = 2;
  options.engine = "cuda";
  return options;
}

RunDescription SmallRun(Mode mode = Mode::kFullShard, int32_t ranks = 2) {
  return TestRun("mlp:2x8", mode, ranks);
}

absl::StatusOr<std::optional<BenchReport>> Bench(const std::vector<RunDescription>& runs,
                                                 Script& script, Job* job = nullptr) {
  FakeMachine machine(script);
  return RunBench(runs, machine, job, Short());
}

TEST(Bench, MeasuresInPairsAfterWarmUp) {
  Script script;
  const auto report = Bench({SmallRun()}, script);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_TRUE(report->has_value());
  EXPECT_EQ(script.calls,
            "CBP"
            "SSF"
            "SSFSSFSSF"
            "XX"
            "p");
  ASSERT_EQ((*report)->modes.size(), 1u);
  const ModeReport& mode = (*report)->modes[0];
  // Timed are steps 3, 5 and 7, of the second rank.
  EXPECT_EQ(mode.step_ms.samples, 3);
  EXPECT_EQ(mode.step_ms.median, 10.0);
  EXPECT_EQ(mode.floor_ms->median, 1.0);
  EXPECT_EQ(mode.ratio_to_floor->median, 10.0);
  EXPECT_TRUE(mode.ratio_to_floor->unstable);
  EXPECT_EQ(mode.exposed_ms->median, 0.75);
  EXPECT_EQ(StepsOfBench(Short()), 12);
}

TEST(Bench, ModesComeOneAfterTheOther) {
  Script script;
  const auto report = Bench({SmallRun(Mode::kReplicated), SmallRun(Mode::kZero2)}, script);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(script.calls, "CBPSSFSSFSSFSSFXXpCBPSSFSSFSSFSSFXXp");
  EXPECT_EQ((*report)->modes[1].run.sharding.mode, Mode::kZero2);
}

TEST(Bench, TheBusIsMeasuredWithTheRunsOwnCollective) {
  Script script;
  ASSERT_TRUE(Bench({SmallRun(Mode::kReplicated)}, script).ok());
  ASSERT_TRUE(script.bus_call.has_value());
  EXPECT_EQ(script.bus_call->kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(script.bus_call->elements, 128);
}

TEST(Bench, OneRankHasNoBus) {
  Script script;
  const auto report = Bench({SmallRun(Mode::kFullShard, 1)}, script);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(script.calls.substr(0, 2), "CP");
  EXPECT_FALSE((*report)->modes[0].unavoidable.bus_gb_per_s.has_value());
}

TEST(Bench, WhatCannotBeObservedIsNotThere) {
  Script script;
  script.exposed_missing = "nothing is seen";
  const auto report = Bench({SmallRun()}, script);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE((*report)->modes[0].exposed_ms.has_value());
  EXPECT_EQ((*report)->modes[0].exposed_missing, "nothing is seen");
}

TEST(Bench, ExposedTimesOfSomeStepsAreNoFigure) {
  // A median of the one step that was seen would look as steady as any.
  for (int unknown : {0, 1}) {
    Script script;
    script.exposed_missing = "records came late";
    script.unknown_steps = {unknown};
    const auto report = Bench({SmallRun()}, script);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_FALSE((*report)->modes[0].exposed_ms.has_value());
    EXPECT_EQ((*report)->modes[0].exposed_missing, "in 1 of 2 steps records came late");
    // The other ranks make the second step too.
    EXPECT_EQ(script.watched, 2);
  }
}

TEST(Bench, OneModeWithoutExposedTimesLeavesTheOthersTheirs) {
  Script script;
  script.exposed_missing = "records came late";
  script.unknown_steps = {3};  // the second one of the second mode
  const auto report = Bench({SmallRun(Mode::kReplicated), SmallRun(Mode::kZero2)}, script);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ((*report)->modes[0].exposed_ms->samples, 2);
  EXPECT_FALSE((*report)->modes[1].exposed_ms.has_value());
}

TEST(Bench, AProbeHasNoFloor) {
  Script script;
  script.has_floor = false;
  const auto report = Bench({TestRun("probe:10x3,7", Mode::kZero2, 2)}, script);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE((*report)->modes[0].floor_ms.has_value());
  EXPECT_FALSE((*report)->modes[0].ratio_to_floor.has_value());
}

TEST(Bench, AMissingFloorIsAnError) {
  Script script;
  script.has_floor = false;
  const auto report = Bench({SmallRun()}, script);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("0 replays of 5 products"));
}

TEST(Bench, AnErrorNamesTheModeAndEndsTheBenchmark) {
  Script script;
  script.fails_at_step = 4;
  const auto report = Bench({SmallRun(Mode::kZero2), SmallRun()}, script);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(report.status().message()), "zero2: a broken GPU");
  EXPECT_EQ(script.calls, "CBPSSFSSFSp");
}

TEST(Bench, WhatCannotBePlannedIsRefused) {
  RunDescription run = SmallRun(Mode::kFullShard, 4);
  run.sharding.shard_group_size = 2;
  Script script;
  EXPECT_EQ(Bench({run}, script).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(script.calls, "");
  EXPECT_FALSE(Bench({}, script).ok());
}

TEST(Bench, RankZeroReportsForAllProcesses) {
  ModeSamples other;
  other.step_ms = {20, 20, 20};
  other.floor_ms = {2, 2, 2};
  other.exposed_ms = {3, 3};
  other.copy_gb_per_s = {500};
  other.bus_gb_per_s = {200};
  other.memory = {{.rank = 2}};
  FakeJob job(0, EncodeSamples(other));
  Script script;
  const auto report = Bench({SmallRun()}, script, &job);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_TRUE(report->has_value());
  EXPECT_EQ((*report)->processes, 2);
  const ModeReport& mode = (*report)->modes[0];
  EXPECT_EQ(mode.step_ms.median, 20.0);
  EXPECT_EQ(mode.floor_ms->median, 2.0);
  EXPECT_EQ(mode.exposed_ms->median, 3.0);
  EXPECT_EQ(mode.unavoidable.copy_gb_per_s.median, 500.0);
  EXPECT_EQ(mode.unavoidable.bus_gb_per_s->median, 100.0);
  EXPECT_EQ(mode.memory.size(), 3u);
}

TEST(Bench, AProcessThatMissedAStepIsHeard) {
  ModeSamples other;
  other.step_ms = {20, 20, 20};
  other.floor_ms = {2, 2, 2};
  other.exposed_missing = "in 1 of 2 steps records came late";
  other.copy_gb_per_s = {500};
  other.bus_gb_per_s = {200};
  FakeJob job(0, EncodeSamples(other));
  Script script;
  const auto report = Bench({SmallRun()}, script, &job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE((*report)->modes[0].exposed_ms.has_value());
  EXPECT_EQ((*report)->modes[0].exposed_missing, "process 1: in 1 of 2 steps records came late");
}

TEST(Bench, OtherRanksReportNothing) {
  FakeJob job(1, "");
  Script script;
  const auto report = Bench({SmallRun()}, script, &job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->has_value());
}

TEST(Bench, SamplesThatDoNotFitAreAnError) {
  ModeSamples other;
  other.step_ms = {20};
  FakeJob job(0, EncodeSamples(other));
  Script script;
  EXPECT_THAT(std::string(Bench({SmallRun()}, script, &job).status().message()),
              HasSubstr("3 samples of step_ms, another 1"));
  FakeJob garbled(0, "step_ms 1 two\n");
  EXPECT_THAT(std::string(Bench({SmallRun()}, script, &garbled).status().message()),
              HasSubstr("'step_ms 1 two'"));
}

}  // namespace
}  // namespace shardproof
