#include "trainer/engines/stage_runner.h"

#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/engines/host_stages.h"
#include "trainer/engines/rank_memory.h"
#include "trainer/model/model_compute.h"
#include "trainer/plan/planner.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

// Uses no tensor where it lies, as a device does not that wants them aligned.
class NothingInPlace : public HostStages {
 public:
  using HostStages::HostStages;
  bool InPlace(const float*) const override { return false; }
  float* Workspace(const StageWorkspace& place, int64_t elements) override {
    ++asked;
    return HostStages::Workspace(place, elements);
  }
  int asked = 0;
};

struct Outcome {
  double loss = 0;
  std::vector<uint32_t> bits;  // of all gradients that the backwards left
};

// A step's forwards and backwards on one rank, from parameters of 1/8, 2/8, ...
Outcome RunStages(const RunDescription& run, const Placement& placement, HostStages& arithmetic) {
  const StepPlan plan = PlanStep(run, placement, Rank{0}, 0);
  RankMemory memory(plan);
  StageRunner runner(run, placement, arithmetic);
  Outcome outcome;
  for (size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
    for (int64_t i = 0; i < plan.buffers[buffer].elements; ++i) {
      if (plan.buffers[buffer].dtype != Dtype::kFloat32) continue;
      memory.data(static_cast<int32_t>(buffer))[i] = static_cast<float>(i % 7 + 1) / 8;
    }
  }
  runner.BeginStep();
  for (const Op& op : plan.ops) {
    const MicroBatch micro_batch = {0, Rank{0}, op.micro_batch};
    if (op.kind == OpKind::kForward) runner.Forward(plan, op, micro_batch, memory.buffers());
    if (op.kind != OpKind::kBackward) continue;
    outcome.loss += runner.Backward(plan, op, micro_batch, memory.buffers());
    for (const SetUse& use : plan.GradientUsesOf(op)) {
      for (int64_t i = 0; i < plan.buffers[use.buffer].elements; ++i) {
        outcome.bits.push_back(std::bit_cast<uint32_t>(memory.data(use.buffer)[i]));
      }
    }
  }
  return outcome;
}

void ExpectSameBits(const RunDescription& run) {
  const Placement placement = MakePlacement(run);
  absl::StatusOr<std::unique_ptr<ModelCompute>> compute = MakeModelCompute(run);
  ASSERT_TRUE(compute.ok()) << compute.status();
  HostStages in_place(run, **compute);
  NothingInPlace beside(run, **compute);
  const Outcome a = RunStages(run, placement, in_place);
  const Outcome b = RunStages(run, placement, beside);
  EXPECT_EQ(a.loss, b.loss) << ModeRowName(run.sharding);
  EXPECT_EQ(a.bits, b.bits) << ModeRowName(run.sharding);
  EXPECT_FALSE(a.bits.empty());
  EXPECT_GT(beside.asked, 0);
}

TEST(StageRunner, WhereATensorIsUsedDoesNotChangeBits) {
  for (const RunDescription& base :
       WithEveryGradSync(TestRun("mlp:7,5,9,3:bias", Mode::kReplicated, 2))) {
    for (const RunDescription& row : InEveryMode(base)) {
      for (const RunDescription& run : InEveryLayout(row)) ExpectSameBits(run);
    }
  }
}

// Tied tensors are summed over their uses first.
TEST(StageRunner, NorDoesItOfTiedAndFrozenTensors) {
  for (const ModelDescription& model : AwkwardMlps()) {
    RunDescription base = TestRun("mlp:2,2", Mode::kReplicated, 2);
    base.model = model;
    base.data.num_micro_batches = 3;
    for (const RunDescription& run : InEveryMode(base)) ExpectSameBits(run);
  }
}

}  // namespace
}  // namespace shardproof
