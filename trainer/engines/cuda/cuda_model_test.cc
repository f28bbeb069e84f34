// What cannot be computed is said before a device is asked for, in the words of the cpu.
#include "trainer/engines/cuda/cuda_model.h"

#include <gtest/gtest.h>

#include <string>

#include "trainer/engines/cuda/cuda_layers.h"

namespace shardproof {
namespace {

void ExpectTheCpusError(const RunDescription& run, absl::StatusCode code) {
  const absl::Status expected = MakeModelCompute(run).status();
  ASSERT_EQ(expected.code(), code);
  EXPECT_EQ(MakeCudaModel(run, {}).status(), expected);
  EXPECT_EQ(MakeHostModelByCuda(run, /*device=*/0, {}).status(), expected);
  EXPECT_EQ(CudaModelWorkspaceBytes(run, {}), 0);
}

TEST(CudaModel, AnOpaqueModelIsUnimplemented) {
  RunDescription run;
  run.model.kind = ModelKind::kOpaque;
  run.model.name = "gpt2.json";
  ExpectTheCpusError(run, absl::StatusCode::kUnimplemented);
}

TEST(CudaModel, AnMlpWhoseLayersDoNotFitIsInvalid) {
  RunDescription run;
  run.model.tensors = {{.name = "first", .shape = {3, 2}, .aliases = {}},
                       {.name = "second", .shape = {2, 4}, .aliases = {}}};
  run.model.stages = {{"a", {0}}, {"b", {1}}};
  ExpectTheCpusError(run, absl::StatusCode::kInvalidArgument);
}

TEST(CudaModel, SaysBeforehandWhatItKeepsOnTheDevice) {
  RunDescription run;
  run.data.micro_batch_size = 64;
  run.model.tensors = {{.name = "first", .shape = {128, 256}, .aliases = {}},
                       {.name = "second", .shape = {32, 128}, .aliases = {}}};
  run.model.stages = {{"a", {0}}, {"b", {1}}};
  const int64_t layers =
      CudaLayers::WorkspaceBytes({{64, 256, 128}, {64, 128, 32}}, {.aligned = true});
  EXPECT_EQ(CudaModelWorkspaceBytes(run, {.aligned = true}), layers + 4 * 64 * 32);
  run.model.kind = ModelKind::kProbe;
  EXPECT_EQ(CudaModelWorkspaceBytes(run, {.aligned = true}), 0);
}

}  // namespace
}  // namespace shardproof
