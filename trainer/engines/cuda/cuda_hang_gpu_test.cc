// Steps that could never end, with more launches than CUDA takes before it makes the host wait
// inside of one: the engine must return all the same, and say who and what it is.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/forwarding_communicator.h"
#include "collectives/simulated/shared_gpu_world.h"
#include "gtest/gtest.h"
#include "invariants/run_description/parse.h"
#include "invariants/suite/mode_rows.h"
#include "trainer/engines/cuda/cuda_engine.h"
#include "trainer/engines/cuda/forwarding_world_for_test.h"
#include "trainer/engines/engine_parts.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr absl::Duration kMost = absl::Seconds(15);  // timeout, grace, grace, and some

RunDescription FullShard(const std::string& line) {
  absl::StatusOr<RunDescription> run = ParseRun(line, ImportModel);
  EXPECT_TRUE(run.ok()) << run.status();
  ApplyModeRow({Mode::kFullShard, Prefetch::kNone}, LayoutKind::kFlat, run->sharding);
  run->sharding.world_size = WorldSize{2};
  return *std::move(run);
}

// Poison alone is some launches for each unit and micro-batch.
RunDescription ManyOperations() {
  return FullShard("model=probe:10x3,7,33x5,4,6,8;num_micro_batches=100");
}

// One backward operation, and one update, of more tensors than the queue has room for.
RunDescription ManyLaunchesInOneOperation() {
  std::string model = "model=probe:4";
  for (int tensor = 1; tensor < 1500; ++tensor) absl::StrAppend(&model, ",4");
  return FullShard(absl::StrCat(model, ";units=0-1499;num_micro_batches=2"));
}

struct Outcome {
  absl::Status status;
  absl::Duration time;  // of the step and of the engine's end
};

Outcome StepOn(DeviceWorld& world, const RunDescription& run, EngineParts parts) {
  absl::StatusOr<std::unique_ptr<CudaEngine>> engine =
      MakeCudaEngine(run, std::move(parts), world, {.timeout = kTimeout});
  if (!engine.ok()) return {engine.status(), absl::ZeroDuration()};
  const absl::Time begin = absl::Now();
  const absl::Status status = (*engine)->Step().status();
  // The error stays.
  EXPECT_EQ((*engine)->Step().status(), status);
  engine->reset();
  return {status, absl::Now() - begin};
}

void ExpectLate(const Outcome& outcome, absl::string_view who) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(outcome.status)) << outcome.status;
  EXPECT_TRUE(absl::StrContains(outcome.status.message(), who)) << outcome.status;
  EXPECT_TRUE(absl::StrContains(outcome.status.message(), "all_gather")) << outcome.status;
  EXPECT_LT(outcome.time, kMost) << outcome.status;
}

class StartsNothing : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall&) override {
    return CollectiveHandle{0};
  }
  absl::StatusOr<bool> Poll(CollectiveHandle) override { return false; }
  absl::Status Wait(CollectiveHandle, absl::Duration) override {
    return absl::DeadlineExceededError("rank 1 has not started its all_gather");
  }
};

TEST(CudaHang, ARankThatStartsNoCollectiveIsNamed) {
  const RunDescription run = ManyOperations();
  absl::StatusOr<std::unique_ptr<DeviceWorld>> world = MakeSharedGpuWorld(WorldSize{2}, 0);
  ASSERT_TRUE(world.ok()) << world.status();
  EngineParts parts = PlannedParts(run);
  const StepPlan plan = parts.plan(run, parts.placement, Rank{0}, 1);
  EXPECT_GT(plan.ops.size() + plan.accesses.size(), 3000u);
  parts.decorate = [](Rank rank, Communicator* inner) -> std::unique_ptr<Communicator> {
    if (rank.value == 0) return nullptr;
    return std::make_unique<StartsNothing>(inner);
  };
  ExpectLate(StepOn(**world, run, std::move(parts)), "rank 1");
}

absl::StatusOr<std::unique_ptr<StuckWorld>> MakeStuckWorld() {
  absl::StatusOr<std::unique_ptr<DeviceWorld>> world = MakeSharedGpuWorld(WorldSize{2}, 0);
  if (!world.ok()) return world.status();
  return std::make_unique<StuckWorld>(*std::move(world), Rank{1});
}

// The host stops before CUDA would stop it, so that it can ask what the step waits for.
TEST(CudaHang, AStreamThatIsStuckEndsTheStepWithItsCollective) {
  const RunDescription run = ManyOperations();
  const auto world = MakeStuckWorld();
  ASSERT_TRUE(world.ok()) << world.status();
  ExpectLate(StepOn(**world, run, PlannedParts(run)), "operation ");
}

// Here it cannot: CUDA may hold both ranks inside of one operation, until the abort.
TEST(CudaHang, ThreadsThatCudaHoldsInALaunchComeFreeWithTheAbort) {
  const RunDescription run = ManyLaunchesInOneOperation();
  const auto world = MakeStuckWorld();
  ASSERT_TRUE(world.ok()) << world.status();
  ExpectLate(StepOn(**world, run, PlannedParts(run)), "operation ");
}

}  // namespace
}  // namespace shardproof
