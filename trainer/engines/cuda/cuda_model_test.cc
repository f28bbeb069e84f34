// What cannot be computed is said before a device is asked for, in the words of the cpu.
#include "trainer/engines/cuda/cuda_model.h"

#include <gtest/gtest.h>

#include <string>

namespace shardproof {
namespace {

void ExpectTheCpusError(const RunDescription& run, absl::StatusCode code) {
  const absl::Status expected = MakeModelCompute(run).status();
  ASSERT_EQ(expected.code(), code);
  EXPECT_EQ(MakeCudaModel(run, {}).status(), expected);
  EXPECT_EQ(MakeHostModelByCuda(run, /*device=*/0, {}).status(), expected);
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

}  // namespace
}  // namespace shardproof
