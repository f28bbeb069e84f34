#include "invariants/audit_request.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/all_checks.h"
#include "invariants/run_description/parse.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

absl::StatusOr<AuditRequest> Parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"audit"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseAuditRequest(static_cast<int>(argv.size()), argv.data());
}

// The one line that a person would see.
std::string Error(const std::vector<std::string>& arguments) {
  const absl::StatusOr<AuditRequest> request = Parse(arguments);
  if (request.ok()) return "no error";
  EXPECT_THAT(std::string(request.status().message()), Not(HasSubstr("\n")));
  return std::string(request.status().message());
}

TEST(ParseAuditRequest, AModelAloneIsAuditedInAllEightRows) {
  const absl::StatusOr<AuditRequest> request = Parse({"--model=mlp:2x4"});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->runs.size(), 8u);
  EXPECT_EQ(request->engine.engine, EngineKind::kCpu);
  EXPECT_EQ(request->report.format, AuditFormat::kTable);
  EXPECT_TRUE(request->report.required.empty());
  EXPECT_FALSE(request->explain);
  const RunDescription& run = request->runs[0];
  EXPECT_EQ(run.sharding.world_size.value, 4);
  EXPECT_EQ(run.sharding.bucket_cap_bytes, 64 << 20);
  EXPECT_EQ(run.data.steps, 3);
  EXPECT_EQ(run.data.micro_batch_size, 16);
}

TEST(ParseAuditRequest, EveryFlagReachesTheRun) {
  const absl::StatusOr<AuditRequest> request =
      Parse({"--model", "mlp:3,5:bias", "--world_size=3", "--modes=full_shard/none",
             "--layout=rows", "--steps=7", "--micro_batch_size=2", "--num_micro_batches=4",
             "--grad_sync=last", "--bucket_cap_mb=0.5", "--optimizer=sgd", "--clip_grad_norm=0.25",
             "--seed=99", "--engine=accounting", "--format=json", "--out=report.json", "--explain",
             "--require=padding,liveness"});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->runs.size(), 1u);
  EXPECT_EQ(PrintRun(request->runs[0]),
            PrintRun(*ParseRun("model=mlp:3,5:bias;mode=full_shard;prefetch=none;layout=rows;"
                               "world_size=3;steps=7;micro_batch_size=2;num_micro_batches=4;"
                               "grad_sync=last;bucket_cap_bytes=524288;optimizer=sgd;"
                               "clip_grad_norm=0.25;seed=99",
                               ImportModel)));
  EXPECT_EQ(request->engine.engine, EngineKind::kAccounting);
  EXPECT_EQ(request->report.format, AuditFormat::kJson);
  EXPECT_EQ(request->report.out, "report.json");
  EXPECT_TRUE(request->explain);
  EXPECT_THAT(request->report.required, ElementsAre("padding", "liveness"));
}

TEST(ParseAuditRequest, LayoutIsForTheModesThatCutTensors) {
  const absl::StatusOr<AuditRequest> request =
      Parse({"--model=mlp:2x4", "--layout=rows", "--modes=replicated,zero1_broadcast,zero2"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->runs[0].sharding.layout, LayoutKind::kFlat);
  EXPECT_EQ(request->runs[1].sharding.layout, LayoutKind::kOwner);
  EXPECT_EQ(request->runs[2].sharding.layout, LayoutKind::kRows);
}

TEST(ParseAuditRequest, RequireAllMeansTheNineChecks) {
  const absl::StatusOr<AuditRequest> request = Parse({"--model=mlp:2x4", "--require=all"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->report.required, AllCheckNames());
}

TEST(ParseAuditRequest, HelpNeedsNothingElse) {
  const absl::StatusOr<AuditRequest> request = Parse({"--help"});
  ASSERT_TRUE(request.ok()) << request.status();
  for (const char* flag : {"--model", "--modes=all", "--world_size=4", "--engine=cpu", "--run",
                           "--require", "--explain", "Exit 0"}) {
    EXPECT_THAT(request->help, HasSubstr(flag));
  }
}

TEST(ParseAuditRequest, ReadsAWholeRunFromALine) {
  const std::string line = "model=mlp:3,5:bias;mode=zero2;world_size=2;seed=5";
  const absl::StatusOr<AuditRequest> request = Parse({"--run=" + line});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->runs.size(), 1u);
  EXPECT_EQ(PrintRun(request->runs[0]), PrintRun(*ParseRun(line, ImportModel)));
}

TEST(ParseAuditRequest, ReadsAWholeRunFromAJsonFile) {
  const RunDescription run =
      *ParseRun("model=mlp:3,5:bias;mode=shard_grad_op;world_size=2", ImportModel);
  const std::string path = testing::TempDir() + "/audit_request_run.json";
  std::ofstream(path) << PrintRunJson(run);
  const absl::StatusOr<AuditRequest> request = Parse({"--run=" + path});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->runs.size(), 1u);
  EXPECT_EQ(PrintRunJson(request->runs[0]), PrintRunJson(run));
}

