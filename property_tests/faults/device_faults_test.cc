#include "property_tests/faults/device_faults.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "property_tests/faults/catalogue.h"
#include "property_tests/faults/edit_campaign.h"
#include "property_tests/faults/plan_edits.h"
#include "trainer/engines/cuda/arena.h"
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

// On CPUs bit by bit; by bounds they are judged where sums have no fixed order.
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
