#include "trainer/plan/plan_builder.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shardproof {
namespace {

constexpr int32_t Index(StreamId stream) { return static_cast<int32_t>(stream); }
constexpr int32_t Other(StreamId stream) { return 1 - Index(stream); }

// Floats of one sample at a boundary; only Linear layers have activations here.
int64_t BoundaryWidth(const ModelDescription& model, int32_t boundary) {
  if (model.kind != ModelKind::kMlp) return 0;
  const int32_t stage = std::max(boundary - 1, 0);
  const TensorSpec& weight = model.tensors[model.stages[stage].tensors[0]];
  return weight.shape[boundary == 0 ? 1 : 0];
}

bool HasTrainable(const ModelDescription& model, const Stage& stage) {
  return std::any_of(stage.tensors.begin(), stage.tensors.end(), [&](int32_t tensor) {
    return model.tensors[tensor].trainable && Elements(model.tensors[tensor]) > 0;
  });
}

}  // namespace

PlanBuilder::PlanBuilder(const RunDescription& run, const Placement& placement, Rank rank,
                         int64_t step, bool gradients_live)
    : run_(run), placement_(placement), step_(step) {
  plan_.rank = rank;
  set_seen_.assign(placement.sets.size(), 0);
  plan_.buffers.reserve(6 * placement.sets.size() + 4 * run.model.stages.size());
  plan_.ops.reserve(6 * placement.sets.size() + 4 * run.model.stages.size());
  FindRuns();
  for (size_t set = 0; set < placement.sets.size(); ++set) DeclareSet(static_cast<int32_t>(set));
  if (placement.counts_steps) {
    plan_.scalar_buffer =
        AddBuffer({.role = BufferRole::kScalar, .elements = TensorsWithMoments(placement, rank)});
    plan_.live_before.push_back(plan_.scalar_buffer);
  }
  if (run.clip_grad_norm > 0) {
    plan_.norm_buffer =
        AddBuffer({.role = BufferRole::kWorkspace, .dtype = Dtype::kFloat64, .elements = 1});
    plan_.coefficient_buffer = AddBuffer({.role = BufferRole::kWorkspace, .elements = 1});
  }
  if (gradients_live) {
    for (const SetHome& home : plan_.homes) {
      if (home.gradient >= 0) plan_.live_before.push_back(home.gradient);
    }
  }
  DeclareActivations();
  for (int32_t buffer : plan_.live_before) buffers_[buffer].live = true;
}

void PlanBuilder::FindRuns() {
  const ModelDescription& model = run_.model;
  const std::vector<int32_t> unit_of_stage = UnitOfStage(model);
  const int32_t stages = static_cast<int32_t>(model.stages.size());
  first_trainable_stage_ = stages;
  for (int32_t stage = 0; stage < stages; ++stage) {
    if (runs_.empty() || runs_.back().unit != unit_of_stage[stage]) {
      runs_.push_back({unit_of_stage[stage], stage, 0, {}});
    }
    ++runs_.back().stage_count;
    if (first_trainable_stage_ == stages && HasTrainable(model, model.stages[stage])) {
      first_trainable_stage_ = stage;
      first_backward_run_ = static_cast<int32_t>(runs_.size()) - 1;
    }
  }
  if (first_trainable_stage_ == stages) first_backward_run_ = static_cast<int32_t>(runs_.size());
  FindNeeds();
  last_use_.assign(model.tensors.size(), -1);
  for (int32_t stage = 0; stage < stages; ++stage) {
    for (int32_t tensor : model.stages[stage].tensors) last_use_[tensor] = stage;
  }
}

void PlanBuilder::FindNeeds() {
  const std::vector<int32_t> unit_of_tensor = UnitOfTensor(run_.model);
  for (ComputeRun& run : runs_) {
    std::vector<int32_t> others;
    for (int32_t stage = run.stage; stage < run.stage + run.stage_count; ++stage) {
      for (int32_t tensor : run_.model.stages[stage].tensors) {
        if (unit_of_tensor[tensor] != run.unit) others.push_back(unit_of_tensor[tensor]);
      }
    }
    std::sort(others.begin(), others.end());
    others.erase(std::unique(others.begin(), others.end()), others.end());
    run.needs = {run.unit};
    run.needs.insert(run.needs.end(), others.begin(), others.end());
  }
}