TEST(ParseAuditRequest, AWholeRunLeavesNoRoomForItsParts) {
  const std::string run = "--run=model=mlp:2x4;mode=zero2";
  for (const char* other :
       {"--model=mlp:2x4", "--world_size=4", "--modes=all", "--layout=rows", "--steps=3",
        "--micro_batch_size=1", "--num_micro_batches=1", "--grad_sync=last", "--bucket_cap_mb=1",
        "--optimizer=sgd", "--clip_grad_norm=1", "--seed=1"}) {
    const std::string flag(other);
    EXPECT_THAT(Error({run, flag}),
                AllOf(HasSubstr("leave out"), HasSubstr(flag.substr(0, flag.find('=')))));
  }
  EXPECT_EQ(Error({run, "--engine=accounting", "--format=json"}), "no error");
}

TEST(ParseAuditRequest, NamesTheBadValueAndWhatIsAccepted) {
  const std::string model = "--model=mlp:2x4";
  const struct {
    std::vector<std::string> arguments;
    const char* value;
    const char* accepted;
  } cases[] = {
      {{}, "--model is missing", "mlp:8x2048"},
      {{model, "--modes=zero4"}, "'zero4'", "shard_grad_op"},
      {{model, "--mode=zero2"}, "--mode", "--modes"},
      {{model, "zero2"}, "'zero2'", "--model"},
      {{model, "--world_size=0"}, "--world_size=0", "from 1 to 65536"},
      {{model, "--world_size=-4"}, "--world_size=-4", "from 1 to 65536"},
      {{model, "--world_size=99999999999"}, "--world_size=99999999999", "from 1 to 65536"},
      {{model, "--world_size=99999999999999999999"}, "99999999999999999999", "from 1 to 65536"},
      {{model, "--world_size=four"}, "--world_size=four", "a whole number"},
      {{model, "--world_size"}, "--world_size", "needs a value"},
      {{model, "--world_size=2", "--world_size=3"}, "--world_size", "twice"},
      {{model, "--layout=columns"}, "'columns'", "flat_aligned"},
      {{model, "--engine=gpu"}, "'gpu'", "accounting"},
      {{model, "--grad_sync=first"}, "'first'", "last"},
      {{model, "--optimizer=lion"}, "'lion'", "adamw"},
      {{model, "--steps=0"}, "--steps=0", "from 1"},
      {{model, "--micro_batch_size=0"}, "--micro_batch_size=0", "from 1"},
      {{model, "--num_micro_batches=-1"}, "--num_micro_batches=-1", "from 1 to 1024"},
      {{model, "--bucket_cap_mb=nan"}, "--bucket_cap_mb=nan", "a number from"},
      {{model, "--bucket_cap_mb=0"}, "--bucket_cap_mb=0", "a number from"},
      {{model, "--clip_grad_norm=-1"}, "--clip_grad_norm=-1", "a number from"},
      {{model, "--seed=-1"}, "--seed=-1", "whole number"},
      {{model, "--format=xml"}, "--format=xml", "table or json"},
      {{model, "--require=everything"}, "'everything'", "liveness"},
      {{model, "--explain=perhaps"}, "--explain=perhaps", "true, false"},
      {{"--model=mlp:0x4"}, "mlp:0x4", ""},
      {{"--model=resnet50"}, "resnet50", "mlp:"},
      {{"--model=missing.json"}, "missing.json", ""},
      {{"--run=missing.json"}, "missing.json", ""},
      {{"--run=model=mlp:2x4;mode=zero9"}, "zero9", "shard_grad_op"},
      {{"--run=model=mlp:2x4;mode=zero2;colour=red"}, "colour", "world_size"},
  };
  for (const auto& each : cases) {
    EXPECT_THAT(Error(each.arguments), AllOf(HasSubstr(each.value), HasSubstr(each.accepted)));
  }
}

TEST(ParseAuditRequest, HasAsManyRanksAsTheLauncherHasStarted) {
  LaunchEnvironment launch;
  launch.launcher = Launcher::kMpirun;
  launch.world_size = WorldSize{3};
  const char* const modes[] = {"audit", "--model=mlp:2x4"};
  const absl::StatusOr<AuditRequest> request = ParseAuditRequest(2, modes, launch);
  ASSERT_TRUE(request.ok()) << request.status();
  for (const RunDescription& run : request->runs) EXPECT_EQ(run.sharding.world_size.value, 3);
  const char* const whole[] = {"audit", "--run=model=mlp:2x4;mode=zero2;world_size=2"};
  EXPECT_THAT(std::string(ParseAuditRequest(2, whole, launch).status().message()),
              AllOf(HasSubstr("--run asks for 2 ranks"), HasSubstr("accepted is 3")));
}

TEST(ParseAuditRequest, ImportsRealConfigurations) {
  const absl::StatusOr<AuditRequest> request =
      Parse({"--model=fixtures/models/llama-3.1-70b.config.json", "--engine=accounting",
             "--world_size=1024", "--modes=zero3"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->runs.size(), 3u);
  EXPECT_EQ(ParameterElements(request->runs[0].model), 70553706496);
}

}  // namespace
}  // namespace shardproof
