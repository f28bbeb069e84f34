#include "property_tests/faults/device_faults.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "property_tests/faults/catalogue.h"
#include "property_tests/faults/edit_campaign.h"
#include "property_tests/faults/plan_edits.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/engines/cuda/arena.h"
#include "trainer/engines/engine.h"
#include "trainer/engines/engine_parts.h"
#include "trainer/engines/plan_bounds.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A fault that finds its way onto this list is no longer proven to be found on GPUs.
TEST(DeviceFaultsTest, AllRunButThoseThatComputeOnTheHost) {
  std::vector<std::string> left_out;
  for (const DeviceFault& each : DeviceFaults()) {
    if (!each.left_out.empty()) left_out.push_back(each.fault.row);
  }
  EXPECT_THAT(left_out, UnorderedElementsAre("C10", "G1", "H10"));
  EXPECT_EQ(DeviceFaults().size(), AllFaults().size());
}

TEST(DeviceFaultsTest, TellsWhatIsLeftOutAndWhy) {
  const std::vector<DeviceFault> faults = DeviceFaults();
  const std::string text = DeviceFaultsText(faults);
  EXPECT_THAT(text, HasSubstr(absl::StrCat(faults.size(), " faults: ", faults.size() - 3,
                                           " run, 3 left out\n")));
  EXPECT_THAT(text, HasSubstr("C10, G1, H10: decorates communicators"));
}

TEST(DeviceFaultsTest, AFaultThatOnlyProvenanceMustFindIsLeftOut) {
  Fault fault = *FindFault("A2");
  fault.killers = {"provenance"};
  EXPECT_THAT(WhyNotOnDevices(fault), HasSubstr("provenance"));
}

// Why the GPU's engine would not execute edited plans, for want of their memory; "" if it would.
std::string WithoutMemory(const RunDescription& run, const PartsEdit& edit) {
  const EngineParts parts = edit(run, PlannedParts(run));
  for (int32_t rank = 0; rank < run.sharding.world_size.value; ++rank) {
    std::vector<StepPlan> plans;
    for (int64_t step = 0; step < std::max<int64_t>(run.data.steps, 2); ++step) {
      plans.push_back(parts.plan(run, parts.placement, Rank{rank}, step));
    }
    const StepPlan* const first_two[] = {&plans[0], &plans[1]};
    const KeptRegion kept = LayOutKept(first_two);
    for (const StepPlan& plan : plans) {
      const absl::Status checked = CheckPlan(run, parts.placement, plan);
      if (!checked.ok()) return std::string(checked.message());
      if (!SameBuffers(plans[0], plan)) return "other buffers than in step 0";
      const absl::Status laid_out = LayOutArena(kept, plan).status();
      if (!laid_out.ok()) return std::string(laid_out.message());
    }
  }
  return "";
}

// On the engine whose sums have the same order, what is demanded of a GPU holds.
TEST(DeviceFaultsTest, OnCpusNoneIsMissed) {
  KillEngines engines;
  engines.provenance = false;
  for (const DeviceFault& each : DeviceFaults()) {
    if (!each.left_out.empty()) continue;
    const absl::StatusOr<RunDescription> run = ParseFaultRun(each.fault.run);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(DeviceComplaint({each.fault, RunEdited(*run, each.fault.apply, engines)}), "");
  }
}

// Needs no GPU: what the engine refuses there would be found by nothing.
TEST(DeviceFaultsTest, EveryEditedPlanHasItsMemory) {
  for (const DeviceFault& each : DeviceFaults()) {
    if (!each.left_out.empty()) continue;
    const absl::StatusOr<RunDescription> run = ParseFaultRun(each.fault.run);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(WithoutMemory(*run, each.fault.apply), "") << each.fault.row;
  }
  for (const EditRun& named : EditRuns()) {
    const absl::StatusOr<RunDescription> run = ParseFaultRun(named.line);
    ASSERT_TRUE(run.ok()) << run.status();
    for (const PlanEdit& edit : EditsOfStep(*run, kEditedStep)) {
      EXPECT_EQ(WithoutMemory(*run, ApplyEdit(edit, kEditedStep)), "")
          << named.name << "/" << edit.name;
    }
  }
}