void PlanBuilder::DeclareSet(int32_t index) {
  const TensorSet& set = placement_.sets[index];
  const auto declare = [&](BufferRole role, MemoryTier tier, Keeps keeps) {
    const int64_t elements =
        keeps == Keeps::kWhole ? set.layout.padded_elements() : set.layout.shard_elements;
    return AddBuffer({.role = role,
                      .tier = tier,
                      .elements = elements,
                      .unit = set.unit,
                      .bucket = set.bucket,
                      .set = index});
  };
  SetHome home;
  if (set.parameter != Keeps::kNothing) {
    home.parameter = declare(BufferRole::kParameter, run_.sharding.parameter_tier, set.parameter);
    plan_.live_before.push_back(home.parameter);
  }
  if (set.gradient != Keeps::kNothing) {
    home.gradient = declare(BufferRole::kGradient, MemoryTier::kDevice, set.gradient);
  }
  if (KeepsMoments(set, plan_.rank)) {
    const auto moment = [&] {
      const int32_t buffer =
          declare(BufferRole::kOptimizerState, run_.sharding.optimizer_tier, Keeps::kShard);
      plan_.live_before.push_back(buffer);
      return buffer;
    };
    home.exp_avg = moment();
    if (placement_.moments_per_element > 1) home.exp_avg_sq = moment();
  }
  plan_.homes.push_back(home);
}

// The rank's own shard in a buffer that keeps the set whole or just that shard.
ElementRange PlanBuilder::OwnPart(const TensorSet& set, Keeps keeps) const {
  const int64_t shard = set.layout.shard_elements;
  return {keeps == Keeps::kWhole ? ShardOf(set, plan_.rank) * shard : 0, shard};
}

void PlanBuilder::DeclareActivations() {
  const int32_t stages = static_cast<int32_t>(run_.model.stages.size());
  plan_.activations.assign(stages + 1, -1);
  plan_.activation_gradients.assign(stages + 1, -1);
  for (int32_t boundary = 0; boundary <= stages; ++boundary) {
    const int64_t elements = run_.data.micro_batch_size * BoundaryWidth(run_.model, boundary);
    if (elements == 0) continue;
    plan_.activations[boundary] =
        AddBuffer({.role = boundary == 0 ? BufferRole::kInput : BufferRole::kActivation,
                   .elements = elements});
    if (boundary > first_trainable_stage_) {
      plan_.activation_gradients[boundary] =
          AddBuffer({.role = BufferRole::kActivation, .elements = elements});
    }
  }
}

int32_t PlanBuilder::AddBuffer(const BufferSpec& spec) {
  plan_.buffers.push_back(spec);
  buffers_.emplace_back();
  return static_cast<int32_t>(plan_.buffers.size()) - 1;
}

void PlanBuilder::Access(int32_t buffer, AccessKind kind, ElementRange range) {
  if (buffer >= 0) pending_.push_back({buffer, kind, range});
}

void PlanBuilder::AccessAll(int32_t buffer, AccessKind kind) {
  if (buffer >= 0) Access(buffer, kind, {0, plan_.buffers[buffer].elements});
}

void PlanBuilder::AllocateIfDead(int32_t buffer) {
  if (buffer >= 0 && !buffers_[buffer].live) AccessAll(buffer, AccessKind::kAllocate);
}

void PlanBuilder::WaitFor(Op& op, int32_t other_op) {
  int32_t& waited = waited_[Index(op.stream)];
  if (other_op <= waited) return;
  waited = other_op;
  // One wait suffices: the other stream runs in order, so its latest covers the others.
  if (op.wait_count > 0) {
    plan_.waits.back() = other_op;
  } else {
    plan_.waits.push_back(other_op);
    op.wait_count = 1;
  }
}

