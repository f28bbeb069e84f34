// The cuda engine with all ranks on one GPU, whose collectives add in rank order: what it computes
// is compared with the cpu engine.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/forwarding_communicator.h"
#include "collectives/nccl/kernel_witness.h"
#include "collectives/simulated/shared_gpu_world.h"
#include "gtest/gtest.h"
#include "invariants/observation/padding_value.h"
#include "invariants/run_description/parse.h"
#include "invariants/suite/mode_rows.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/engines/cuda/cuda_engine.h"
#include "trainer/engines/cuda/forwarding_world_for_test.h"
#include "trainer/engines/engine_parts.h"
#include "trainer/engines/plan_observer.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

constexpr int64_t kHostBytes = int64_t{1} << 32;

RunDescription Parsed(absl::string_view line, const ModeRow& row, LayoutKind layout,
                      int32_t ranks) {
  absl::StatusOr<RunDescription> run = ParseRun(line, ImportModel);
  EXPECT_TRUE(run.ok()) << run.status();
  ApplyModeRow(row, layout, run->sharding);
  run->sharding.world_size = WorldSize{ranks};
  return *std::move(run);
}

// The run on one GPU. Members go in reverse: the engine before the world.
struct OnGpu {
  using Wrap = std::function<std::unique_ptr<DeviceWorld>(std::unique_ptr<DeviceWorld>)>;

  OnGpu(const RunDescription& run, EngineParts parts, const CudaOptions& options,
        const Wrap& wrap = nullptr) {
    absl::StatusOr<std::unique_ptr<DeviceWorld>> made =
        MakeSharedGpuWorld(run.sharding.world_size, /*device=*/0);
    status = made.status();
    if (!status.ok()) return;
    world = *std::move(made);
    if (wrap) world = wrap(std::move(world));
    absl::StatusOr<std::unique_ptr<CudaEngine>> engine_made =
        MakeCudaEngine(run, std::move(parts), *world, options);
    status = engine_made.status();
    if (status.ok()) engine = *std::move(engine_made);
  }
  explicit OnGpu(const RunDescription& run) : OnGpu(run, PlannedParts(run), CudaOptions()) {}

  absl::Status status;
  std::unique_ptr<DeviceWorld> world;
  std::unique_ptr<CudaEngine> engine;
};

std::string Where(const RunDescription& run, const StateSegment& segment) {
  return absl::StrCat(ModeRowName(run.sharding), ", ", Name(run.sharding.layout), ", ",
                      run.sharding.world_size.value, " ranks: ", Name(segment.state), " of tensor ",
                      segment.tensor, " in buffer ", segment.buffer);
}

bool IsRightPadding(const StateSegment& segment, float value) {
  if (segment.state == StateClass::kReducedGradient) return std::isnan(value);
  return std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(PaddingValue(segment.buffer));
}

// tolerance 0: bit for bit.
void ExpectSameSegment(const RunDescription& run, const StateSegment& gpu, const StateSegment& cpu,
                       float tolerance) {
  ASSERT_EQ(gpu.tensor, cpu.tensor);
  ASSERT_EQ(gpu.buffer, cpu.buffer);
  ASSERT_EQ(gpu.buffer_offset, cpu.buffer_offset);
  ASSERT_EQ(gpu.range.count, cpu.range.count);
  for (int64_t i = 0; i < gpu.range.count; ++i) {
    const float value = gpu.values[i];
    if (gpu.tensor < 0) {
      ASSERT_TRUE(IsRightPadding(gpu, value)) << Where(run, gpu) << " padding " << i;
    } else if (tolerance == 0) {
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(cpu.values[i]))
          << Where(run, gpu) << " element " << i << ": " << value << " for " << cpu.values[i];
    } else {
      ASSERT_NEAR(value, cpu.values[i], tolerance) << Where(run, gpu) << " element " << i;
    }
  }
}

