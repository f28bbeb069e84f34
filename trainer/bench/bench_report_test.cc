// The JSON is read by scripts and the table by people: fields, units and marks are checked on
// samples whose figures are known.
#include "trainer/bench/bench_report.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunDescription Study(int32_t ranks) {
  RunDescription run = TestRun("mlp:8x2048", Mode::kFullShard, ranks);
  run.data.micro_batch_size = 1024;
  return run;
}

ModeSamples Samples() {
  ModeSamples samples;
  samples.step_ms = {5.0, 5.1, 4.9};
  samples.floor_ms = {4.0, 4.0, 2.0};
  samples.exposed_ms = {0.5, 0.25, 0.75};
  samples.copy_gb_per_s = {4000, 4000};
  samples.bus_gb_per_s = {150, 150};
  samples.memory = {{.rank = 0,
                     .arena_steady = 336 << 20,
                     .arena_total = 404 << 20,
                     .plan_peak = 400 << 20,
                     .workspace = 32 << 20,
                     .driver_steady = -1,
                     .driver_peak = 406 << 20}};
  return samples;
}

BenchReport Report(const RunDescription& run, const ModeSamples& samples) {
  BenchReport report;
  report.engine = "cuda";
  report.machine = {"NVIDIA H200", "13.0", "13.0", "13.1.0", "2.28.9"};
  report.world_size = run.sharding.world_size.value;
  report.warmup_steps = 10;
  report.bench_steps = 3;
  report.witness_steps = 3;
  absl::StatusOr<ModeReport> mode = MakeModeReport(run, samples);
  EXPECT_TRUE(mode.ok()) << mode.status();
  if (mode.ok()) report.modes.push_back(*mode);
  return report;
}

nlohmann::json Json(const BenchReport& report) { return nlohmann::json::parse(BenchJson(report)); }

TEST(BenchJson, SaysOnWhatItWasMeasured) {
  const nlohmann::json json = Json(Report(Study(2), Samples()));
  EXPECT_EQ(json["schema"], "shardproof.bench/1");
  EXPECT_EQ(json["engine"], "cuda");
  EXPECT_EQ(json["device"], "NVIDIA H200");
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["processes"], 1);
  EXPECT_EQ(json["tf32"], false);
  EXPECT_EQ(json["versions"]["cuda_runtime"], "13.0");
  EXPECT_EQ(json["versions"]["cuda_driver"], "13.0");
  EXPECT_EQ(json["versions"]["cublas"], "13.1.0");
  EXPECT_EQ(json["versions"]["nccl"], "2.28.9");
  EXPECT_EQ(json["warmup_steps"], 10);
  EXPECT_EQ(json["bench_steps"], 3);
  EXPECT_EQ(json["witness_steps"], 3);
  ASSERT_EQ(json["modes"].size(), 1u);
  EXPECT_EQ(json["modes"][0]["mode"], "full_shard");
  EXPECT_EQ(json["modes"][0]["prefetch"], "backward_pre");
  EXPECT_EQ(json["modes"][0]["layout"], "flat");
  EXPECT_THAT(json["modes"][0]["run"].get<std::string>(), HasSubstr("mlp:8x2048"));
}

TEST(BenchJson, HasTheFiguresOfAMode) {
  const nlohmann::json mode = Json(Report(Study(2), Samples()))["modes"][0];
  EXPECT_EQ(mode["median_ms"], 5.0);
  EXPECT_NEAR(mode["p95_ms"], 5.09, 1e-9);
  EXPECT_NEAR(mode["cv"], 2.0, 1e-9);  // deviation 0.1 of mean 5
  EXPECT_EQ(mode["unstable"], false);
  EXPECT_EQ(mode["samples"], 3);
  EXPECT_EQ(mode["floor_ms"]["median"], 4.0);
  EXPECT_EQ(mode["floor_ms"]["p95"], 4.0);
  EXPECT_EQ(mode["floor_ms"]["unstable"], true);
  EXPECT_GT(mode["floor_ms"]["cv"], 5.0);
  EXPECT_EQ(mode["floor_gemms"], 23);
  EXPECT_NEAR(mode["floor_gflop"], 197.568495616, 1e-9);
  // Pairs 1.25, 1.275 and 2.45.
  EXPECT_NEAR(mode["ratio_to_floor"]["median"], 1.275, 1e-12);
  EXPECT_EQ(mode["ratio_to_floor"]["unstable"], true);
  EXPECT_EQ(mode["exposed_communication_ms"], 0.5);
  EXPECT_NEAR(mode["exposed_communication_cv"], 50.0, 1e-9);
  EXPECT_EQ(mode["exposed_communication_samples"], 3);
  EXPECT_TRUE(mode["exposed_communication_missing"].is_null());
}