void PlanBuilder::Issue(Op op) {
  const int32_t index = static_cast<int32_t>(plan_.ops.size());
  const int32_t stream = Index(op.stream);
  const int32_t other = Other(op.stream);
  op.first_wait = static_cast<int32_t>(plan_.waits.size());
  op.first_access = static_cast<int32_t>(plan_.accesses.size());
  op.access_count = static_cast<int32_t>(pending_.size());
  // By kind, and within a kind as they were stated.
  for (AccessKind kind :
       {AccessKind::kAllocate, AccessKind::kRead, AccessKind::kWrite, AccessKind::kFree}) {
    std::copy_if(pending_.begin(), pending_.end(), std::back_inserter(plan_.accesses),
                 [kind](const PlanAccess& access) { return access.kind == kind; });
  }
  pending_.clear();
  for (const PlanAccess& access : plan_.AccessesOf(op)) {
    const BufferState& state = buffers_[access.buffer];
    WaitFor(op, state.write[other]);
    if (access.kind != AccessKind::kRead) WaitFor(op, state.read[other]);
    if (access.kind == AccessKind::kAllocate) WaitFor(op, last_free_[other]);
  }
  for (const PlanAccess& access : plan_.AccessesOf(op)) {
    BufferState& state = buffers_[access.buffer];
    (access.kind == AccessKind::kRead ? state.read : state.write)[stream] = index;
    if (access.kind == AccessKind::kAllocate) state.live = true;
    if (access.kind == AccessKind::kFree) {
      state.live = false;
      last_free_[stream] = index;
    }
  }
  plan_.ops.push_back(op);
}

Op PlanBuilder::SetOp(OpKind kind, int32_t set, Phase phase, StreamId stream,
                      int32_t micro_batch) const {
  Op op;
  op.kind = kind;
  op.phase = phase;
  op.stream = stream;
  op.micro_batch = micro_batch;
  op.set = set;
  op.unit = placement_.sets[set].unit;
  op.bucket = placement_.sets[set].bucket;
  return op;
}

Op PlanBuilder::CollectiveOp(CollectiveKind kind, Purpose purpose, int32_t set, Phase phase,
                             int32_t micro_batch, int64_t elements) const {
  Op op = SetOp(OpKind::kCollective, set, phase, StreamId::kCommunication, micro_batch);
  op.collective = kind;
  op.purpose = purpose;
  op.group = {0, 1, run_.sharding.world_size.value};
  op.elements = elements;
  return op;
}

void PlanBuilder::AssumeLive(int32_t buffer) {
  plan_.live_before.push_back(buffer);
  buffers_[buffer].live = true;
}

void PlanBuilder::ReleaseGradients() {
  std::vector<int32_t> gradients;
  for (const SetHome& home : plan_.homes) {
    if (home.gradient >= 0 && live(home.gradient)) gradients.push_back(home.gradient);
  }
  Release(gradients, StreamId::kCompute, Phase::kForward, /*micro_batch=*/-1);
}

void PlanBuilder::Unshard(int32_t set, int32_t full, Phase phase, int32_t micro_batch) {
  const int64_t elements = placement_.sets[set].layout.padded_elements();
  Op op = CollectiveOp(CollectiveKind::kAllGather, Purpose::kUnshardParameters, set, phase,
                       micro_batch, elements);
  op.send = {home(set).parameter, {0, placement_.sets[set].layout.shard_elements}};
  op.recv = {full, {0, elements}};
  AllocateIfDead(full);
  Access(op.send.buffer, AccessKind::kRead, op.send.range);
  Access(op.recv.buffer, AccessKind::kWrite, op.recv.range);
  Issue(op);
}

void PlanBuilder::Reshard(int32_t set, int32_t full, Phase phase, int32_t micro_batch) {
  AccessAll(full, AccessKind::kFree);
  Issue(SetOp(OpKind::kReshard, set, phase, StreamId::kCompute, micro_batch));
}

// The sets of the run's tensors, each once, in order of first use.
const std::vector<int32_t>& PlanBuilder::SetsOf(const ComputeRun& run,
                                                const std::vector<int32_t>& set_of_tensor) {
  run_sets_.clear();
  ++sets_seen_;
  for (int32_t stage = run.stage; stage < run.stage + run.stage_count; ++stage) {
    for (int32_t tensor : run_.model.stages[stage].tensors) {
      const int32_t set = set_of_tensor[tensor];
      if (set < 0 || set_seen_[set] == sets_seen_) continue;
      set_seen_[set] = sets_seen_;
      run_sets_.push_back(set);
    }
  }
  return run_sets_;
}

void PlanBuilder::UseParameters(Op& op, const ComputeRun& run,
                                const std::vector<int32_t>& buffers) {
  op.first_parameter_use = static_cast<int32_t>(plan_.parameter_uses.size());
  for (int32_t set : SetsOf(run, placement_.parameter_set)) {
    plan_.parameter_uses.push_back({set, buffers[set], false});
    AccessAll(buffers[set], AccessKind::kRead);
    ++op.parameter_use_count;
  }
}

