// Correct plans have correct origins in every mode. What edits do is in provenance_edits_test.cc.
#include "trainer/engines/provenance_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "trainer/engines/provenance_judge.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

std::string RunText(const RunDescription& run) {
  return absl::StrCat(ModeRowName(run.sharding), " ", Name(run.sharding.layout), " ",
                      Name(run.sharding.grad_sync), " K=", run.data.num_micro_batches,
                      " N=", run.sharding.world_size.value, " ", run.model.name,
                      " tensors=", run.model.tensors.size());
}

void ExpectPass(const RunDescription& run) {
  SCOPED_TRACE(RunText(run));
  const absl::StatusOr<CheckResult> result = Judge(run, PlannedParts(run));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict, Verdict::kPass) << Text(*result);
}

void ExpectPassEverywhere(const RunDescription& run) {
  for (const RunDescription& mode : InEveryMode(run)) {
    for (const RunDescription& layout : InEveryLayout(mode)) {
      for (const RunDescription& sync : WithEveryGradSync(layout)) ExpectPass(sync);
    }
  }
}

TEST(ProvenanceEngine, CorrectPlansPassInEveryModeLayoutAndGradSync) {
  for (int32_t ranks : {1, 2, 5}) {
    for (const std::vector<ModelDescription>& models : {AwkwardProbes(), AwkwardMlps()}) {
      for (const ModelDescription& model : models) {
        RunDescription run = TestRun("probe:3", Mode::kReplicated, ranks);
        run.model = model;
        ExpectPassEverywhere(run);
      }
    }
  }
}

TEST(ProvenanceEngine, OptionsPassInEveryModeLayoutAndGradSync) {
  RunDescription run = TestRun("probe:3x2,4,5,2x2,7", Mode::kReplicated, 3);
  run.sharding.bucket_cap_bytes = 30;
  run.sharding.scale_before_reduce = true;
  run.sharding.keep_unsharded_between_micro_batches = false;
  run.sharding.broadcast_bucket_view = true;
  ExpectPassEverywhere(run);
  run.optimizer.kind = OptimizerKind::kSgd;
  ExpectPassEverywhere(run);
  run.optimizer.momentum = 0;
  ExpectPassEverywhere(run);
}

TEST(ProvenanceEngine, ClippingUsageAndGroupsPassInEveryModeLayoutAndGradSync) {
  RunDescription run = TestRun("probe:3x2,4,5,2x2,7", Mode::kReplicated, 3);
  run.data.steps = 5;
  run.sharding.bucket_cap_bytes = 30;
  run.clip_grad_norm = 0.5;
  run.usage = {{.tensor = 0, .rank = 1},
               {.tensor = 1, .steps = StepUse::kOdd},
               {.tensor = 2, .steps = StepUse::kNever},
               {.tensor = 3, .rank = 0, .micro_batch = 0, .steps = StepUse::kEven}};
  run.optimizer.groups = {{.tensors = {0, 3}, .learning_rate = 0.5},
                          {.tensors = {2}, .weight_decay = 0}};
  ExpectPassEverywhere(run);
}

TEST(ProvenanceEngine, RefusesWhatWouldNotFit) {
  const RunDescription run = TestRun("probe:3", Mode::kReplicated, 2);
  const absl::StatusOr<std::unique_ptr<Engine>> engine =
      MakeProvenanceEngine(run, PlannedParts(run), /*memory_limit_bytes=*/100);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace shardproof
