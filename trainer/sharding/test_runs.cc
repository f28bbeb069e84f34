#include "trainer/sharding/test_runs.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

ModelDescription Import(absl::string_view text) {
  absl::StatusOr<ModelDescription> model = ImportModel(text);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    std::abort();
  }
  return *model;
}

}  // namespace

RunDescription TestRun(absl::string_view model, Mode mode, int32_t ranks) {
  RunDescription run;
  run.model = Import(model);
  run.sharding.mode = mode;
  run.sharding.world_size = {ranks};
  if (mode == Mode::kFullShard) run.sharding.prefetch = Prefetch::kBackwardPre;
  if (mode == Mode::kZero1Broadcast) run.sharding.layout = LayoutKind::kOwner;
  run.data.micro_batch_size = 4;
  return run;
}

std::vector<RunDescription> InEveryMode(const RunDescription& run) {
  std::vector<RunDescription> runs;
  const auto add = [&](Mode mode, Prefetch prefetch) {
    runs.push_back(run);
    ShardingDescription& sharding = runs.back().sharding;
    sharding.mode = mode;
    sharding.prefetch = prefetch;
    sharding.layout = mode == Mode::kZero1Broadcast ? LayoutKind::kOwner : LayoutKind::kFlat;
  };
  for (Mode mode : {Mode::kReplicated, Mode::kZero1Broadcast, Mode::kZero1AllGather, Mode::kZero2,
                    Mode::kShardGradOp}) {
    add(mode, Prefetch::kNotApplicable);
  }
  for (Prefetch prefetch : {Prefetch::kBackwardPre, Prefetch::kBackwardPost, Prefetch::kNone}) {
    add(Mode::kFullShard, prefetch);
  }
  return runs;
}

std::vector<RunDescription> InEveryLayout(const RunDescription& run) {
  const Mode mode = run.sharding.mode;
  if (mode == Mode::kReplicated || mode == Mode::kZero1Broadcast) return {run};
  std::vector<RunDescription> runs;
  for (LayoutKind layout :
       {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kRows, LayoutKind::kOwner}) {
    runs.push_back(run);
    runs.back().sharding.layout = layout;
  }
  return runs;
}

std::vector<RunDescription> WithEveryGradSync(const RunDescription& run) {
  std::vector<RunDescription> runs(3, run);
  runs[0].data.num_micro_batches = 1;
  runs[1].data.num_micro_batches = 3;
  runs[1].sharding.grad_sync = GradSync::kEvery;
  runs[2].data.num_micro_batches = 3;
  runs[2].sharding.grad_sync = GradSync::kLast;
  return runs;
}

void SetUnits(const std::vector<std::vector<int32_t>>& stages_of_units, ModelDescription& model) {
  model.units.clear();
  for (const std::vector<int32_t>& stages : stages_of_units) {
    model.units.push_back({absl::StrCat("unit", model.units.size()), stages});
  }
}

void Freeze(const std::vector<int32_t>& tensors, ModelDescription& model) {
  for (int32_t tensor : tensors) model.tensors[tensor].trainable = false;
}

std::vector<ModelDescription> AwkwardProbes() {
  std::vector<ModelDescription> models;
  models.push_back(Import("probe:1,2,5x3"));

  ModelDescription& root = models.emplace_back(Import("probe:3x2,4,5,2x2,7"));
  SetUnits({{0, 4}, {1}, {2}, {3}}, root);
  root.units[0].reshard_after_forward = false;
  Freeze({0, 1}, root);

  ModelDescription& tied = models.emplace_back(Import("probe:4x3,5,6"));
  tied.stages.push_back({"head", {0}});
  SetUnits({{0, 3}, {1}, {2}}, tied);

  ModelDescription& mixed = models.emplace_back(Import("probe:3,5,2,4"));
  mixed.stages = {{"a", {0, 1}}, {"b", {2, 3}}};
  SetUnits({{0}, {1}}, mixed);
  Freeze({1, 3}, mixed);

  ModelDescription& empty = models.emplace_back(Import("probe:3,5"));
  empty.stages = {{"a", {0}}, {"no tensors", {}}, {"b", {1}}};
  SetUnits({{0}, {1}, {2}}, empty);

  ModelDescription& frozen = models.emplace_back(Import("probe:3,5"));
  Freeze({0, 1}, frozen);

  // A weight of three units, one whose later use lies in a root unit, and a unit that has no
  // tensor of its own.
  ModelDescription& over_units = models.emplace_back(Import("probe:5x2,3,4,2"));
  over_units.stages = {{"a", {1}}, {"b", {0, 2}}, {"c", {0}}, {"d", {3, 0, 2}}, {"e", {1, 2}}};
  SetUnits({{0, 4}, {1}, {2}, {3}}, over_units);
  over_units.units[0].reshard_after_forward = false;

  ModelDescription& without_elements = models.emplace_back(Import("probe:0,3x2,0x4,5,0"));
  SetUnits({{0, 1}, {2}, {3, 4}}, without_elements);
  return models;
}

std::vector<ModelDescription> AwkwardMlps() {
  std::vector<ModelDescription> models;
  models.push_back(Import("mlp:5,7,3,2:bias"));

  ModelDescription& frozen = models.emplace_back(Import("mlp:4x6"));
  SetUnits({{0, 1, 2}, {3}}, frozen);
  Freeze({0, 1}, frozen);

  ModelDescription& tied = models.emplace_back(Import("mlp:3x6"));
  tied.stages[2].tensors = {0};
  tied.tensors.pop_back();
  SetUnits({{0, 2}, {1}}, tied);

  ModelDescription& over_units = models.emplace_back(Import("mlp:4x5"));
  over_units.stages[2].tensors = {0};
  over_units.stages[3].tensors = {1};
  over_units.tensors.resize(2);
  return models;
}

}  // namespace shardproof
