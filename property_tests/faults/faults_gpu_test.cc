// That the suite can fail on GPUs: faults and small edits of plans, on ranks that share a GPU, must
// be found there as they are on CPUs.
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "invariants/suite/cuda_case.h"
#include "property_tests/faults/device_faults.h"
#include "property_tests/faults/edit_campaign.h"
#include "property_tests/faults/kill.h"
#include "property_tests/faults/kill_matrix.h"
#include "property_tests/faults/plan_edits.h"

namespace shardproof {
namespace {

// Of ranks that wait for others who never come. Steps of these runs take milliseconds.
constexpr absl::Duration kTimeout = absl::Seconds(3);
// What a fault that hangs may take, in all: a few waits, and a new world.
constexpr absl::Duration kLongestHang = absl::Seconds(12);
// Every so many of the generated edits is run. A prime, so that no kind of edit falls through.
constexpr size_t kEditStride = 41;

KillEngines SharedGpu(absl::Duration timeout = kTimeout) {
  return {.values = EngineKind::kCudaShared,
          .provenance = false,
          .make_device_engine = CudaEngineFactory({.timeout = timeout})};
}

// "": the trainer as it is passes every check on the run.
std::string WrongWithoutFault(const std::string& line, const KillEngines& engines) {
  const absl::StatusOr<RunDescription> run = ParseFaultRun(line);
  if (!run.ok()) return std::string(run.status().message());
  const KillReport report = RunEdited(*run, {}, engines);
  if (report.error.ok() && report.refusal.empty() && !Killed(report) && report.unjudged.empty()) {
    return "";
  }
  return absl::StrCat("found by ", absl::StrJoin(report.killers, ", "),
                      "; unjudged: ", absl::StrJoin(report.unjudged, ", "), "; ", report.refusal,
                      report.error.message());
}

class FaultsGpuTest : public ::testing::Test {
 protected:
  // The first step of a process loads kernels, which would count as a hang.
  static void SetUpTestSuite() {
    const std::string line =
        "model=mlp:4,3,2:bias;mode=full_shard;world_size=4;micro_batch_size=2;clip_grad_norm=0.1";
    EXPECT_EQ(WrongWithoutFault(line, SharedGpu(absl::Seconds(60))), "");
  }
};

TEST_F(FaultsGpuTest, RunsWithoutFaultsPass) {
  const KillEngines engines = SharedGpu();
  std::set<std::string> lines;
  for (const DeviceFault& each : DeviceFaults()) {
    if (each.left_out.empty()) lines.insert(each.fault.run);
  }
  for (const std::string& line : lines) EXPECT_EQ(WrongWithoutFault(line, engines), "") << line;
}

TEST_F(FaultsGpuTest, EveryFaultIsKilled) {
  const KillEngines engines = SharedGpu();
  const std::vector<DeviceFault> faults = DeviceFaults();
  std::vector<FaultOutcome> outcomes;
  for (const DeviceFault& each : faults) {
    if (!each.left_out.empty()) continue;
    const absl::StatusOr<RunDescription> run = ParseFaultRun(each.fault.run);
    ASSERT_TRUE(run.ok()) << run.status();
    const absl::Time start = absl::Now();
    outcomes.push_back({each.fault, RunEdited(*run, each.fault.apply, engines)});
    EXPECT_LT(absl::Now() - start, kLongestHang) << each.fault.row;
    EXPECT_EQ(DeviceComplaint(outcomes.back()), "") << "on " << Name(engines.values);
  }
  std::cout << "\n" << MatrixText(outcomes) << "\n" << DeviceFaultsText(faults);
}

// After a hang the world is made anew: the same run without the fault passes.
TEST_F(FaultsGpuTest, AHangLeavesNothingBehind) {
  const KillEngines engines = SharedGpu();
  for (const DeviceFault& each : DeviceFaults()) {
    if (each.fault.killers != std::vector<std::string>{kEngineError}) continue;
    const absl::StatusOr<RunDescription> run = ParseFaultRun(each.fault.run);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_TRUE(NamesARank(RunEdited(*run, each.fault.apply, engines).error)) << each.fault.row;
    EXPECT_EQ(WrongWithoutFault(each.fault.run, engines), "") << each.fault.row;
  }
}

struct EditCounts {
  int all = 0;
  int killed = 0;
  int passed = 0;
  int no_plan = 0;  // edits that no engine executes
};

TEST_F(FaultsGpuTest, EditsAreFoundAsOnCpus) {
  const KillEngines gpu_engines = SharedGpu();
  KillEngines cpu_engines;
  cpu_engines.provenance = false;
  EditCounts counts;
  size_t next = 0;
  for (const EditRun& named : EditRuns()) {
    const absl::StatusOr<RunDescription> run = ParseFaultRun(named.line);
    ASSERT_TRUE(run.ok()) << run.status();
    const std::vector<PlanEdit> edits = EditsOfStep(*run, kEditedStep);
    for (; next < edits.size(); next += kEditStride) {
      const PartsEdit apply = ApplyEdit(edits[next], kEditedStep);
      const KillReport cpu = RunEdited(*run, apply, cpu_engines);
      const KillReport gpu = RunEdited(*run, apply, gpu_engines);
      EXPECT_EQ(OtherThanOnCpus(cpu, gpu), "") << named.name << "/" << edits[next].name;
      ++counts.all;
      counts.killed += Killed(gpu);
      counts.no_plan += !Killed(gpu) && !gpu.error.ok();
      counts.passed += !Killed(gpu) && gpu.error.ok();
    }
    next -= edits.size();
  }
  std::cout << counts.all << " edits, one of " << kEditStride << ": " << counts.killed
            << " killed, " << counts.passed << " found by nothing here nor on CPUs, "
            << counts.no_plan << " that are no plan\n";
  // Few survive on CPUs, and those are equivalent; most must have been killed.
  EXPECT_GT(counts.killed, counts.all / 2);
}

}  // namespace
}  // namespace shardproof