// Whether a stage behind the run uses a tensor of the set too, so that the gradient of this use is
// added to that one's.
bool PlanBuilder::AddsToLaterUse(const ComputeRun& run, int32_t set) const {
  for (int32_t stage = run.stage; stage < run.stage + run.stage_count; ++stage) {
    for (int32_t tensor : run_.model.stages[stage].tensors) {
      if (placement_.gradient_set[tensor] != set) continue;
      if (last_use_[tensor] >= run.stage + run.stage_count) return true;
    }
  }
  return false;
}

void PlanBuilder::UseGradients(Op& op, const ComputeRun& run, const std::vector<int32_t>& buffers,
                               bool accumulate) {
  op.first_gradient_use = static_cast<int32_t>(plan_.gradient_uses.size());
  for (int32_t set : SetsOf(run, placement_.gradient_set)) {
    plan_.gradient_uses.push_back({set, buffers[set], accumulate});
    AllocateIfDead(buffers[set]);
    if (accumulate || AddsToLaterUse(run, set)) AccessAll(buffers[set], AccessKind::kRead);
    AccessAll(buffers[set], AccessKind::kWrite);
    ++op.gradient_use_count;
  }
}

void PlanBuilder::Forward(const ComputeRun& run, int32_t micro_batch,
                          const std::vector<int32_t>& parameter_buffers) {
  Op op;
  op.kind = OpKind::kForward;
  op.phase = Phase::kForward;
  op.micro_batch = micro_batch;
  op.unit = run.unit;
  op.stage = run.stage;
  op.stage_count = run.stage_count;
  UseParameters(op, run, parameter_buffers);
  if (run.stage == 0) {
    AllocateIfDead(plan_.activations[0]);
    AccessAll(plan_.activations[0], AccessKind::kWrite);
  } else {
    AccessAll(plan_.activations[run.stage], AccessKind::kRead);
  }
  for (int32_t boundary = run.stage + 1; boundary <= run.stage + run.stage_count; ++boundary) {
    AllocateIfDead(plan_.activations[boundary]);
    AccessAll(plan_.activations[boundary], AccessKind::kWrite);
  }
  Issue(op);
}

void PlanBuilder::Backward(const ComputeRun& run, int32_t micro_batch,
                           const std::vector<int32_t>& parameter_buffers,
                           const std::vector<int32_t>& gradient_buffers, bool accumulate) {
  Op op;
  op.kind = OpKind::kBackward;
  op.phase = Phase::kBackward;
  op.micro_batch = micro_batch;
  op.unit = run.unit;
  op.stage = run.stage;
  op.stage_count = run.stage_count;
  UseParameters(op, run, parameter_buffers);
  UseGradients(op, run, gradient_buffers, accumulate);
  const int32_t end = run.stage + run.stage_count;
  for (int32_t boundary = end; boundary >= run.stage; --boundary) {
    AccessAll(plan_.activations[boundary], AccessKind::kRead);
    const int32_t gradient = plan_.activation_gradients[boundary];
    if (gradient < 0) continue;
    // The gradient of the run's output comes from the run above, or from the loss.
    AllocateIfDead(gradient);
    AccessAll(gradient, live(gradient) ? AccessKind::kRead : AccessKind::kWrite);
    if (boundary > run.stage) AccessAll(gradient, AccessKind::kFree);
  }
  for (int32_t boundary = run.stage + (run.stage == 0 ? 0 : 1); boundary <= end; ++boundary) {
    if (plan_.activations[boundary] >= 0) AccessAll(plan_.activations[boundary], AccessKind::kFree);
  }
  Issue(op);
}

void PlanBuilder::AllReduce(int32_t set, int32_t full, int32_t micro_batch) {
  const int64_t elements = placement_.sets[set].layout.padded_elements();
  Op op = CollectiveOp(CollectiveKind::kAllReduce, Purpose::kReduceGradients, set, Phase::kBackward,
                       micro_batch, elements);
  op.send = op.recv = {full, {0, elements}};
  Access(full, AccessKind::kRead, op.send.range);
  Access(full, AccessKind::kWrite, op.recv.range);
  Issue(op);
}

