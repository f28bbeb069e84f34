#include "invariants/closed_forms/sequence.h"

#include <algorithm>
#include <utility>

namespace shardproof {
namespace {

// A maximal sequence of consecutive stages of one unit.
struct Run {
  int32_t unit = -1;
  int32_t stage = 0;
  int32_t stage_count = 0;
  std::vector<int32_t> needs;   // unit modes: its unit, then the others of its tensors, ascending
  std::vector<int32_t> writes;  // the sets whose gradient its backward writes to, each once
};

std::vector<Run> RunsOf(const ModelDescription& model, const LayoutForms& layouts,
                        bool units_mode) {
  const std::vector<int32_t> unit_of_stage = UnitOfStage(model);
  std::vector<Run> runs;
  // By set: the last run that listed it, so that each lists it once.
  std::vector<int32_t> last_user(layouts.sets().size(), -1);
  std::vector<int32_t> last_writer(layouts.sets().size(), -1);
  for (int32_t stage = 0; stage < static_cast<int32_t>(model.stages.size()); ++stage) {
    const int32_t unit = unit_of_stage[stage];
    if (runs.empty() || runs.back().unit != unit) {
      runs.push_back({.unit = unit, .stage = stage, .needs = {unit}, .writes = {}});
      if (units_mode) last_user[unit] = static_cast<int32_t>(runs.size()) - 1;
    }
    Run& run = runs.back();
    ++run.stage_count;
    const int32_t index = static_cast<int32_t>(runs.size()) - 1;
    for (const int32_t tensor : model.stages[stage].tensors) {
      const int32_t set = layouts.SetOf(tensor);
      if (units_mode && std::exchange(last_user[set], index) != index) run.needs.push_back(set);
      if (!model.tensors[tensor].trainable) continue;
      if (layouts.elements(tensor) == 0) continue;
      if (std::exchange(last_writer[set], index) != index) run.writes.push_back(set);
    }
  }
  for (Run& run : runs) std::sort(run.needs.begin() + 1, run.needs.end());
  return runs;
}

// Plays one step and records what it issues. Members that end in _bytes are the live bytes.
class StepPlayer {
 public:
  StepPlayer(const RunDescription& run, const LayoutForms& layouts);
  std::vector<ExpectedItem> Play();

 private:
  struct UnitState {
    int32_t last_forward_run = -1;
    int32_t last_backward_run = -1;  // the lowest that backward reaches; -1: none
    bool unsharded = false;
  };
  struct GradientState {
    int32_t lowest_writer = -1;  // its gradient is complete after this run's backward
    bool reduced_live = false;   // the bucket or shard that outlives the step
    bool unreduced_live = false;
    bool temporary_live = false;  // the output of a second or later reduce-scatter
  };

  bool Reduces() const {
    return run_.sharding.grad_sync == GradSync::kEvery ||
           micro_batch_ + 1 == run_.data.num_micro_batches;
  }
  // Whether gradients are reduced in place in whole buckets: replicated and zero1_*.
  bool WholeBuckets() const { return !units_mode_ && mode_ != Mode::kZero2; }
  bool ReshardsInForward(int32_t unit, int32_t run) const;

  void Forward();
  void Backward();
  void ReduceUnits(int32_t run);
  void ReduceBuckets(int32_t run);
  void Clip();
  void Optimizer();

  void GatherFor(int32_t run, Phase phase);
  void GatherIfSharded(int32_t unit, Phase phase);
  void ReshardDue(int32_t run);
  void Reshard(int32_t unit);
  void Compute(int32_t run, Phase phase);
  void AllocateGradient(int32_t set);
  void Reduce(int32_t set);
  void ReleaseReduced(size_t keep);

  int64_t ParameterBytes() const;
  ExpectedItem Collective(CollectiveKind kind, Purpose purpose, Phase phase, int64_t elements);
  void Issue(ExpectedItem item);