FaultOutcome Outcome(const char* row, std::vector<std::string> killers, absl::Status error = {}) {
  for (const DeviceFault& each : DeviceFaults()) {
    if (each.fault.row != row) continue;
    KillReport report;
    report.killers = std::move(killers);
    report.error = std::move(error);
    if (IsHangOrDisagreement(report.error)) report.killers.push_back(kEngineError);
    return {each.fault, report};
  }
  ADD_FAILURE() << row;
  return {};
}

TEST(DeviceComplaintTest, WhatMustFindAFaultMustFindIt) {
  EXPECT_THAT(DeviceComplaint(Outcome("A2", {"numeric_equivalence"})), IsEmpty());
  EXPECT_THAT(DeviceComplaint(Outcome("A2", {})), HasSubstr("found by nothing"));
  EXPECT_THAT(DeviceComplaint(Outcome("A2", {"padding"})),
              HasSubstr("not found by numeric_equivalence"));
  EXPECT_THAT(DeviceComplaint(Outcome("K1", {})), HasSubstr("not found by engine_error"));
}

// B4 is found by values on the cpu engine; here they are those of a race.
TEST(DeviceComplaintTest, OfARaceOnlyItsOrderIsJudged) {
  EXPECT_THAT(DeviceComplaint(Outcome("B4", {"ordering"})), IsEmpty());
  EXPECT_THAT(DeviceComplaint(Outcome("B4", {"numeric_equivalence"})), HasSubstr("ordering"));
}

TEST(DeviceComplaintTest, AnErrorFindsAFaultOnlyIfItIsAHangThatNamesARank) {
  EXPECT_THAT(
      DeviceComplaint(Outcome("A2", {}, absl::DeadlineExceededError("rank 1 has not arrived"))),
      IsEmpty());
  EXPECT_THAT(DeviceComplaint(Outcome("A2", {}, absl::DeadlineExceededError("too late"))),
              HasSubstr("names no rank"));
  EXPECT_THAT(DeviceComplaint(Outcome("A2", {}, absl::InternalError("rank 0: illegal address"))),
              HasSubstr("cannot be run"));
}

TEST(DeviceComplaintTest, WhatIsNoFaultMustPass) {
  EXPECT_THAT(DeviceComplaint(Outcome("C17", {})), IsEmpty());
  EXPECT_THAT(DeviceComplaint(Outcome("C17", {"liveness"})), HasSubstr("is no fault"));
  EXPECT_THAT(
      DeviceComplaint(Outcome("C17", {}, absl::DeadlineExceededError("rank 1 has not arrived"))),
      HasSubstr("is no fault"));
}

// Shows what an engine shows, and says that its sums have no fixed order.
class AnyOrderEngine : public Engine {
 public:
  explicit AnyOrderEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  absl::StatusOr<const StepObservation*> Step() override {
    const absl::StatusOr<const StepObservation*> step = engine_->Step();
    if (!step.ok()) return step;
    step_ = **step;
    step_.any_order = true;
    return &step_;
  }

 private:
  const std::unique_ptr<Engine> engine_;
  StepObservation step_;
};

// The cpu engine in place of a GPU's, so that what is shown goes the way of a GPU's.
absl::StatusOr<CaseEngine> EngineOnCpus(const RunDescription& run, EngineKind kind,
                                        const EngineParts& parts, bool) {
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      MakeCpuEngine(run, parts, MemoryBudget{.limit_bytes = int64_t{1} << 30});
  if (!engine.ok()) return engine.status();
  CaseEngine made;
  made.engine = *std::move(engine);
  if (kind == EngineKind::kCuda) {
    made.engine = std::make_unique<AnyOrderEngine>(std::move(made.engine));
  }
  return made;
}

TEST(DeviceFaultsTest, WithVersionsOfTheReplayNoneIsMissed) {
  const KillEngines engines = {
      .values = EngineKind::kCudaShared, .provenance = false, .make_device_engine = EngineOnCpus};
  for (const DeviceFault& each : DeviceFaults()) {
    if (!each.left_out.empty()) continue;
    const absl::StatusOr<RunDescription> run = ParseFaultRun(each.fault.run);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(DeviceComplaint({each.fault, RunEdited(*run, each.fault.apply, engines)}), "");
  }
}