void ExpectSameState(const RunDescription& run, const StepObservation& gpu,
                     const StepObservation& cpu, float tolerance) {
  ASSERT_EQ(gpu.states.size(), cpu.states.size());
  for (size_t rank = 0; rank < gpu.states.size(); ++rank) {
    EXPECT_EQ(gpu.states[rank].ranks, cpu.states[rank].ranks);
    EXPECT_EQ(gpu.states[rank].bytes, cpu.states[rank].bytes);
    ASSERT_EQ(gpu.states[rank].segments.size(), cpu.states[rank].segments.size());
    for (size_t i = 0; i < gpu.states[rank].segments.size(); ++i) {
      ExpectSameSegment(run, gpu.states[rank].segments[i], cpu.states[rank].segments[i], tolerance);
    }
    ASSERT_EQ(gpu.states[rank].steps.size(), cpu.states[rank].steps.size());
    for (size_t i = 0; i < gpu.states[rank].steps.size(); ++i) {
      EXPECT_EQ(gpu.states[rank].steps[i].tensor, cpu.states[rank].steps[i].tensor);
      EXPECT_EQ(gpu.states[rank].steps[i].updates, cpu.states[rank].steps[i].updates);
    }
  }
}

// Losses, clipping, and the events of the plans.
void ExpectSameReport(const RunDescription& run, const StepObservation& gpu,
                      const StepObservation& cpu, double tolerance) {
  EXPECT_EQ(gpu.step, cpu.step);
  EXPECT_FALSE(gpu.any_order);
  ASSERT_EQ(gpu.losses.size(), cpu.losses.size());
  for (size_t i = 0; i < gpu.losses.size(); ++i) {
    EXPECT_NEAR(gpu.losses[i], cpu.losses[i], tolerance);
  }
  ASSERT_EQ(gpu.clips.size(), cpu.clips.size());
  for (size_t i = 0; i < gpu.clips.size(); ++i) {
    EXPECT_NEAR(gpu.clips[i].norm, cpu.clips[i].norm, 1e-12 + tolerance);
    EXPECT_NEAR(gpu.clips[i].coefficient, cpu.clips[i].coefficient, tolerance);
  }
  const Placement placement = MakePlacement(run);
  for (size_t rank = 0; rank < gpu.events.size(); ++rank) {
    const RankEvents planned = EventsOfPlan(
        PlannedParts(run).plan(run, placement, Rank{static_cast<int32_t>(rank)}, gpu.step),
        {static_cast<int32_t>(rank), 1, 1});
    ASSERT_EQ(gpu.events[rank].events.size(), planned.events.size());
    EXPECT_EQ(gpu.events[rank].live_before, planned.live_before);
    for (size_t i = 0; i < planned.events.size(); ++i) {
      const Event& seen = gpu.events[rank].events[i];
      EXPECT_EQ(seen.kind, planned.events[i].kind);
      EXPECT_EQ(seen.collective, planned.events[i].collective);
      EXPECT_EQ(seen.elements, planned.events[i].elements);
      EXPECT_EQ(seen.group, planned.events[i].group);
      EXPECT_TRUE(seen.completed);
    }
  }
}

// Three steps on both. tolerance 0: bit for bit.
void ExpectSameTraining(const RunDescription& run, float tolerance) {
  OnGpu gpu(run);
  ASSERT_TRUE(gpu.status.ok()) << gpu.status;
  absl::StatusOr<std::unique_ptr<Engine>> cpu = MakeCpuEngine(run, kHostBytes);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  for (int step = 0; step < 3; ++step) {
    const absl::StatusOr<const StepObservation*> seen = gpu.engine->Step();
    ASSERT_TRUE(seen.ok()) << ModeRowName(run.sharding) << ": " << seen.status();
    const absl::StatusOr<const StepObservation*> expected = (*cpu)->Step();
    ASSERT_TRUE(expected.ok()) << expected.status();
    ExpectSameState(run, **seen, **expected, tolerance);
    ExpectSameReport(run, **seen, **expected, tolerance);
    if (testing::Test::HasFailure()) return;
  }
}

std::vector<LayoutKind> LayoutsOf(Mode mode) {
  if (mode == Mode::kReplicated) return {LayoutKind::kFlat};
  if (mode == Mode::kZero1Broadcast) return {LayoutKind::kOwner};
  return {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner};
}