TEST(BenchJson, ExplainsTheUnavoidable) {
  const nlohmann::json mode = Json(Report(Study(2), Samples()))["modes"][0];
  const nlohmann::json& parts = mode["unavoidable"];
  // The sums of step_traffic_test: 160 x 2 Mi + 144 x 4 Mi bytes on the device, 192 MiB on the bus.
  const double device = 160.0 * (2 << 20) + 144.0 * (4 << 20);
  EXPECT_EQ(parts["device_bytes"]["total"], device);
  EXPECT_EQ(parts["device_bytes"]["optimizer"], 28 * 4 * (4 << 20));
  EXPECT_EQ(parts["bus_bytes"], 192 << 20);
  EXPECT_EQ(parts["copy_gb_per_s"]["median"], 4000.0);
  EXPECT_EQ(parts["bus_gb_per_s"]["median"], 150.0);
  EXPECT_EQ(parts["bus_measured_with"]["kind"], "all_gather");
  EXPECT_EQ(parts["bus_measured_with"]["payload_bytes"], 16 << 20);
  EXPECT_NEAR(mode["unavoidable_ms"], device / 4000e6 + (192 << 20) / 150e6, 1e-9);
}

TEST(BenchJson, UnavoidableIsOfTheRankWithMost) {
  // 3 layers on 2 ranks: one owner updates two of them, the other one.
  RunDescription run = TestRun("mlp:3x64", Mode::kZero1Broadcast, 2);
  const nlohmann::json mode = Json(Report(run, Samples()))["modes"][0];
  EXPECT_EQ(mode["unavoidable"]["device_bytes"]["optimizer"], 28 * 2 * 64 * 64);
}

TEST(BenchJson, HasTheMemoryOfEachRank) {
  const nlohmann::json memory = Json(Report(Study(2), Samples()))["modes"][0]["memory"][0];
  EXPECT_EQ(memory["rank"], 0);
  EXPECT_EQ(memory["steady_mib"], 336.0);
  EXPECT_EQ(memory["peak_mib"], 400.0);
  EXPECT_EQ(memory["arena_mib"], 404.0);
  EXPECT_NEAR(memory["arena_waste_percent"], 1.0, 1e-9);
  EXPECT_EQ(memory["workspace_mib"], 32.0);
  EXPECT_TRUE(memory["driver_steady_mib"].is_null());
  EXPECT_EQ(memory["driver_peak_mib"], 406.0);
}

TEST(BenchJson, WhatThereIsNotIsNull) {
  ModeSamples samples = Samples();
  samples.bus_gb_per_s = {};
  samples.exposed_ms = {};
  samples.exposed_missing = "nobody looked";
  const nlohmann::json mode = Json(Report(Study(1), samples))["modes"][0];
  EXPECT_TRUE(mode["exposed_communication_ms"].is_null());
  EXPECT_TRUE(mode["exposed_communication_cv"].is_null());
  EXPECT_EQ(mode["exposed_communication_samples"], 0);
  EXPECT_EQ(mode["exposed_communication_missing"], "nobody looked");
  EXPECT_TRUE(mode["unavoidable"]["bus_gb_per_s"].is_null());
  EXPECT_TRUE(mode["unavoidable"]["bus_measured_with"].is_null());
  EXPECT_EQ(mode["unavoidable"]["bus_bytes"], 0);
  samples.floor_ms = {};
  const RunDescription probe = TestRun("probe:10x3,7", Mode::kZero2, 1);
  EXPECT_TRUE(Json(Report(probe, samples))["modes"][0]["floor_ms"].is_null());
  EXPECT_TRUE(Json(Report(probe, samples))["modes"][0]["ratio_to_floor"].is_null());
}

TEST(BenchTable, StarsWhatVaries) {
  const std::string table = BenchTable(Report(Study(2), Samples()));
  EXPECT_THAT(table, HasSubstr("full_shard/backward_pre"));
  EXPECT_THAT(table, HasSubstr(" 5.000 "));
  EXPECT_THAT(table, Not(HasSubstr("5.000*")));
  EXPECT_THAT(table, HasSubstr("4.000*"));
  EXPECT_THAT(table, HasSubstr("1.275*"));
  EXPECT_THAT(table, HasSubstr("336.0"));
  EXPECT_THAT(table, HasSubstr("1.00"));
}