void PlanBuilder::ReduceScatter(int32_t set, int32_t full, int32_t reduced, int32_t micro_batch) {
  const FlatLayout& layout = placement_.sets[set].layout;
  Op op = CollectiveOp(CollectiveKind::kReduceScatter, Purpose::kReduceGradients, set,
                       Phase::kBackward, micro_batch, layout.padded_elements());
  op.send = {full, {0, layout.padded_elements()}};
  op.recv = {reduced, {0, layout.shard_elements}};
  AllocateIfDead(reduced);
  Access(full, AccessKind::kRead, op.send.range);
  Access(reduced, AccessKind::kWrite, op.recv.range);
  Issue(op);
}

void PlanBuilder::Accumulate(int32_t set, int32_t from, int32_t to, int32_t micro_batch) {
  Op op = SetOp(OpKind::kAccumulate, set, Phase::kBackward, StreamId::kCommunication, micro_batch);
  const ElementRange range = {0, plan_.buffers[to].elements};
  op.send = {from, range};
  op.recv = {to, range};
  Access(from, AccessKind::kRead, range);
  Access(to, AccessKind::kRead, range);
  Access(to, AccessKind::kWrite, range);
  Issue(op);
}

void PlanBuilder::Scale(int32_t set, int32_t buffer, StreamId stream, int32_t micro_batch) {
  Op op = SetOp(OpKind::kScale, set, Phase::kBackward, stream, micro_batch);
  op.recv = {buffer, {0, plan_.buffers[buffer].elements}};
  op.scale = static_cast<float>(1.0 / (static_cast<double>(run_.sharding.world_size.value) *
                                       static_cast<double>(run_.data.num_micro_batches)));
  Access(buffer, AccessKind::kRead, op.recv.range);
  Access(buffer, AccessKind::kWrite, op.recv.range);
  Issue(op);
}

void PlanBuilder::AddUpdates(int32_t index) {
  const TensorSet& set = placement_.sets[index];
  const SetHome& state = home(index);
  int32_t counted = -1;
  for (const Segment& segment : set.layout.shard(ShardOf(set, plan_.rank))) {
    if (segment.tensor < 0 || placement_.moment_set[segment.tensor] != index) continue;
    if (!IsUsedInStep(run_, segment.tensor, step_)) continue;
    UpdateRange update;
    update.tensor = segment.tensor;
    update.count = segment.count;
    update.hyper_parameters_of = segment.tensor;
    update.counter_of = segment.tensor;
    // A tensor's ranges are neighbours, and its counter moves once.
    update.advance = segment.tensor != counted ? 1 : 0;
    counted = segment.tensor;
    const auto at = [&](int32_t buffer, int64_t first) {
      return BufferRange{buffer, {first, segment.count}};
    };
    update.parameter =
        at(state.parameter, OwnPart(set, set.parameter).first + segment.shard_offset);
    update.exp_avg = at(state.exp_avg, segment.shard_offset);
    update.exp_avg_sq = at(state.exp_avg_sq, segment.shard_offset);
    const int32_t gradient_set = placement_.gradient_set[segment.tensor];
    if (gradient_set == index) {
      update.gradient = at(state.gradient, OwnPart(set, set.gradient).first + segment.shard_offset);
    } else {
      // Gradients of another set (zero1_broadcast) are whole there, in one piece.
      update.gradient = at(home(gradient_set).gradient,
                           placement_.gradient_offset[segment.tensor] + segment.first);
      Access(update.gradient.buffer, AccessKind::kRead, update.gradient.range);
    }
    plan_.updates.push_back(update);
  }
  TouchState(index);
}

// An update owns its whole part, padding included: what follows is ordered after it even on
// a rank whose part is all padding.
void PlanBuilder::TouchState(int32_t index) {
  const TensorSet& set = placement_.sets[index];
  const SetHome& state = home(index);
  Access(state.gradient, AccessKind::kRead, OwnPart(set, set.gradient));
  const BufferRange parts[] = {{state.parameter, OwnPart(set, set.parameter)},
                               {state.exp_avg, OwnPart(set, Keeps::kShard)},
                               {state.exp_avg_sq, OwnPart(set, Keeps::kShard)}};
  for (const BufferRange& part : parts) {
    Access(part.buffer, AccessKind::kRead, part.range);
    Access(part.buffer, AccessKind::kWrite, part.range);
  }
}

