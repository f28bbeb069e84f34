#include "invariants/closed_forms/closed_forms.h"

#include <algorithm>

#include "invariants/closed_forms/sequence.h"

namespace shardproof {
namespace {

// How many units each column of the table counts, read off the description: the table's U.
struct UnitCounts {
  int64_t with_elements = 0;
  int64_t needed_by_backward = 0;    // those of them that a stage which backward computes needs
  int64_t resharded_and_needed = 0;  // and that were resharded after forward
  int64_t trainable = 0;
};

// The first stage that backward computes: that of the first trainable tensor with elements, and
// the stages of its unit just before it, because a run is computed whole. The number of stages:
// no backward.
size_t FirstStageOfBackward(const ModelDescription& model,
                            const std::vector<int32_t>& unit_of_stage) {
  const auto trains = [&](const Stage& stage) {
    return std::any_of(stage.tensors.begin(), stage.tensors.end(), [&](int32_t tensor) {
      return model.tensors[tensor].trainable && Elements(model.tensors[tensor]) > 0;
    });
  };
  const auto first = std::find_if(model.stages.begin(), model.stages.end(), trains);
  size_t stage = first - model.stages.begin();
  if (first == model.stages.end()) return stage;
  while (stage > 0 && unit_of_stage[stage - 1] == unit_of_stage[stage]) --stage;
  return stage;
}

UnitCounts CountUnits(const ModelDescription& model, const LayoutForms& layouts) {
  const std::vector<int32_t> unit_of_stage = UnitOfStage(model);
  std::vector<bool> needed(model.units.size(), false);
  for (size_t s = FirstStageOfBackward(model, unit_of_stage); s < model.stages.size(); ++s) {
    needed[unit_of_stage[s]] = true;
    for (const int32_t tensor : model.stages[s].tensors) needed[layouts.SetOf(tensor)] = true;
  }
  UnitCounts counts;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const ExpectedSet& set = layouts.sets()[u];
    if (set.elements == 0) continue;
    ++counts.with_elements;
    if (set.trainable_elements > 0) ++counts.trainable;
    if (!needed[u]) continue;
    ++counts.needed_by_backward;
    if (model.units[u].reshard_after_forward) ++counts.resharded_and_needed;
  }
  return counts;
}

}  // namespace

int64_t MomentsOf(const OptimizerDescription& optimizer) {
  if (optimizer.kind == OptimizerKind::kAdamW) return 2;
  return optimizer.momentum != 0 ? 1 : 0;
}

StateBytes ClosedForms::State(Rank rank) const {
  const Mode mode = run_.sharding.mode;
  const Holding& held = layouts_.holding(rank.value % layouts_.ranks());
  const LayoutTotals& totals = layouts_.totals();
  const int64_t moments = MomentsOf(run_.optimizer);
  StateBytes bytes;
  bytes.optimizer = 4 * moments * held.trainable_elements;
  if (run_.optimizer.kind == OptimizerKind::kAdamW) bytes.scalar = 4 * held.trainable_tensors;
  if (ShardsUnits(mode)) {
    bytes.parameter = 4 * held.elements;
    bytes.gradient = 4 * held.trainable_elements;
    bytes.padding = 4 * (totals.shards - held.elements) +
                    4 * (1 + moments) * (totals.trainable_shards - held.trainable_elements);
    return bytes;
  }
  const int64_t trainable = totals.trainable_elements;
  bytes.parameter = 4 * totals.elements;
  bytes.gradient = 4 * trainable;
  if (mode == Mode::kReplicated || mode == Mode::kZero1Broadcast) return bytes;
  const int64_t whole_padding = 4 * (totals.shards * layouts_.ranks() - trainable);
  const int64_t shard_padding = 4 * (totals.shards - held.trainable_elements);
  bytes.padding = whole_padding + moments * shard_padding;
  if (mode == Mode::kZero2) {
    bytes.gradient = 4 * held.trainable_elements;
    bytes.padding += shard_padding;
  } else {
    bytes.padding += whole_padding;
  }
  return bytes;
}

int64_t ClosedForms::ResidentBytes(Rank rank) const {
  const StateBytes bytes = State(rank);
  const int64_t moments = MomentsOf(run_.optimizer);
  const bool whole =
      run_.sharding.mode == Mode::kReplicated || run_.sharding.mode == Mode::kZero1Broadcast;
  return bytes.scalar +
         (whole ? bytes.optimizer : 4 * moments * layouts_.totals().trainable_shards);
}

