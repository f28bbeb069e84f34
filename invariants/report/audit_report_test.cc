#include "invariants/report/audit_report.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/closed_forms/example_runs.h"
#include "nlohmann/json.hpp"

namespace shardproof {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

CheckResult Judged(const std::string& name, Verdict verdict) {
  CheckResult check;
  check.name = name;
  check.verdict = verdict;
  if (verdict == Verdict::kNotObserved) check.reason = "no values were shown";
  return check;
}

CheckResult Failed() {
  CheckResult check = Judged("padding", Verdict::kFail);
  Violation violation;
  violation.rule = "padding stays as it was allocated";
  violation.rank = 2;
  violation.step = 1;
  violation.unit = "layers.3";
  violation.element = 7;
  violation.expected = "0x7fc10004";
  violation.actual = "0.5";
  violation.ratio = std::numeric_limits<double>::infinity();
  violation.likely_cause = "an update that runs over the end of the shard";
  check.violations.push_back(violation);
  check.violation_count = 3;
  return check;
}

ModeReport Passing(Mode mode) {
  ModeReport report;
  report.run = StudyRun(mode, 4);
  StepFigures& figures = report.result.figures;
  figures.states_observed = true;
  figures.events_observed = true;
  figures.parameter_factor = 1;
  figures.gradient_factor = 1;
  figures.optimizer_factor = 2;
  figures.reduce_scatter = {8, 134217728, 100663296};
  for (int32_t rank = 0; rank < 4; ++rank) {
    RankFigures of_rank;
    of_rank.rank = rank;
    of_rank.bytes = {.parameter = 33554432, .gradient = 33554432, .optimizer = 67108864};
    of_rank.peak_bytes = 192937984;
    figures.ranks.push_back(of_rank);
  }
  report.result.checks = {Judged("aggregate_factors", Verdict::kPass),
                          Judged("padding", Verdict::kPass)};
  report.result.numeric.observed = true;
  report.result.verdict = Verdict::kPass;
  return report;
}

ModeReport Failing(Mode mode) {
  ModeReport report = Passing(mode);
  report.result.checks[1] = Failed();
  report.result.verdict = Verdict::kFail;
  return report;
}

ModeReport Refused() {
  ModeReport report;
  report.run = StudyRun(Mode::kZero2, 4);
  report.result.verdict = Verdict::kRefused;
  report.result.refusal = "clipping is not supported";
  return report;
}

AuditReport Report(std::vector<ModeReport> modes) {
  AuditReport report;
  report.modes = std::move(modes);
  return report;
}

std::vector<std::string> Keys(const json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

TEST(AuditJson, HasTheKeysOfTheContract) {
  const json document = json::parse(AuditJson(Report({Passing(Mode::kFullShard)})));
  EXPECT_THAT(Keys(document),
              UnorderedElementsAre("schema", "model", "world_size", "engine", "modes"));
  EXPECT_EQ(document["schema"], "shardproof.audit/1");
  EXPECT_EQ(document["world_size"], 4);
  EXPECT_EQ(document["engine"], "cpu");
  EXPECT_THAT(Keys(document["model"]),
              UnorderedElementsAre("name", "parameters", "logical_bytes", "units"));
  EXPECT_EQ(document["model"]["parameters"], 33554432);
  EXPECT_EQ(document["model"]["logical_bytes"], 134217728);
  EXPECT_EQ(document["model"]["units"], 8);
  const json& mode = document["modes"][0];
  EXPECT_THAT(Keys(mode),
              UnorderedElementsAre("mode", "prefetch", "layout", "verdict", "checks", "factors",
                                   "collectives", "other_collectives", "ranks", "devices",
                                   "max_abs_parameter_error", "max_rel_gradient_error",
                                   "max_rel_update_error", "max_gradient_bound_share",
                                   "max_update_bound_share"));
  EXPECT_TRUE(mode["devices"].is_null());
  EXPECT_THAT(Keys(mode["factors"]), UnorderedElementsAre("parameter", "gradient", "optimizer"));
  EXPECT_THAT(Keys(mode["collectives"]),
              UnorderedElementsAre("all_reduce", "all_gather_forward", "all_gather_backward",
                                   "all_gather_optimizer", "reduce_scatter", "broadcast"));
  for (const json& kind : mode["collectives"]) {
    EXPECT_THAT(Keys(kind), UnorderedElementsAre("count", "payload_bytes", "bus_bytes"));
  }
  EXPECT_TRUE(mode["other_collectives"].is_array());
  ASSERT_EQ(mode["ranks"].size(), 4u);
  EXPECT_THAT(Keys(mode["ranks"][0]),
              UnorderedElementsAre("rank", "parameter_bytes", "gradient_bytes", "optimizer_bytes",
                                   "padding_bytes", "scalar_bytes", "steady_bytes", "peak_bytes"));
  EXPECT_EQ(mode["ranks"][3]["rank"], 3);
  EXPECT_EQ(mode["ranks"][3]["steady_bytes"], 134217728);
  EXPECT_EQ(mode["ranks"][3]["peak_bytes"], 192937984);
  EXPECT_EQ(mode["collectives"]["reduce_scatter"]["count"], 8);
}

TEST(AuditJson, NamesThePrefetchOfFullShardAndNullElsewhere) {
  const json document =
      json::parse(AuditJson(Report({Passing(Mode::kFullShard), Passing(Mode::kShardGradOp)})));
  EXPECT_EQ(document["modes"][0]["mode"], "full_shard");
  EXPECT_EQ(document["modes"][0]["prefetch"], "backward_pre");
  EXPECT_EQ(document["modes"][1]["mode"], "shard_grad_op");
  EXPECT_TRUE(document["modes"][1]["prefetch"].is_null());
}

TEST(AuditJson, NumbersThatAreNotFiniteAreStrings) {
  ModeReport mode = Passing(Mode::kFullShard);
  mode.result.numeric.max_abs_parameter_error = std::numeric_limits<double>::infinity();
  mode.result.numeric.max_rel_gradient_error = -std::numeric_limits<double>::infinity();
  mode.result.numeric.max_rel_update_error = std::numeric_limits<double>::quiet_NaN();
  const json document = json::parse(AuditJson(Report({mode})));
  EXPECT_EQ(document["modes"][0]["max_abs_parameter_error"], "inf");
  EXPECT_EQ(document["modes"][0]["max_rel_gradient_error"], "-inf");
  EXPECT_EQ(document["modes"][0]["max_rel_update_error"], "nan");
}

TEST(AuditJson, WhatWasNotObservedIsNullAndNotZero) {
  ModeReport mode = Passing(Mode::kFullShard);
  mode.result.figures.events_observed = false;
  mode.result.numeric.observed = false;
  for (RankFigures& rank : mode.result.figures.ranks) rank.peak_bytes.reset();
  json document = json::parse(AuditJson(Report({mode})));
  EXPECT_TRUE(document["modes"][0]["collectives"].is_null());
  EXPECT_TRUE(document["modes"][0]["other_collectives"].is_null());
  EXPECT_TRUE(document["modes"][0]["max_abs_parameter_error"].is_null());
  EXPECT_TRUE(document["modes"][0]["ranks"][0]["peak_bytes"].is_null());
  mode.result.figures.states_observed = false;
  document = json::parse(AuditJson(Report({mode})));
  EXPECT_TRUE(document["modes"][0]["factors"].is_null());
  EXPECT_TRUE(document["modes"][0]["ranks"].is_null());
}

TEST(AuditJson, AViolationSaysWhereAndHowToRunItAgain) {
  const json document = json::parse(AuditJson(Report({Failing(Mode::kFullShard)})));
  const json& mode = document["modes"][0];
  EXPECT_EQ(mode["verdict"], "fail");
  EXPECT_EQ(mode["checks"][0]["name"], "aggregate_factors");
  EXPECT_TRUE(mode["checks"][0]["violations"].empty());
  EXPECT_EQ(mode["checks"][1]["violation_count"], 3);
  const json& violation = mode["checks"][1]["violations"][0];
  EXPECT_EQ(violation["rank"], 2);
  EXPECT_EQ(violation["step"], 1);
  EXPECT_EQ(violation["unit"], "layers.3");
  EXPECT_EQ(violation["element"], 7);
  EXPECT_TRUE(violation["tensor"].is_null());
  EXPECT_TRUE(violation["event"].is_null());
  EXPECT_TRUE(violation["tolerance_share"].is_null());
  EXPECT_EQ(violation["ratio"], "inf");
  EXPECT_THAT(violation["likely_cause"].get<std::string>(), HasSubstr("runs over the end"));
  EXPECT_THAT(violation["replay"].get<std::string>(), HasSubstr("//invariants:audit"));
}

TEST(AuditJson, ARefusedModeHasItsReasonAndNothingObserved) {
  const json document = json::parse(AuditJson(Report({Refused()})));
  EXPECT_EQ(document["modes"][0]["verdict"], "refused");
  EXPECT_EQ(document["modes"][0]["refusal"], "clipping is not supported");
  EXPECT_TRUE(document["modes"][0]["checks"].empty());
  EXPECT_TRUE(document["modes"][0]["factors"].is_null());
}

TEST(AuditJson, SurvivesNamesThatAreNotText) {
  ModeReport mode = Failing(Mode::kFullShard);
  mode.run.model.name = "caf\xe9.json";
  mode.result.checks[1].violations[0].unit = "\xff\n";
  const json document = json::parse(AuditJson(Report({mode})));
  EXPECT_THAT(document["model"]["name"].get<std::string>(), HasSubstr("caf"));
}

TEST(AuditTable, ShowsEveryFailureWithItsPlaceCauseAndReplayLine) {
  const std::string table = AuditTable(Report({Failing(Mode::kFullShard)}));
  EXPECT_THAT(table, HasSubstr("full_shard/backward_pre FAILS padding, 3 violations"));
  for (const char* part : {"rank 2", "step 1", "unit layers.3", "element 7", "0x7fc10004",
                           "runs over the end", "replay: ci/bazel run //invariants:audit -- "}) {
    EXPECT_THAT(table, HasSubstr(part));
  }
}

TEST(AuditReport, OfAFileNamesItAndReplaysItsCheck) {
  AuditReport report = Report({Failing(Mode::kFullShard)});
  report.observation = "it's/run.jsonl";
  const std::string replay =
      "replay: ci/bazel run //invariants:check -- --observation='it'\\''s/run.jsonl'";
  const std::string table = AuditTable(report);
  EXPECT_THAT(table, HasSubstr("shardproof check of it's/run.jsonl"));
  EXPECT_THAT(table, HasSubstr(replay));
  EXPECT_THAT(table, Not(HasSubstr("engine")));
  const json document = json::parse(AuditJson(report));
  EXPECT_EQ(document["observation"].get<std::string>(), "it's/run.jsonl");
  EXPECT_FALSE(document.contains("engine"));
  const json violation = document["modes"][0]["checks"][1]["violations"][0];
  EXPECT_EQ(violation["replay"].get<std::string>(), replay);
}

TEST(AuditTable, ExplainsRefusalsAndMissingEvidence) {
  ModeReport unseen = Passing(Mode::kReplicated);
  unseen.result.checks[1] = Judged("padding", Verdict::kNotObserved);
  const std::string table = AuditTable(Report({unseen, Refused()}));
  EXPECT_THAT(table, HasSubstr("zero2 refused: clipping is not supported"));
  EXPECT_THAT(table, HasSubstr("no values were shown"));
}

TEST(AuditTable, NamesAReasonOnceForAllModesThatShareIt) {
  ModeReport first = Passing(Mode::kReplicated);
  first.result.checks[1] = Judged("padding", Verdict::kNotObserved);
  ModeReport second = Passing(Mode::kShardGradOp);
  second.result.checks[1] = Judged("padding", Verdict::kNotObserved);
  const std::string table = AuditTable(Report({first, second}));
  const size_t at = table.find("no values were shown");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(table.find("no values were shown", at + 1), std::string::npos) << table;
}

TEST(AuditTable, IsNoWiderThanATerminal) {
  std::vector<ModeReport> modes;
  for (Mode mode : {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather, Mode::kZero2,
                    Mode::kShardGradOp, Mode::kFullShard}) {
    modes.push_back(Passing(mode));
  }
  const std::string table = AuditTable(Report(modes));
  for (size_t begin = 0; begin < table.size();) {
    const size_t end = table.find('\n', begin);
    EXPECT_LE(end - begin, 190u) << table.substr(begin, end - begin);
    begin = end + 1;
  }
}

ModeReport OnGpus() {
  ModeReport report = Passing(Mode::kZero2);
  report.result.figures.devices = {{.rank = 0,
                                    .collective_kernels = {0, 2, 2, 0, 0},
                                    .steady_bytes = int64_t{336} << 20,
                                    .peak_bytes = int64_t{500} << 20},
                                   {.rank = 1, .collective_kernels = {0, 3, 2, 0, 0}}};
  report.result.numeric.max_gradient_bound_share = 0.25;
  return report;
}

TEST(AuditTable, ShowsWhatOthersSawOfTheGpusAndWhereRanksDiffer) {
  const std::string table = AuditTable(Report({OnGpus(), Passing(Mode::kReplicated)}));
  const size_t begin = table.find("On the GPUs");
  ASSERT_NE(begin, std::string::npos) << table;
  const std::string part = table.substr(begin);
  EXPECT_THAT(part, testing::ContainsRegex("zero2 +0 +2\\.\\.3 +2 +0 +- +- +0\\.25 +-"));
  EXPECT_THAT(part, testing::ContainsRegex("replicated +- +- +- +- +- +- +- +-"));
  EXPECT_THAT(AuditTable(Report({Passing(Mode::kZero2)})), Not(HasSubstr("On the GPUs")));
}

TEST(AuditJson, HasTheDevicesAndNullForWhatNobodySaw) {
  const json document = json::parse(AuditJson(Report({OnGpus()})));
  const json& mode = document["modes"][0];
  EXPECT_EQ(mode["devices"][0]["collective_kernels"]["reduce_scatter"], 2);
  EXPECT_EQ(mode["devices"][0]["driver_steady_bytes"], int64_t{336} << 20);
  EXPECT_TRUE(mode["devices"][1]["driver_peak_bytes"].is_null());
  EXPECT_EQ(mode["max_gradient_bound_share"], 0.25);
  EXPECT_TRUE(mode["max_update_bound_share"].is_null());
}

TEST(AuditTable, DoesNotShowZeroForWhatWasNotObserved) {
  ModeReport mode = Passing(Mode::kFullShard);
  mode.result.figures = StepFigures();
  const std::string table = AuditTable(Report({mode}));
  const size_t row = table.find("\nfull_shard/backward_pre");
  ASSERT_NE(row, std::string::npos);
  EXPECT_THAT(table.substr(row + 1, table.find('\n', row + 1) - row), Not(HasSubstr("0 B")));
}

TEST(AuditExitCode, IsZeroWhenAModePassesAndNoneFails) {
  EXPECT_EQ(AuditExitCode(Report({Passing(Mode::kZero2)})), 0);
  EXPECT_EQ(AuditExitCode(Report({Passing(Mode::kZero2), Refused()})), 0);
}

TEST(AuditExitCode, IsOneWhenAnyModeFails) {
  EXPECT_EQ(AuditExitCode(Report({Passing(Mode::kZero2), Failing(Mode::kFullShard), Refused()})),
            1);
}

TEST(AuditExitCode, IsTwoWhenEveryModeWasRefused) {
  EXPECT_EQ(AuditExitCode(Report({Refused(), Refused()})), 2);
}

TEST(AuditExitCode, IsOneWhenARequiredCheckHasNoEvidence) {
  ModeReport unseen = Passing(Mode::kZero2);
  unseen.result.checks[1] = Judged("padding", Verdict::kNotObserved);
  AuditReport report = Report({Passing(Mode::kFullShard), unseen});
  EXPECT_EQ(AuditExitCode(report), 0);
  report.required = {"aggregate_factors"};
  EXPECT_EQ(AuditExitCode(report), 0);
  report.required = {"padding"};
  EXPECT_EQ(AuditExitCode(report), 1);
}

TEST(AuditExitCode, IsOneWhenARequiredCheckDidNotRun) {
  AuditReport report = Report({Passing(Mode::kZero2)});
  report.required = {"liveness"};
  EXPECT_EQ(AuditExitCode(report), 1);
  EXPECT_THAT(AuditTable(report), HasSubstr("\nrequired and not observed: liveness (zero2)\n"));
  report.required = {"padding"};
  EXPECT_THAT(AuditTable(report), Not(HasSubstr("required and not observed")));
}

TEST(ExplainStep, ListsTheStepInIssueOrder) {
  const std::string text = ExplainStep(StudyRun(Mode::kFullShard, 4));
  EXPECT_THAT(text, HasSubstr("full_shard/backward_pre on rank 0 of 4"));
  EXPECT_THAT(text, HasSubstr("all_gather"));
  EXPECT_THAT(text, HasSubstr("layers.7"));
  EXPECT_THAT(text, HasSubstr("adamw update"));
  EXPECT_LT(text.find("reduce_scatter"), text.find("adamw update"));
}

TEST(ExplainStep, NamesTheClipNormByItsPurpose) {
  RunDescription run = StudyRun(Mode::kFullShard, 4);
  EXPECT_THAT(ExplainStep(run), Not(HasSubstr("clip_norm")));
  run.clip_grad_norm = 1;
  const std::string text = ExplainStep(run);
  const size_t norm = text.find("clip_norm");
  ASSERT_NE(norm, std::string::npos);
  const size_t begin = text.rfind('\n', norm) + 1;
  const std::string line = text.substr(begin, text.find('\n', norm) - begin);
  EXPECT_THAT(line, HasSubstr("optimizer"));
  EXPECT_THAT(line, HasSubstr("all_reduce"));
  EXPECT_THAT(line, HasSubstr("8 B"));
  EXPECT_LT(norm, text.find("adamw update"));
}

TEST(AuditReport, ListsAClipNormBesideTheModesCollectives) {
  ModeReport mode = Passing(Mode::kFullShard);
  mode.run.clip_grad_norm = 1;
  mode.result.figures.others = {{CollectiveKind::kAllReduce, Purpose::kClipNorm, 1, 8}};
  EXPECT_THAT(AuditTable(Report({mode})),
              HasSubstr("full_shard/backward_pre also: 1 all_reduce for clip_norm, 8 B"));
  const json document = json::parse(AuditJson(Report({mode})));
  const json& other = document["modes"][0]["other_collectives"][0];
  EXPECT_EQ(other["purpose"], "clip_norm");
  EXPECT_EQ(other["count"], 1);
  EXPECT_EQ(other["payload_bytes"], 8);
  EXPECT_EQ(document["modes"][0]["collectives"]["all_reduce"]["count"], 0);
}

TEST(ExplainStep, SaysWhyThereIsNoExpectedStep) {
  RunDescription run = StudyRun(Mode::kFullShard, 4);
  run.sharding.shard_group_size = 2;
  EXPECT_THAT(ExplainStep(run), HasSubstr("not defined"));
}

}  // namespace
}  // namespace shardproof