void PlanBuilder::Clip(bool sharded) {
  std::vector<int32_t> sets;
  for (size_t set = 0; set < plan_.homes.size(); ++set) {
    if (plan_.homes[set].gradient >= 0) sets.push_back(static_cast<int32_t>(set));
  }
  if (run_.clip_grad_norm <= 0 || sets.empty()) return;
  Norm(sharded);
  if (sharded) SumNorms();
  Coefficient();
  for (int32_t set : sets) ScaleByCoefficient(set, /*last=*/set == sets.back());
}

// Its ranges are logical elements only: padding has no part in a norm.
void PlanBuilder::Norm(bool sharded) {
  Op op;
  op.kind = OpKind::kNorm;
  op.phase = Phase::kOptimizer;
  op.first_update = static_cast<int32_t>(plan_.updates.size());
  op.recv = {plan_.norm_buffer, {0, 1}};
  for (size_t index = 0; index < plan_.homes.size(); ++index) {
    const int32_t gradient = plan_.homes[index].gradient;
    if (gradient < 0) continue;
    const FlatLayout& layout = placement_.sets[index].layout;
    const int32_t own = sharded ? ShardOf(placement_.sets[index], plan_.rank) : 0;
    for (int32_t shard = own; shard < (sharded ? own + 1 : layout.shards); ++shard) {
      for (const Segment& segment : layout.shard(shard)) {
        if (segment.tensor < 0) continue;
        if (placement_.gradient_set[segment.tensor] != static_cast<int32_t>(index)) continue;
        const int64_t first = sharded ? segment.shard_offset : layout.offset(segment);
        UpdateRange range;
        range.tensor = segment.tensor;
        range.count = segment.count;
        range.gradient = {gradient, {first, segment.count}};
        plan_.updates.push_back(range);
      }
    }
    AccessAll(gradient, AccessKind::kRead);
  }
  op.update_count = static_cast<int32_t>(plan_.updates.size()) - op.first_update;
  AllocateIfDead(plan_.norm_buffer);
  AccessAll(plan_.norm_buffer, AccessKind::kWrite);
  Issue(op);
}

void PlanBuilder::SumNorms() {
  Op op;
  op.kind = OpKind::kCollective;
  op.phase = Phase::kOptimizer;
  op.stream = StreamId::kCommunication;
  op.collective = CollectiveKind::kAllReduce;
  op.purpose = Purpose::kClipNorm;
  op.dtype = Dtype::kFloat64;
  op.group = {0, 1, run_.sharding.world_size.value};
  op.elements = 1;
  op.send = op.recv = {plan_.norm_buffer, {0, 1}};
  AccessAll(plan_.norm_buffer, AccessKind::kRead);
  AccessAll(plan_.norm_buffer, AccessKind::kWrite);
  Issue(op);
}

void PlanBuilder::Coefficient() {
  Op op;
  op.kind = OpKind::kClipCoefficient;
  op.phase = Phase::kOptimizer;
  op.send = {plan_.norm_buffer, {0, 1}};
  op.recv = {plan_.coefficient_buffer, {0, 1}};
  op.scale = static_cast<float>(run_.clip_grad_norm);
  AllocateIfDead(plan_.coefficient_buffer);
  AccessAll(plan_.norm_buffer, AccessKind::kRead);
  AccessAll(plan_.norm_buffer, AccessKind::kFree);
  AccessAll(plan_.coefficient_buffer, AccessKind::kWrite);
  Issue(op);
}

void PlanBuilder::ScaleByCoefficient(int32_t set, bool last) {
  Op op = SetOp(OpKind::kScaleBy, set, Phase::kOptimizer, StreamId::kCompute, /*micro_batch=*/-1);
  const int32_t gradient = home(set).gradient;
  op.send = {plan_.coefficient_buffer, {0, 1}};
  op.recv = {gradient, {0, plan_.buffers[gradient].elements}};
  AccessAll(plan_.coefficient_buffer, AccessKind::kRead);
  AccessAll(gradient, AccessKind::kRead);
  AccessAll(gradient, AccessKind::kWrite);
  if (last) AccessAll(plan_.coefficient_buffer, AccessKind::kFree);
  Issue(op);
}