TEST(BenchTable, SaysWhyExposedTimesAreMissing) {
  ModeSamples samples = Samples();
  EXPECT_THAT(BenchTable(Report(Study(2), samples)), Not(HasSubstr("no exposed ms")));
  samples.exposed_ms = {};
  samples.exposed_missing = "nobody looked";
  EXPECT_THAT(BenchTable(Report(Study(2), samples)),
              HasSubstr("no exposed ms of full_shard/backward_pre: nobody looked\n"));
}

TEST(BenchTable, SaysWhatTheDriversFigureIs) {
  ModeSamples samples = Samples();
  EXPECT_THAT(BenchTable(Report(Study(2), samples)), HasSubstr(" 406.0 "));
  samples.memory[0].driver_peak = -1;
  const std::string table = BenchTable(Report(Study(2), samples));
  EXPECT_THAT(table, Not(HasSubstr(" 406.0 ")));
  EXPECT_THAT(table, HasSubstr("driver MiB: what the driver gave for the arena"));
}

TEST(MakeModeReport, ExposedTimesAreThereOrAReasonIs) {
  ModeSamples samples = Samples();
  samples.exposed_missing = "nobody looked";
  EXPECT_THAT(std::string(MakeModeReport(Study(2), samples).status().message()),
              HasSubstr("3 exposed times and the reason 'nobody looked'"));
  samples.exposed_ms = {};
  EXPECT_TRUE(MakeModeReport(Study(2), samples).ok());
  samples.exposed_missing = "";
  EXPECT_FALSE(MakeModeReport(Study(2), samples).ok());
}

TEST(MakeModeReport, MissingSamplesAreRefused) {
  const auto refused = [](ModeSamples samples) { return !MakeModeReport(Study(2), samples).ok(); };
  EXPECT_FALSE(refused(Samples()));
  for (std::vector<double> ModeSamples::*field :
       {&ModeSamples::step_ms, &ModeSamples::floor_ms, &ModeSamples::copy_gb_per_s,
        &ModeSamples::bus_gb_per_s}) {
    ModeSamples samples = Samples();
    (samples.*field).clear();
    EXPECT_TRUE(refused(samples));
  }
}

TEST(Samples, TravelBetweenProcessesBitForBit) {
  ModeSamples samples = Samples();
  samples.step_ms = {1.0 / 3, 4.1e-17, 1e300};
  samples.exposed_ms = {};
  samples.exposed_missing = "memory 0 of 5 watched steps";
  const absl::StatusOr<ModeSamples> decoded = DecodeSamples(EncodeSamples(samples));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, samples);
}

TEST(Samples, GarbledTextIsRefused) {
  for (const char* text : {"steps 1", "step_ms 1 x", "memory 0 1 2", "memory a 1 2 3 4 5 6"}) {
    const absl::StatusOr<ModeSamples> decoded = DecodeSamples(text);
    EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(text));
  }
}

TEST(Samples, MergeTakesTheSlowestRankOfEachSample) {
  ModeSamples first, second;
  first.step_ms = {1, 5};
  second.step_ms = {2, 4};
  first.copy_gb_per_s = {100, 300};
  second.copy_gb_per_s = {200, 200};
  first.memory = {{.rank = 1}};
  second.memory = {{.rank = 0}};
  const absl::StatusOr<ModeSamples> merged = MergeSamples({first, second});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->step_ms, (std::vector<double>{2, 5}));
  EXPECT_EQ(merged->copy_gb_per_s, (std::vector<double>{100, 200}));
  EXPECT_EQ(merged->memory[0].rank, 0);
  EXPECT_EQ(merged->memory[1].rank, 1);
  second.step_ms = {2};
  EXPECT_THAT(std::string(MergeSamples({first, second}).status().message()),
              HasSubstr("2 samples of step_ms, another 1"));
  EXPECT_FALSE(MergeSamples({}).ok());
}

TEST(Samples, WhatOneProcessDoesNotKnowOfExposedTimesIsNotKnown) {
  ModeSamples first, second;
  first.exposed_ms = {1, 2};
  second.exposed_missing = "1 of 2 was seen";
  for (const std::vector<ModeSamples>& parts : {std::vector<ModeSamples>{first, second, second},
                                                std::vector<ModeSamples>{first, second, first}}) {
    const absl::StatusOr<ModeSamples> merged = MergeSamples(parts);
    ASSERT_TRUE(merged.ok()) << merged.status();
    EXPECT_TRUE(merged->exposed_ms.empty());
    EXPECT_EQ(merged->exposed_missing, "process 1: 1 of 2 was seen");
  }
  EXPECT_EQ(MergeSamples({second})->exposed_missing, "1 of 2 was seen");
  EXPECT_EQ(MergeSamples({first, first})->exposed_missing, "");
}

}  // namespace
}  // namespace shardproof
