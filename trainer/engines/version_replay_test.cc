// The replay of plans must tell the versions that an engine met which moved the values: of a right
// trainer in every mode, and of one whose parameters arrive too late or never.
#include "trainer/engines/version_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "property_tests/generators/case_generator.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/model/importers.h"
#include "trainer/plan/planner.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPlenty = int64_t{1} << 30;

// The first difference between the versions that the cpu engine meets in the run's steps and those
// of the replay; empty: none.
std::string Difference(const RunDescription& run, const EngineParts& parts) {
  const auto engine = MakeCpuEngine(run, parts, {.limit_bytes = kPlenty});
  if (!engine.ok()) return std::string(engine.status().message());
  const std::unique_ptr<VersionReplay> replay = MakeVersionReplay(run, parts);
  for (int64_t step = 0; step < run.data.steps; ++step) {
    const absl::StatusOr<const StepObservation*> observed = (*engine)->Step();
    if (!observed.ok()) return std::string(observed.status().message());
    std::vector<RankEvents> events = (*observed)->events;
    for (RankEvents& rank : events) {
      for (Access& access : rank.accesses) access.version = 12345;
    }
    const absl::Status replayed = replay->Step(events);
    if (!replayed.ok()) return std::string(replayed.message());
    for (size_t rank = 0; rank < events.size(); ++rank) {
      const std::vector<Access>& met = (*observed)->events[rank].accesses;
      for (size_t i = 0; i < met.size(); ++i) {
        if (events[rank].accesses[i].version == met[i].version) continue;
        return absl::StrCat(ModeRowName(run.sharding), ", step ", step, ", rank ", rank,
                            ", access ", i, ": version ", events[rank].accesses[i].version,
                            ", and the engine met ", met[i].version);
      }
    }
  }
  return "";
}

TEST(VersionReplay, TellsWhatTheCpuEngineMeetsInEveryModeAndLayout) {
  for (const char* model : {"mlp:6,9,4,3:bias", "probe:5x3,2,4"}) {
    for (const RunDescription& mode : InEveryMode(TestRun(model, Mode::kReplicated, 3))) {
      for (const RunDescription& layout : InEveryLayout(mode)) {
        for (const RunDescription& run : WithEveryGradSync(layout)) {
          EXPECT_EQ(Difference(run, PlannedParts(run)), "");
        }
      }
    }
  }
}

TEST(VersionReplay, TellsWhatTheCpuEngineMeetsInRandomCases) {
  EXPECT_TRUE(rc::check("versions of replay and engine", [] {
    const CaseSpec spec = *AnyCase({});
    const absl::StatusOr<RunDescription> run = MakeCase(spec, ImportModel);
    RC_ASSERT(run.ok());
    if (!CanPlan(*run).ok()) RC_DISCARD("not planned");
    const std::string difference = Difference(*run, PlannedParts(*run));
    if (!difference.empty()) RC_FAIL(difference);
  }));
}

// The planned trainer with its plans edited, by rank and step.
using PlanEdit = std::function<void(Rank rank, int64_t step, StepPlan& plan)>;
EngineParts Edited(const RunDescription& run, PlanEdit edit) {
  EngineParts parts = PlannedParts(run);
  parts.plan_varies_by_step = true;
  parts.plan = [edit = std::move(edit)](const RunDescription& described, const Placement& placement,
                                        Rank rank, int64_t step) {
    StepPlan plan = PlanStep(described, placement, rank, step);
    edit(rank, step, plan);
    return plan;
  };
  return parts;
}

// Turns collectives of a purpose into operations that do nothing.
PlanEdit Drop(Purpose purpose) {
  return [purpose](Rank, int64_t, StepPlan& plan) {
    for (Op& op : plan.ops) {
      if (op.kind == OpKind::kCollective && op.purpose == purpose) op.kind = OpKind::kRelease;
    }
  };
}