void PlanBuilder::Update(const std::vector<int32_t>& sets) {
  Op op;
  op.kind = OpKind::kOptimizerUpdate;
  op.phase = Phase::kOptimizer;
  op.first_update = static_cast<int32_t>(plan_.updates.size());
  if (sets.size() == 1 && placement_.sets[sets[0]].owner < 0) {
    op.set = sets[0];
    op.unit = placement_.sets[sets[0]].unit;
    op.bucket = placement_.sets[sets[0]].bucket;
  }
  for (int32_t set : sets) AddUpdates(set);
  op.update_count = static_cast<int32_t>(plan_.updates.size()) - op.first_update;
  if (op.update_count > 0 && plan_.scalar_buffer >= 0) {
    AccessAll(plan_.scalar_buffer, AccessKind::kRead);
    AccessAll(plan_.scalar_buffer, AccessKind::kWrite);
  }
  Issue(op);
}

void PlanBuilder::AllGatherUpdated(int32_t set) {
  const FlatLayout& layout = placement_.sets[set].layout;
  Op op = CollectiveOp(CollectiveKind::kAllGather, Purpose::kGatherParameters, set,
                       Phase::kOptimizer, /*micro_batch=*/-1, layout.padded_elements());
  op.send = {home(set).parameter,
             {plan_.rank.value * layout.shard_elements, layout.shard_elements}};
  op.recv = {home(set).parameter, {0, layout.padded_elements()}};
  Access(op.send.buffer, AccessKind::kRead, op.send.range);
  Access(op.recv.buffer, AccessKind::kWrite, op.recv.range);
  Issue(op);
}

void PlanBuilder::Broadcast(int32_t set, ElementRange range, int32_t tensor) {
  Op op = CollectiveOp(CollectiveKind::kBroadcast, Purpose::kBroadcastParameters, set,
                       Phase::kOptimizer, /*micro_batch=*/-1, range.count);
  op.root = placement_.sets[set].owner;
  op.tensor = tensor;
  op.send = op.recv = {home(set).parameter, range};
  if (op.root == plan_.rank.value) {
    Access(op.send.buffer, AccessKind::kRead, range);
  } else {
    Access(op.recv.buffer, AccessKind::kWrite, range);
  }
  Issue(op);
}

void PlanBuilder::Release(const std::vector<int32_t>& buffers, StreamId stream, Phase phase,
                          int32_t micro_batch) {
  if (buffers.empty()) return;
  Op op;
  op.kind = OpKind::kRelease;
  op.phase = phase;
  op.stream = stream;
  op.micro_batch = micro_batch;
  const BufferSpec& first = plan_.buffers[buffers[0]];
  const bool alike = std::all_of(buffers.begin(), buffers.end(), [&](int32_t buffer) {
    return plan_.buffers[buffer].unit == first.unit && plan_.buffers[buffer].bucket == first.bucket;
  });
  if (alike) {
    op.unit = first.unit;
    op.bucket = first.bucket;
  }
  for (int32_t buffer : buffers) AccessAll(buffer, AccessKind::kFree);
  Issue(op);
}

void PlanBuilder::WriteBack(int32_t set, int32_t full) {
  const int64_t shard = placement_.sets[set].layout.shard_elements;
  Op op = SetOp(OpKind::kCopy, set, Phase::kOther, StreamId::kCompute, /*micro_batch=*/-1);
  op.send = {full, {ShardOf(placement_.sets[set], plan_.rank) * shard, shard}};
  op.recv = {home(set).parameter, {0, shard}};
  Access(full, AccessKind::kRead, op.send.range);
  Access(op.recv.buffer, AccessKind::kWrite, op.recv.range);
  Issue(op);
}

void PlanBuilder::Loss(int32_t micro_batch) {
  Op op;
  op.kind = OpKind::kLoss;
  op.phase = Phase::kForward;
  op.micro_batch = micro_batch;
  AccessAll(plan_.activations.back(), AccessKind::kRead);
  Issue(op);
}

void PlanBuilder::ReleaseActivations(int32_t micro_batch) {
  std::vector<int32_t> left;
  for (const std::vector<int32_t>* buffers : {&plan_.activations, &plan_.activation_gradients}) {
    for (int32_t buffer : *buffers) {
      if (buffer >= 0 && live(buffer)) left.push_back(buffer);
    }
  }
  Release(left, StreamId::kCompute, Phase::kBackward, micro_batch);
}

}  // namespace shardproof
