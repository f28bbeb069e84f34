// What is added to an observation, with an engine, a world and a witness that only say what they
// are told to.
#include "trainer/engines/cuda/witnessed_engine.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class ScriptedEngine : public CudaEngine {
 public:
  explicit ScriptedEngine(std::vector<DeviceMemoryFigures> memory) : memory_(std::move(memory)) {}
  absl::StatusOr<const StepObservation*> Step() override {
    observation_.step = steps_++;
    return &observation_;
  }
  absl::StatusOr<std::vector<double>> TimedStep() override { return std::vector<double>{}; }
  std::vector<DeviceMemoryFigures> memory() const override { return memory_; }

 private:
  const std::vector<DeviceMemoryFigures> memory_;
  int64_t steps_ = 0;
  StepObservation observation_;
};

class ScriptedWorld : public DeviceWorld {
 public:
  explicit ScriptedWorld(std::vector<int> devices) : devices_(std::move(devices)) {}
  WorldSize size() const override { return WorldSize{static_cast<int32_t>(devices_.size())}; }
  std::vector<Rank> local_ranks() const override {
    std::vector<Rank> ranks;
    for (size_t i = 0; i < devices_.size(); ++i) ranks.push_back(Rank{static_cast<int32_t>(i)});
    return ranks;
  }
  int device(Rank rank) const override { return devices_[rank.value]; }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(Rank, Group, DeviceStream,
                                                        absl::Duration) override {
    return absl::UnimplementedError("nobody connects");
  }
  void Abort(absl::Status) override {}

 private:
  const std::vector<int> devices_;
};

// Gives one list of kernels at each Collect.
class ScriptedWitness : public KernelWitness {
 public:
  explicit ScriptedWitness(std::vector<absl::StatusOr<std::vector<KernelRecord>>> lists)
      : lists_(std::move(lists)) {}
  absl::StatusOr<std::vector<KernelRecord>> Collect() override { return lists_[next_++]; }

 private:
  const std::vector<absl::StatusOr<std::vector<KernelRecord>>> lists_;
  size_t next_ = 0;
};

using Kernels = std::vector<KernelRecord>;

KernelRecord Gather(int32_t device) {
  return {.name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
          .device = device};
}

DeviceMemoryFigures Memory(int32_t rank, int64_t steady, int64_t peak) {
  DeviceMemoryFigures memory;
  memory.rank = Rank{rank};
  memory.driver_steady = steady;
  memory.driver_peak = peak;
  return memory;
}

TEST(WitnessedEngine, GivesEachRankTheKernelsAndTheMemoryOfItsDevice) {
  const ScriptedWorld world({3, 5});
  const auto witness = std::make_shared<ScriptedWitness>(
      std::vector<absl::StatusOr<Kernels>>{Kernels{Gather(3), Gather(3)},  // of before the step
                                           Kernels{Gather(5), {.name = "AdamW", .device = 3}}});
  const auto engine = MakeWitnessedEngine(
      std::make_unique<ScriptedEngine>(std::vector{Memory(0, 10, 20), Memory(1, 11, 21)}), world,
      witness);
  const auto step = engine->Step();
  ASSERT_TRUE(step.ok()) << step.status();
  ASSERT_EQ((*step)->devices.size(), 2u);
  EXPECT_THAT((*step)->devices[0].collective_kernels, ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT((*step)->devices[1].collective_kernels, ElementsAre(0, 1, 0, 0, 0));
  EXPECT_EQ((*step)->devices[1].rank, 1);
  EXPECT_EQ((*step)->devices[0].steady_bytes, 10);
  EXPECT_EQ((*step)->devices[1].peak_bytes, 21);
}

TEST(WitnessedEngine, NothingOnASharedDeviceIsSaidToBeARanks) {
  const ScriptedWorld world({0, 0});
  const auto witness = std::make_shared<ScriptedWitness>(
      std::vector<absl::StatusOr<Kernels>>{Kernels{}, Kernels{Gather(0)}});
  const auto engine = MakeWitnessedEngine(
      std::make_unique<ScriptedEngine>(std::vector{Memory(0, 10, 20), Memory(1, 11, 21)}), world,
      witness);
  const auto step = engine->Step();
  ASSERT_TRUE(step.ok()) << step.status();
  for (const DeviceWitness& device : (*step)->devices) {
    EXPECT_THAT(device.collective_kernels, IsEmpty());
    EXPECT_EQ(device.steady_bytes, -1);
    EXPECT_EQ(device.peak_bytes, -1);
  }
}

TEST(WitnessedEngine, RecordsThatWereLostAreAnErrorAndNotFewerKernels) {
  const ScriptedWorld world({0});
  const auto witness = std::make_shared<ScriptedWitness>(std::vector<absl::StatusOr<Kernels>>{
      Kernels{}, absl::DataLossError("CUPTI dropped 3 records")});
  const auto engine = MakeWitnessedEngine(
      std::make_unique<ScriptedEngine>(std::vector{Memory(0, 10, 20)}), world, witness);
  EXPECT_EQ(engine->Step().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace shardproof