// The versions of parameters that computation reads in the step, by event.
std::vector<int32_t> ReadByCompute(const RankEvents& events) {
  std::vector<int32_t> versions;
  for (const Event& event : events.events) {
    if (event.kind != EventKind::kCompute) continue;
    for (uint32_t i = event.first_access; i < event.first_access + event.access_count; ++i) {
      const Access& access = events.accesses[i];
      const BufferRole role = events.buffers[access.buffer].role;
      const bool parameters =
          role == BufferRole::kParameter || role == BufferRole::kUnshardedParameter;
      if (access.kind == AccessKind::kRead && parameters) versions.push_back(access.version);
    }
  }
  return versions;
}

// Of rank 0, in step 1 of the trainer, by the replay alone.
std::vector<int32_t> ReadInStepOne(const RunDescription& run, const EngineParts& parts) {
  const auto engine = MakeCpuEngine(run, parts, {.limit_bytes = kPlenty});
  EXPECT_TRUE(engine.ok()) << engine.status();
  const std::unique_ptr<VersionReplay> replay = MakeVersionReplay(run, parts);
  std::vector<RankEvents> events;
  for (int64_t step = 0; step < 2; ++step) {
    const absl::StatusOr<const StepObservation*> observed = (*engine)->Step();
    EXPECT_TRUE(observed.ok()) << observed.status();
    events = (*observed)->events;
    for (RankEvents& rank : events) {
      for (Access& access : rank.accesses) access.version = -1;
    }
    const absl::Status status = replay->Step(events);
    EXPECT_TRUE(status.ok()) << status;
  }
  return ReadByCompute(events[0]);
}

TEST(VersionReplay, ShowsAStaleReadWhereAGatherAfterTheUpdateIsMissing) {
  const RunDescription run = TestRun("probe:5,6", Mode::kZero2, 2);
  EXPECT_THAT(ReadInStepOne(run, PlannedParts(run)), testing::Each(1));
  const EngineParts dropped = Edited(run, Drop(Purpose::kGatherParameters));
  const std::vector<int32_t> versions = ReadInStepOne(run, dropped);
  EXPECT_THAT(versions, testing::Each(0));
  EXPECT_FALSE(versions.empty());
  EXPECT_EQ(Difference(run, dropped), "");
}

TEST(VersionReplay, ShowsAReadOfWhatWasNeverGathered) {
  const RunDescription run = TestRun("probe:5,6", Mode::kFullShard, 2);
  const EngineParts dropped = Edited(run, Drop(Purpose::kUnshardParameters));
  const std::vector<int32_t> versions = ReadInStepOne(run, dropped);
  EXPECT_THAT(versions, testing::Each(-1));
  EXPECT_FALSE(versions.empty());
  EXPECT_EQ(Difference(run, dropped), "");
}

TEST(VersionReplay, NamesTheRanksOfPlansThatWaitForEachOther) {
  const RunDescription run = TestRun("probe:5", Mode::kReplicated, 2);
  const EngineParts parts = Edited(run, [](Rank rank, int64_t, StepPlan& plan) {
    for (Op& op : plan.ops) {
      if (rank.value == 1 && op.kind == OpKind::kCollective) op.kind = OpKind::kRelease;
    }
  });
  std::vector<RankEvents> events(2);
  const EngineParts planned = PlannedParts(run);
  for (int32_t rank = 0; rank < 2; ++rank) {
    const StepPlan plan = planned.plan(run, planned.placement, Rank{rank}, 0);
    events[rank].events.resize(plan.ops.size());
    for (const PlanAccess& access : plan.accesses) {
      events[rank].accesses.push_back({access.buffer, access.kind, access.range, -1});
    }
  }
  const absl::Status status = MakeVersionReplay(run, parts)->Step(events);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 waits at operation"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("all_reduce"));
}

TEST(VersionReplay, RefusesEventsThatAreNotThoseOfThePlans) {
  const RunDescription run = TestRun("probe:5", Mode::kReplicated, 2);
  std::vector<RankEvents> events(1);
  EXPECT_EQ(MakeVersionReplay(run, PlannedParts(run))->Step(events).code(),
            absl::StatusCode::kInvalidArgument);
  events.resize(2);
  EXPECT_THAT(std::string(MakeVersionReplay(run, PlannedParts(run))->Step(events).message()),
              HasSubstr("rank 0 shows 0 events"));
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  shardproof::SetRapidCheckDefaults(/*max_success=*/200);
  return RUN_ALL_TESTS();
}
