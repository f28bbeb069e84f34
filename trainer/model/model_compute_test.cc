#include "trainer/model/model_compute.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

TEST(MakeModelCompute, ComputesMlpsAndProbes) {
  RunDescription run;
  run.model.tensors = {{.name = "layers.0.weight", .shape = {2, 3}, .aliases = {}}};
  run.model.stages = {{"layers.0", {0}}};
  const auto mlp = MakeModelCompute(run);
  ASSERT_TRUE(mlp.ok()) << mlp.status();
  EXPECT_EQ((*mlp)->Width(0), 3);
  EXPECT_EQ((*mlp)->Width(1), 2);
  run.model.kind = ModelKind::kProbe;
  const auto probe = MakeModelCompute(run);
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ((*probe)->Width(0), 0);
}

TEST(MakeModelCompute, SaysWhatToUseForLayersItDoesNotCompute) {
  RunDescription run;
  run.model.name = "gpt2.json";
  run.model.kind = ModelKind::kOpaque;
  const auto compute = MakeModelCompute(run);
  EXPECT_EQ(compute.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(compute.status().message(),
            "model 'gpt2.json' has layers that this trainer does not compute; use "
            "--engine=accounting or provenance, or --model=probe:gpt2.json to train its shapes "
            "with the probe's "
            "gradients");
}

}  // namespace
}  // namespace shardproof