Factors ClosedForms::SumOverRanks() const {
  StateBytes sum;
  for (int32_t r = 0; r < run_.sharding.world_size.value; ++r) {
    const StateBytes bytes = State(Rank{r});
    sum.parameter += bytes.parameter;
    sum.gradient += bytes.gradient;
    sum.optimizer += bytes.optimizer;
  }
  const double all = 4.0 * static_cast<double>(layouts_.totals().elements);
  const double trainable = 4.0 * static_cast<double>(layouts_.totals().trainable_elements);
  Factors factors;
  factors.parameter = static_cast<double>(sum.parameter) / all;
  if (trainable == 0) return factors;
  factors.gradient = static_cast<double>(sum.gradient) / trainable;
  factors.optimizer = static_cast<double>(sum.optimizer) / trainable;
  return factors;
}

ExpectedCounts ClosedForms::CollectiveCounts() const {
  const ShardingDescription& sharding = run_.sharding;
  const int64_t k = run_.data.num_micro_batches;
  const int64_t reducing = sharding.grad_sync == GradSync::kEvery ? k : 1;
  const int64_t sets = static_cast<int64_t>(layouts_.sets().size());
  ExpectedCounts counts;
  switch (sharding.mode) {
    case Mode::kReplicated:
      counts.all_reduce = sets * reducing;
      break;
    case Mode::kZero1Broadcast:
      counts.all_reduce = sets * reducing;
      counts.broadcast = BroadcastCount();
      break;
    case Mode::kZero1AllGather:
      counts.all_reduce = sets * reducing;
      counts.all_gather_optimizer = sets;
      break;
    case Mode::kZero2:
      counts.reduce_scatter = sets * reducing;
      counts.all_gather_optimizer = sets;
      break;
    case Mode::kShardGradOp:
    case Mode::kFullShard: {
      const UnitCounts units = CountUnits(run_.model, layouts_);
      // What backward leaves unsharded, the next forward does not gather again.
      const int64_t kept =
          sharding.keep_unsharded_between_micro_batches ? units.needed_by_backward : 0;
      counts.all_gather_forward = (units.with_elements - kept) * k + kept * reducing;
      if (sharding.mode == Mode::kFullShard) {
        counts.all_gather_backward = units.resharded_and_needed * k;
      }
      counts.reduce_scatter = units.trainable * reducing;
      break;
    }
  }
  return counts;
}

int64_t ClosedForms::BroadcastCount() const {
  int64_t count = 0;
  if (run_.sharding.broadcast_bucket_view) {
    for (int32_t r = 0; r < layouts_.ranks(); ++r) {
      if (layouts_.holding(r).trainable_tensors > 0) ++count;
    }
    return count;
  }
  for (const TensorSpec& tensor : run_.model.tensors) {
    if (tensor.trainable && Elements(tensor) > 0) ++count;
  }
  return count;
}

std::vector<ExpectedItem> ClosedForms::Sequence() const { return SequenceOf(run_, layouts_); }

StateBytes ExpectedState(const RunDescription& run, Rank rank) {
  return ClosedForms(run).State(rank);
}

Factors ExpectedFactors(const RunDescription& run) { return ClosedForms(run).SumOverRanks(); }

ExpectedCounts ExpectedCollectiveCounts(const RunDescription& run) {
  return ClosedForms(run).CollectiveCounts();
}

std::vector<ExpectedItem> ExpectedSequence(const RunDescription& run) {
  return ClosedForms(run).Sequence();
}

int64_t ExpectedPeakBytes(const RunDescription& run, Rank rank) {
  const ClosedForms forms(run);
  int64_t peak = 0;
  for (const ExpectedItem& item : forms.Sequence()) peak = std::max(peak, item.live_bytes);
  return peak + forms.ResidentBytes(rank);
}

double BusFactor(CollectiveKind kind, int32_t ranks) {
  if (ranks <= 1) return 0;
  const double rest = static_cast<double>(ranks - 1) / ranks;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * rest;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return rest;
    case CollectiveKind::kBroadcast:
      return 1;
    case CollectiveKind::kBarrier:
      return 0;
  }
  return 0;
}

Rank ExpectedOwner(const RunDescription& run, int32_t tensor, int64_t element) {
  return ClosedForms(run).Owner(tensor, element);
}

absl::string_view NoStateRule(const RunDescription& run) {
  const MixedPrecision& precision = run.sharding.precision;
  for (const Dtype dtype :
       {precision.parameter, precision.reduce, precision.master, precision.moment}) {
    if (dtype != Dtype::kFloat32) return "bytes under mixed precision have no closed form yet";
  }
  return "";
}

absl::string_view NoStepRule(const RunDescription& run) {
  if (ShardCount(run.sharding) != run.sharding.world_size.value) {
    return "the step of hybrid sharding has no closed form yet";
  }
  return "";
}

}  // namespace shardproof