void ExpectSameInEveryMode(absl::string_view line, float tolerance) {
  for (const ModeRow& row : AllModeRows()) {
    for (const LayoutKind layout : LayoutsOf(row.mode)) {
      for (const int32_t ranks : {2, 4}) {
        ExpectSameTraining(Parsed(line, row, layout, ranks), tolerance);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CudaEngine, TrainsProbesAsTheCpuEngineBitForBit) {
  ExpectSameInEveryMode(
      "model=probe:10x3,7,2x2x2,1,33x5;learning_rate=0.5;num_micro_batches=2;bucket_cap_bytes=100",
      0);
}

// Clipped norms are sums in float64 of another order than the cpu engine's, so this one is close.
TEST(CudaEngine, TrainsTiesUsageGroupsAndClipping) {
  ExpectSameInEveryMode(
      "model=probe:7x3,7x3,0,5,2x2;ties=t1:t0;units=0+4!,1+3,2;usage=2@rank:0,3@steps:odd;"
      "groups=0@weight_decay:0;num_micro_batches=2;micro_batch_size=1;bucket_cap_bytes=84;"
      "clip_grad_norm=0.5",
      1e-6f);
}

TEST(CudaEngine, TrainsWithSgdBitForBit) {
  ExpectSameInEveryMode(
      "model=probe:7x3,5,4,2x2;units=0-1,2-3;num_micro_batches=3;optimizer=sgd;"
      "micro_batch_size=2;bucket_cap_bytes=60",
      0);
}

// Products add in another order than on the host; SGD does not blow rounding up.
TEST(CudaEngine, TrainsLayersCloseToTheCpuEngine) {
  ExpectSameInEveryMode(
      "model=mlp:33,65,17,129,7:bias;optimizer=sgd;bucket_cap_bytes=9000;micro_batch_size=3",
      1e-5f);
  ExpectSameInEveryMode(
      "model=mlp:5,4,3,2,9:bias;optimizer=sgd;units=0+3!,1,2;num_micro_batches=3;grad_sync=last;"
      "micro_batch_size=2;bucket_cap_bytes=64",
      1e-5f);
}

// Streams are held up at random, before and after every collective (DelayingWorld).
OnGpu::Wrap Delaying(uint32_t seed) {
  return [seed](std::unique_ptr<DeviceWorld> inner) -> std::unique_ptr<DeviceWorld> {
    return std::make_unique<DelayingWorld>(std::move(inner), seed);
  };
}

// A barrier on the compute stream at a step's end, by which a world gets to know that stream. It
// orders nothing that the step's end does not.
EngineParts WithComputeBarrier(const RunDescription& run) {
  EngineParts parts = PlannedParts(run);
  parts.plan = [plan = parts.plan](const RunDescription& run, const Placement& placement, Rank rank,
                                   int64_t step) {
    StepPlan edited = plan(run, placement, rank, step);
    Op barrier;
    barrier.kind = OpKind::kCollective;
    barrier.collective = CollectiveKind::kBarrier;
    barrier.group = {0, 1, run.sharding.world_size.value};
    edited.ops.push_back(barrier);
    return edited;
  };
  return parts;
}

// Three steps with delays and without, on the GPU: bit for bit.
void ExpectDelaysChangeNothing(const RunDescription& run, uint32_t seed) {
  OnGpu plain(run);
  OnGpu delayed(run, WithComputeBarrier(run), CudaOptions(), Delaying(seed));
  ASSERT_TRUE(plain.status.ok() && delayed.status.ok()) << plain.status << delayed.status;
  for (int step = 0; step < 3; ++step) {
    const auto expected = plain.engine->Step();
    const auto seen = delayed.engine->Step();
    ASSERT_TRUE(expected.ok() && seen.ok()) << expected.status() << seen.status();
    ExpectSameState(run, **seen, **expected, 0);
    EXPECT_EQ((*seen)->losses, (*expected)->losses);
    if (testing::Test::HasFailure()) return;
  }
}

void ExpectDelaysChangeNothingInAnyMode(absl::string_view line) {
  uint32_t seed = 1;
  for (const ModeRow& row : AllModeRows()) {
    for (const int32_t ranks : {2, 3}) {
      ExpectDelaysChangeNothing(Parsed(line, row, LayoutsOf(row.mode).front(), ranks), seed++);
      if (testing::Test::HasFailure()) return;
    }
  }
}

constexpr char kProbeToDelay[] =
    "model=probe:10x3,7,2x2x2,1,33x5;learning_rate=0.5;num_micro_batches=2;bucket_cap_bytes=100";

// The plain run is compared with the cpu engine by TrainsProbesAsTheCpuEngineBitForBit.
TEST(CudaEngine, DelayedStreamsChangeNothingOfProbes) {
  ExpectDelaysChangeNothingInAnyMode(kProbeToDelay);
}

TEST(CudaEngine, DelayedStreamsChangeNothingOfLayers) {
  ExpectDelaysChangeNothingInAnyMode(
      "model=mlp:33,65,17,7:bias;num_micro_batches=2;bucket_cap_bytes=9000;micro_batch_size=3");
}

// And that the delays would show it: no operation waits for another stream here.
TEST(CudaEngine, DelayedStreamsShowThatWaitsAreMissing) {
  const RunDescription run =
      Parsed(kProbeToDelay, {Mode::kFullShard, Prefetch::kNone}, LayoutKind::kFlat, 2);
  EngineParts parts = WithComputeBarrier(run);
  parts.plan = [plan = parts.plan](const RunDescription& run, const Placement& placement, Rank rank,
                                   int64_t step) {
    StepPlan edited = plan(run, placement, rank, step);
    for (Op& op : edited.ops) op.wait_count = 0;
    return edited;
  };
  OnGpu plain(run);
  OnGpu careless(run, std::move(parts), CudaOptions(), Delaying(1));
  ASSERT_TRUE(plain.status.ok() && careless.status.ok()) << plain.status << careless.status;
  int64_t wrong = 0;
  for (int step = 0; step < 3; ++step) {
    const auto expected = plain.engine->Step();
    const auto seen = careless.engine->Step();
    ASSERT_TRUE(expected.ok() && seen.ok()) << expected.status() << seen.status();
    for (size_t i = 0; i < (*expected)->states[0].segments.size(); ++i) {
      const StateSegment& right = (*expected)->states[0].segments[i];
      const StateSegment& other = (*seen)->states[0].segments[i];
      if (right.tensor < 0 || right.state != StateClass::kParameter) continue;
      for (int64_t k = 0; k < right.range.count; ++k) {
        wrong +=
            std::bit_cast<uint32_t>(right.values[k]) != std::bit_cast<uint32_t>(other.values[k]);
      }
    }
  }
  EXPECT_GT(wrong, 0);
}

// Kernels whose name contains `name`, by CUPTI's id of their stream; as counts, ascending.
std::vector<int64_t> CountsByStream(const std::vector<KernelRecord>& kernels,
                                    absl::string_view name) {
  std::map<uint32_t, int64_t> by_stream;
  for (const KernelRecord& kernel : kernels) {
    if (absl::StrContains(kernel.name, std::string(name))) ++by_stream[kernel.stream];
  }
  std::vector<int64_t> counts;
  for (const auto& [stream, count] : by_stream) counts.push_back(count);
  std::sort(counts.begin(), counts.end());
  return counts;
}

// What the plans of all ranks put on each stream of each rank, in the same form.
template <typename Count>
std::vector<int64_t> PlannedByStream(const RunDescription& run, Count count) {
  const EngineParts parts = PlannedParts(run);
  std::vector<int64_t> counts;
  for (int32_t rank = 0; rank < run.sharding.world_size.value; ++rank) {
    const StepPlan plan = parts.plan(run, parts.placement, Rank{rank}, 1);
    std::array<int64_t, kStreams> of_stream = {};
    for (const Op& op : plan.ops) of_stream[static_cast<size_t>(op.stream)] += count(plan, op);
    for (const int64_t launches : of_stream) {
      if (launches > 0) counts.push_back(launches);
    }
  }
  std::sort(counts.begin(), counts.end());
  return counts;
}

int64_t PoisonsOf(const StepPlan& plan, const Op& op) {
  int64_t count = 0;
  for (const PlanAccess& access : plan.AccessesOf(op)) {
    const bool poisons = access.kind == AccessKind::kAllocate || access.kind == AccessKind::kFree;
    count += poisons && plan.buffers[access.buffer].elements > 0 ? 1 : 0;
  }
  return count;
}

// CUPTI sees on which stream a kernel runs. Poison is on the stream of the operation that
// allocates or frees, collectives among them, and updates are on theirs.
TEST(CudaEngine, KernelsRunOnTheStreamsOfThePlan) {
  const RunDescription run =
      Parsed("model=mlp:32,64,16,8;micro_batch_size=4", {Mode::kFullShard, Prefetch::kBackwardPre},
             LayoutKind::kFlat, 2);
  OnGpu gpu(run);
  ASSERT_TRUE(gpu.status.ok()) << gpu.status;
  ASSERT_TRUE(gpu.engine->Step().ok());
  const auto witness = KernelWitness::Start();
  ASSERT_TRUE(witness.ok()) << witness.status();
  const auto stepped = gpu.engine->Step();
  ASSERT_TRUE(stepped.ok()) << stepped.status();
  const auto kernels = (*witness)->Collect();
  ASSERT_TRUE(kernels.ok()) << kernels.status();

  const std::vector<int64_t> poisons = PlannedByStream(run, PoisonsOf);
  ASSERT_EQ(poisons.size(), 4u) << "both streams of both ranks allocate or free";
  EXPECT_EQ(CountsByStream(*kernels, "FillElement"), poisons);
  const std::vector<int64_t> updates =
      PlannedByStream(run, [](const StepPlan&, const Op& op) { return op.update_count; });
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_EQ(CountsByStream(*kernels, "AdamW"), updates);
}

TEST(CudaEngine, TimedStepsTrainToo) {
  const RunDescription run =
      Parsed("model=probe:10x3,7,33x5;learning_rate=0.5;bucket_cap_bytes=100",
             {Mode::kFullShard, Prefetch::kBackwardPre}, LayoutKind::kFlat, 2);
  OnGpu gpu(run);
  ASSERT_TRUE(gpu.status.ok()) << gpu.status;
  absl::StatusOr<std::unique_ptr<Engine>> cpu = MakeCpuEngine(run, kHostBytes);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  for (int step = 0; step < 2; ++step) ASSERT_TRUE((*cpu)->Step().ok());
  for (int step = 0; step < 2; ++step) {
    const absl::StatusOr<std::vector<double>> milliseconds = gpu.engine->TimedStep();
    ASSERT_TRUE(milliseconds.ok()) << milliseconds.status();
    ASSERT_EQ(milliseconds->size(), 2u);
    for (const double time : *milliseconds) EXPECT_GT(time, 0);
  }
  const absl::StatusOr<const StepObservation*> seen = gpu.engine->Step();
  ASSERT_TRUE(seen.ok()) << seen.status();
  ExpectSameState(run, **seen, **(*cpu)->Step(), 0);
}

TEST(CudaEngine, TrainsTheSameWithoutPoison) {
  const RunDescription run =
      Parsed("model=probe:10x3,7,33x5;learning_rate=0.5;bucket_cap_bytes=100",
             {Mode::kZero2, Prefetch::kNotApplicable}, LayoutKind::kFlat, 2);
  OnGpu with(run);
  OnGpu without(run, PlannedParts(run), {.poison = false});
  ASSERT_TRUE(with.status.ok() && without.status.ok()) << with.status << without.status;
  for (int step = 0; step < 3; ++step) {
    const auto a = with.engine->Step();
    const auto b = without.engine->Step();
    ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
    for (size_t rank = 0; rank < 2; ++rank) {
      for (size_t i = 0; i < (*a)->states[rank].segments.size(); ++i) {
        const StateSegment& segment = (*a)->states[rank].segments[i];
        if (segment.tensor < 0) continue;
        ExpectSameSegment(run, (*b)->states[rank].segments[i], segment, 0);
      }
    }
  }
}

// From its third collective on, a rank starts none.
class FallsSilent : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    if (++calls_ <= 2) return inner().Start(call);
    return CollectiveHandle{kDropped};
  }
  absl::StatusOr<bool> Poll(CollectiveHandle handle) override {
    if (handle.id == kDropped) return false;
    return inner().Poll(handle);
  }
  absl::Status Wait(CollectiveHandle handle, absl::Duration timeout) override {
    if (handle.id == kDropped) return absl::DeadlineExceededError("dropped");
    return inner().Wait(handle, timeout);
  }

 private:
  static constexpr int64_t kDropped = int64_t{1} << 60;
  int calls_ = 0;
};

TEST(CudaEngine, ARankThatFallsSilentEndsTheStepWithNames) {
  const RunDescription run = Parsed("model=probe:10x3,7,33x5;bucket_cap_bytes=100",
                                    {Mode::kFullShard, Prefetch::kNone}, LayoutKind::kFlat, 2);
  EngineParts parts = PlannedParts(run);
  parts.decorate = [](Rank rank, Communicator* inner) -> std::unique_ptr<Communicator> {
    if (rank.value == 0) return nullptr;
    return std::make_unique<FallsSilent>(inner);
  };
  const absl::Time begin = absl::Now();
  OnGpu gpu(run, std::move(parts), {.timeout = absl::Seconds(2)});
  ASSERT_TRUE(gpu.status.ok()) << gpu.status;
  const absl::Status status = gpu.engine->Step().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "operation ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "all_gather")) << status;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
}

TEST(CudaEngine, SaysHowMuchMemoryItHas) {
  const RunDescription shared =
      Parsed("model=mlp:8x256", {Mode::kZero2, Prefetch::kNotApplicable}, LayoutKind::kFlat, 2);
  OnGpu two(shared);
  ASSERT_TRUE(two.status.ok()) << two.status;
  ASSERT_EQ(two.engine->memory().size(), 2u);
  for (const DeviceMemoryFigures& figures : two.engine->memory()) {
    EXPECT_GT(figures.arena_steady, 0);
    EXPECT_GT(figures.arena_total, figures.arena_steady);
    EXPECT_GE(figures.arena_total, figures.plan_peak);
    EXPECT_LE(static_cast<double>(figures.arena_total),
              1.02 * static_cast<double>(figures.plan_peak));
    // Both ranks allocate on this device, perhaps at the same time.
    EXPECT_EQ(figures.driver_steady, -1);
    EXPECT_EQ(figures.driver_peak, -1);
  }
  RunDescription alone = shared;
  alone.sharding.world_size = WorldSize{1};
  OnGpu one(alone);
  ASSERT_TRUE(one.status.ok()) << one.status;
  const DeviceMemoryFigures figures = one.engine->memory()[0];
  // The driver gives memory in pieces of megabytes.
  EXPECT_GE(figures.driver_steady, figures.arena_steady);
  EXPECT_GE(figures.driver_peak, figures.arena_total);
  EXPECT_LE(figures.driver_peak, figures.arena_total + (int64_t{4} << 20));
}

TEST(CudaEngine, OutOfMemoryNamesTheModesNeed) {
  const RunDescription run = Parsed(
      "model=mlp:4x120000", {Mode::kReplicated, Prefetch::kNotApplicable}, LayoutKind::kFlat, 1);
  OnGpu gpu(run);
  EXPECT_EQ(gpu.status.code(), absl::StatusCode::kResourceExhausted) << gpu.status;
  EXPECT_TRUE(absl::StrContains(gpu.status.message(), "rank 0 asked for ")) << gpu.status;
  EXPECT_TRUE(absl::StrContains(gpu.status.message(), "replicated needs ")) << gpu.status;
}

TEST(CudaEngine, TheWorldHasAsManyRanksAsTheRun) {
  const RunDescription run =
      Parsed("model=probe:4", {Mode::kReplicated, Prefetch::kNotApplicable}, LayoutKind::kFlat, 2);
  absl::StatusOr<std::unique_ptr<DeviceWorld>> world = MakeSharedGpuWorld(WorldSize{3}, 0);
  ASSERT_TRUE(world.ok()) << world.status();
  const absl::Status status = MakeCudaEngine(run, PlannedParts(run), **world, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace shardproof