  const RunDescription& run_;
  const LayoutForms& layouts_;
  const Mode mode_;
  const bool units_mode_;
  const std::vector<Run> runs_;
  int32_t first_backward_run_ = 0;  // runs_.size(): no backward
  std::vector<UnitState> units_;
  std::vector<GradientState> gradients_;
  std::vector<int32_t> reduced_;  // sets reduced in this micro-batch and not released yet
  size_t next_bucket_ = 0;
  int32_t micro_batch_ = -1;
  int64_t parameter_bytes_ = 0;
  int64_t unsharded_bytes_ = 0;
  int64_t gradient_bytes_ = 0;
  int64_t unreduced_bytes_ = 0;
  std::vector<ExpectedItem> items_;
};

StepPlayer::StepPlayer(const RunDescription& run, const LayoutForms& layouts)
    : run_(run),
      layouts_(layouts),
      mode_(run.sharding.mode),
      units_mode_(ShardsUnits(mode_)),
      runs_(RunsOf(run.model, layouts, units_mode_)),
      units_(run.model.units.size()),
      gradients_(layouts.sets().size()) {
  const int32_t count = static_cast<int32_t>(runs_.size());
  while (first_backward_run_ < count && runs_[first_backward_run_].writes.empty()) {
    ++first_backward_run_;
  }
  for (int32_t j = count - 1; j >= 0; --j) {
    for (const int32_t needed : runs_[j].needs) {
      UnitState& unit = units_[needed];
      if (unit.last_forward_run < 0) unit.last_forward_run = j;
      if (j >= first_backward_run_) unit.last_backward_run = j;
    }
    for (const int32_t set : runs_[j].writes) gradients_[set].lowest_writer = j;
  }
  parameter_bytes_ = ParameterBytes();
}

int64_t StepPlayer::ParameterBytes() const {
  int64_t elements = 0;
  for (const ExpectedSet& set : layouts_.sets()) elements += units_mode_ ? set.shard : set.full();
  if (!units_mode_) {
    for (size_t t = 0; t < run_.model.tensors.size(); ++t) {
      const int32_t tensor = static_cast<int32_t>(t);
      if (layouts_.SetOf(tensor) < 0) elements += layouts_.elements(tensor);  // frozen, whole
    }
  }
  return 4 * elements;
}

std::vector<ExpectedItem> StepPlayer::Play() {
  // In a micro-batch a run has two computes, a unit two gathers, a set one reduction.
  items_.reserve(run_.data.num_micro_batches *
                     (2 * runs_.size() + 2 * units_.size() + gradients_.size()) +
                 2 * gradients_.size() + run_.model.tensors.size() + 2);
  for (micro_batch_ = 0; micro_batch_ < run_.data.num_micro_batches; ++micro_batch_) {
    Forward();
    Backward();
  }
  micro_batch_ = -1;
  Optimizer();
  return std::move(items_);
}

bool StepPlayer::ReshardsInForward(int32_t unit, int32_t run) const {
  if (units_[unit].last_forward_run != run) return false;
  if (units_[unit].last_backward_run < 0) return true;
  return mode_ == Mode::kFullShard && run_.model.units[unit].reshard_after_forward;
}

void StepPlayer::ReshardDue(int32_t run) {
  for (const int32_t unit : runs_[run].needs) {
    if (ReshardsInForward(unit, run)) Reshard(unit);
  }
}

void StepPlayer::Forward() {
  const int32_t count = static_cast<int32_t>(runs_.size());
  for (int32_t i = 0; i < count; ++i) {
    GatherFor(i, Phase::kForward);
    if (i > 0) ReshardDue(i - 1);
    Compute(i, Phase::kForward);
  }
  if (count > 0) ReshardDue(count - 1);
}

void StepPlayer::Backward() {
  next_bucket_ = 0;
  const bool keeps = run_.sharding.keep_unsharded_between_micro_batches && !Reduces();
  for (int32_t j = static_cast<int32_t>(runs_.size()) - 1; j >= first_backward_run_; --j) {
    const bool more = j > first_backward_run_;
    GatherFor(j, Phase::kBackward);
    if (more && run_.sharding.prefetch == Prefetch::kBackwardPre) {
      GatherFor(j - 1, Phase::kBackward);
    }
    ReleaseReduced(/*keep=*/1);
    for (const int32_t set : runs_[j].writes) AllocateGradient(set);
    Compute(j, Phase::kBackward);
    for (const int32_t unit : runs_[j].needs) {
      if (units_[unit].last_backward_run == j && !keeps) Reshard(unit);
    }
    if (more && run_.sharding.prefetch == Prefetch::kBackwardPost) {
      GatherFor(j - 1, Phase::kBackward);
    }
    if (!Reduces()) continue;
    if (units_mode_) {
      ReduceUnits(j);
    } else {
      ReduceBuckets(j);
    }
  }
  ReleaseReduced(/*keep=*/0);
}

void StepPlayer::ReduceUnits(int32_t run) {
  for (const int32_t unit : runs_[run].needs) {
    if (units_[unit].last_backward_run != run) continue;
    if (layouts_.sets()[unit].trainable_elements > 0) Reduce(unit);
  }
}

void StepPlayer::ReduceBuckets(int32_t run) {
  while (next_bucket_ < gradients_.size() && gradients_[next_bucket_].lowest_writer >= run) {
    Reduce(static_cast<int32_t>(next_bucket_++));
  }
}

void StepPlayer::GatherFor(int32_t run, Phase phase) {
  if (!units_mode_) return;
  for (const int32_t unit : runs_[run].needs) GatherIfSharded(unit, phase);
}

void StepPlayer::GatherIfSharded(int32_t unit, Phase phase) {
  if (units_[unit].unsharded) return;
  const int64_t full = layouts_.sets()[unit].full();
  if (full == 0) return;
  units_[unit].unsharded = true;
  unsharded_bytes_ += 4 * full;
  ExpectedItem item =
      Collective(CollectiveKind::kAllGather, Purpose::kUnshardParameters, phase, full);
  item.unit = unit;
  Issue(item);
}

void StepPlayer::Reshard(int32_t unit) {
  if (!units_[unit].unsharded) return;
  units_[unit].unsharded = false;
  unsharded_bytes_ -= 4 * layouts_.sets()[unit].full();
}

void StepPlayer::Compute(int32_t run, Phase phase) {
  ExpectedItem item;
  item.kind = EventKind::kCompute;
  item.phase = phase;
  item.micro_batch = micro_batch_;
  item.unit = runs_[run].unit;
  item.stage = runs_[run].stage;
  item.stage_count = runs_[run].stage_count;
  Issue(item);
}

void StepPlayer::AllocateGradient(int32_t set) {
  GradientState& state = gradients_[set];
  const int64_t bytes = 4 * layouts_.sets()[set].full();
  // The whole buckets of replicated and zero1_* collect the first micro-batch, or all of
  // them, themselves: what is reduced in place there needs no second buffer.
  const bool in_place =
      WholeBuckets() && (micro_batch_ == 0 || run_.sharding.grad_sync == GradSync::kLast);
  bool& live = in_place ? state.reduced_live : state.unreduced_live;
  if (live) return;
  live = true;
  (in_place ? gradient_bytes_ : unreduced_bytes_) += bytes;
}

void StepPlayer::Reduce(int32_t set) {
  GradientState& state = gradients_[set];
  const ExpectedSet& form = layouts_.sets()[set];
  const bool scatters = !WholeBuckets();
  if (scatters && !state.reduced_live) {
    state.reduced_live = true;
    gradient_bytes_ += 4 * form.shard;
  } else if (scatters) {
    state.temporary_live = true;
    unreduced_bytes_ += 4 * form.shard;
  }
  ExpectedItem item =
      Collective(scatters ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
                 Purpose::kReduceGradients, Phase::kBackward, form.full());
  (units_mode_ ? item.unit : item.bucket) = set;
  Issue(item);
  if (state.unreduced_live) reduced_.push_back(set);
  if (run_.sharding.prefetch == Prefetch::kNone) ReleaseReduced(/*keep=*/0);
}

void StepPlayer::ReleaseReduced(size_t keep) {
  if (reduced_.size() <= keep) return;
  const auto kept = reduced_.end() - static_cast<ptrdiff_t>(keep);
  for (auto set = reduced_.begin(); set != kept; ++set) {
    GradientState& state = gradients_[*set];
    const ExpectedSet& form = layouts_.sets()[*set];
    unreduced_bytes_ -= 4 * form.full();
    if (state.temporary_live) unreduced_bytes_ -= 4 * form.shard;
    state.unreduced_live = false;
    state.temporary_live = false;
  }
  reduced_.erase(reduced_.begin(), kept);
}

// Sums the squares of all ranks' shards. Where gradients are whole, a rank has them all.
void StepPlayer::Clip() {
  if (run_.clip_grad_norm == 0 || WholeBuckets()) return;
  const std::vector<ExpectedSet>& sets = layouts_.sets();
  const bool updates = std::any_of(
      sets.begin(), sets.end(), [](const ExpectedSet& set) { return set.trainable_elements > 0; });
  if (!updates) return;
  ExpectedItem item = Collective(CollectiveKind::kAllReduce, Purpose::kClipNorm, Phase::kOptimizer,
                                 /*elements=*/1);
  item.dtype = Dtype::kFloat64;
  Issue(item);
}

void StepPlayer::Optimizer() {
  Clip();
  const auto update = [&](int32_t unit, int32_t bucket) {
    ExpectedItem item;
    item.kind = EventKind::kOptimizer;
    item.phase = Phase::kOptimizer;
    item.unit = unit;
    item.bucket = bucket;
    Issue(item);
  };
  const auto after = [&](CollectiveKind kind, Purpose purpose, int64_t elements) {
    return Collective(kind, purpose, Phase::kOptimizer, elements);
  };
  if (mode_ != Mode::kZero1Broadcast) {
    for (int32_t set = 0; set < static_cast<int32_t>(layouts_.sets().size()); ++set) {
      const ExpectedSet& form = layouts_.sets()[set];
      if (form.trainable_elements == 0) continue;
      update(units_mode_ ? set : -1, units_mode_ ? -1 : set);
      if (mode_ != Mode::kZero1AllGather && mode_ != Mode::kZero2) continue;
      ExpectedItem item =
          after(CollectiveKind::kAllGather, Purpose::kGatherParameters, form.full());
      item.bucket = set;
      Issue(item);
    }
    return;
  }
  if (layouts_.sets().empty()) return;  // nothing is trainable
  update(-1, -1);
  if (run_.sharding.broadcast_bucket_view) {
    for (int32_t owner = 0; owner < layouts_.ranks(); ++owner) {
      const int64_t elements = layouts_.holding(owner).trainable_elements;
      if (elements == 0) continue;
      ExpectedItem item =
          after(CollectiveKind::kBroadcast, Purpose::kBroadcastParameters, elements);
      item.root = owner;
      Issue(item);
    }
    return;
  }
  for (int32_t tensor = 0; tensor < static_cast<int32_t>(run_.model.tensors.size()); ++tensor) {
    if (!run_.model.tensors[tensor].trainable || layouts_.elements(tensor) == 0) continue;
    ExpectedItem item =
        after(CollectiveKind::kBroadcast, Purpose::kBroadcastParameters, layouts_.elements(tensor));
    item.root = layouts_.Owner(tensor, 0);
    item.tensor = tensor;
    Issue(item);
  }
}

ExpectedItem StepPlayer::Collective(CollectiveKind kind, Purpose purpose, Phase phase,
                                    int64_t elements) {
  ExpectedItem item;
  item.kind = EventKind::kCollective;
  item.phase = phase;
  item.collective = kind;
  item.purpose = purpose;
  item.dtype = purpose == Purpose::kReduceGradients ? run_.sharding.precision.reduce
                                                    : run_.sharding.precision.parameter;
  item.group = Group{0, 1, layouts_.ranks()};
  item.elements = elements;
  item.micro_batch = micro_batch_;
  return item;
}

void StepPlayer::Issue(ExpectedItem item) {
  item.unsharded_bytes = unsharded_bytes_;
  item.gradient_bytes = gradient_bytes_;
  item.unreduced_bytes = unreduced_bytes_;
  item.live_bytes = parameter_bytes_ + unsharded_bytes_ + gradient_bytes_ + unreduced_bytes_;
  items_.push_back(item);
}

}  // namespace

std::vector<ExpectedItem> SequenceOf(const RunDescription& run, const LayoutForms& layouts) {
  return StepPlayer(run, layouts).Play();
}

}  // namespace shardproof