TEST(OtherThanOnCpusTest, WithVersionsOfTheReplayNoEditIs) {
  constexpr size_t kStride = 29;
  KillEngines cpu;
  cpu.provenance = false;
  const KillEngines replayed = {
      .values = EngineKind::kCudaShared, .provenance = false, .make_device_engine = EngineOnCpus};
  size_t next = 0;
  for (const EditRun& named : EditRuns()) {
    const absl::StatusOr<RunDescription> run = ParseFaultRun(named.line);
    ASSERT_TRUE(run.ok()) << run.status();
    const std::vector<PlanEdit> edits = EditsOfStep(*run, kEditedStep);
    for (; next < edits.size(); next += kStride) {
      const PartsEdit apply = ApplyEdit(edits[next], kEditedStep);
      EXPECT_EQ(OtherThanOnCpus(RunEdited(*run, apply, cpu), RunEdited(*run, apply, replayed)), "")
          << named.name << "/" << edits[next].name;
    }
    next -= edits.size();
  }
}

KillReport FoundBy(std::vector<std::string> killers, absl::Status error = {}) {
  KillReport report;
  report.killers = std::move(killers);
  report.error = std::move(error);
  return report;
}

TEST(OtherThanOnCpusTest, TellsWhatDiffers) {
  const KillReport nothing = FoundBy({});
  const KillReport values = FoundBy({"numeric_equivalence", "liveness"});
  EXPECT_THAT(OtherThanOnCpus(nothing, nothing), IsEmpty());
  EXPECT_THAT(OtherThanOnCpus(values, FoundBy({"liveness"})), IsEmpty());
  EXPECT_THAT(OtherThanOnCpus(values, nothing), HasSubstr("by nothing here"));
  EXPECT_THAT(OtherThanOnCpus(nothing, values), HasSubstr("by nothing on CPUs"));
  EXPECT_THAT(OtherThanOnCpus(values, FoundBy({"padding"})), HasSubstr("by others, padding"));
  EXPECT_THAT(OtherThanOnCpus(FoundBy({"ordering", "liveness"}), FoundBy({"ordering"})), IsEmpty());
  const KillReport hangs = FoundBy({kEngineError}, absl::DeadlineExceededError("rank 0 waited"));
  EXPECT_THAT(OtherThanOnCpus(values, hangs), IsEmpty());
  EXPECT_THAT(OtherThanOnCpus(nothing, hangs), HasSubstr("rank 0 waited"));
  const KillReport broken = FoundBy({}, absl::InternalError("rank 0: illegal address"));
  EXPECT_THAT(OtherThanOnCpus(values, broken), HasSubstr("illegal address"));
  const KillReport no_plan = FoundBy({}, absl::InvalidArgumentError("outside the plan"));
  EXPECT_THAT(OtherThanOnCpus(no_plan, no_plan), IsEmpty());
  EXPECT_THAT(OtherThanOnCpus(no_plan, broken), HasSubstr("illegal address"));
  EXPECT_THAT(OtherThanOnCpus(values, no_plan), HasSubstr("outside the plan"));
}

TEST(FaultsWithinBoundsTest, BoundsFindThem) {
  const KillEngines engines = {
      .values = EngineKind::kCuda, .provenance = false, .make_device_engine = EngineOnCpus};
  for (const Fault& fault : FaultsWithinBounds()) {
    const absl::StatusOr<RunDescription> run = ParseFaultRun(fault.run);
    ASSERT_TRUE(run.ok()) << run.status();
    const KillReport without = RunEdited(*run, {}, engines);
    EXPECT_FALSE(KilledBy(without, "numeric_equivalence")) << fault.run;
    EXPECT_TRUE(without.error.ok()) << without.error;
    EXPECT_EQ(Complaint({fault, RunEdited(*run, fault.apply, engines)}), "");
  }
}

// On CPUs bit by bit.
TEST(FaultsWithinBoundsTest, AreFoundAndTheirRunsPass) {
  for (const Fault& fault : FaultsWithinBounds()) {
    const absl::StatusOr<RunDescription> run = ParseFaultRun(fault.run);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->model.kind, ModelKind::kMlp) << "sums of a probe are exact in any order";
    EXPECT_FALSE(Killed(RunEdited(*run, {}))) << fault.run;
    EXPECT_EQ(Complaint({fault, RunEdited(*run, fault.apply)}), "");
  }
}

}  // namespace
}  // namespace shardproof
