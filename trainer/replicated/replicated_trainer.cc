#include "trainer/replicated/replicated_trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/model/model_compute.h"
#include "trainer/replicated/replicated_optimizer.h"

namespace shardproof {
namespace {

// Everything of one parameter tensor. A frozen tensor has `parameter` only; a vector that no
// sum of this run needs stays empty (see Replicated::Allocate).
struct TensorState {
  std::vector<float> parameter;
  std::vector<float> previous_parameter;
  std::vector<float> gradient;      // the sum over ranks and micro-batches, then their mean
  std::vector<float> group_sum;     // of the inner loop of sums, from the second round on
  std::vector<float> contribution;  // of one rank's micro-batch, from the second on
  std::vector<float> magnitude;     // the mean of the contributions' absolute values
  std::vector<float> second_use;    // of a later stage that uses the same (tied) tensor
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;
  int64_t updates = 0;
};

// Where one rank's micro-batch writes its gradients.
using GradientOf = std::vector<float> TensorState::*;

// The two nested loops of sums: `inner` terms add up first, then `outer` such sums.
struct SumOrder {
  int64_t outer = 1;
  int64_t inner = 1;
};

SumOrder OrderOf(const RunDescription& run) {
  const int64_t ranks = run.sharding.world_size.value;
  const int64_t micro_batches = run.data.num_micro_batches;
  return run.sharding.grad_sync == GradSync::kLast ? SumOrder{ranks, micro_batches}
                                                   : SumOrder{micro_batches, ranks};
}

// In how many places of the stages each tensor is listed.
std::vector<int32_t> UsesOfTensors(const ModelDescription& model) {
  std::vector<int32_t> uses(model.tensors.size(), 0);
  for (const Stage& stage : model.stages) {
    for (const int32_t tensor : stage.tensors) ++uses[tensor];
  }
  return uses;
}

// What the vectors of one tensor are, as multiples of its elements. Allocation and
// RequiredBytes both read it, so that they agree.
struct TensorNeeds {
  bool gradient = false;  // and previous_parameter
  bool group_sum = false;
  bool contribution = false;
  bool second_use = false;
  bool magnitude = false;
  bool exp_avg = false;
  bool exp_avg_sq = false;
  int64_t vectors() const {
    return 1 + 2 * gradient + group_sum + contribution + second_use + magnitude + exp_avg +
           exp_avg_sq;
  }
};

TensorNeeds NeedsOf(const RunDescription& run, const ReferenceOptions& options,
                    const TensorSpec& tensor, int32_t uses) {
  TensorNeeds needs;
  if (!tensor.trainable) return needs;
  const SumOrder order = OrderOf(run);
  const bool adamw = run.optimizer.kind == OptimizerKind::kAdamW;
  needs.gradient = true;
  needs.group_sum = order.outer > 1;
  needs.contribution = order.inner > 1;
  needs.second_use = uses > 1;
  needs.magnitude = options.gradient_magnitude;
  needs.exp_avg = adamw || run.optimizer.momentum != 0;
  needs.exp_avg_sq = adamw;
  return needs;
}

void Add(const std::vector<float>& from, std::vector<float>& to) {
  const float* source = from.data();
  float* target = to.data();
  const int64_t elements = static_cast<int64_t>(to.size());
  for (int64_t i = 0; i < elements; ++i) target[i] += source[i];
}

void AddAbsolutes(const std::vector<float>& from, std::vector<float>& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += std::abs(from[i]);
}

void Scale(float factor, std::vector<float>& values) {
  for (float& value : values) value *= factor;
}

class Replicated : public ReplicatedTrainer {
 public:
  Replicated(const RunDescription& run, const ReferenceOptions& options,
             std::unique_ptr<ModelCompute> compute)
      : run_(run),
        options_(options),
        compute_(std::move(compute)),
        order_(OrderOf(run)),
        scale_(static_cast<float>(1.0 / (static_cast<double>(run.sharding.world_size.value) *
                                         static_cast<double>(run.data.num_micro_batches)))) {
    AllocateTensors();
    AllocateBoundaries();
    DescribeResult();
  }

  const ReferenceStep& Step(std::optional<float> clip_coefficient) override {
    result_.step = next_step_++;
    std::fill(result_.losses.begin(), result_.losses.end(), 0.0);
    ComputeGradients();
    if (run_.clip_grad_norm > 0) Clip(clip_coefficient);
    for (double& loss : result_.losses) loss /= static_cast<double>(run_.data.num_micro_batches);
    for (size_t tensor = 0; tensor < states_.size(); ++tensor) {
      TensorState& state = states_[tensor];
      if (!run_.model.tensors[tensor].trainable) continue;
      state.previous_parameter = state.parameter;
      const int32_t index = static_cast<int32_t>(tensor);
      if (!IsUsedInStep(run_, index, result_.step)) continue;
      Update(HyperParametersOf(run_.optimizer, index), state);
      result_.tensors[tensor].updates = state.updates;
    }
    return result_;
  }

  const ReferenceStep& State() const override { return result_; }

  std::vector<double> Losses(int64_t step) override {
    const int64_t micro_batches = run_.data.num_micro_batches;
    std::vector<double> losses(static_cast<size_t>(run_.sharding.world_size.value), 0.0);
    for (size_t rank = 0; rank < losses.size(); ++rank) {
      for (int64_t k = 0; k < micro_batches; ++k) {
        losses[rank] +=
            ForwardAndLoss({step, Rank{static_cast<int32_t>(rank)}, static_cast<int32_t>(k)});
      }
      losses[rank] /= static_cast<double>(micro_batches);
    }
    return losses;
  }

  void SetParameter(int32_t tensor, const std::vector<float>& values) override {
    // In place: boundaries and results point to it.
    std::copy(values.begin(), values.end(), states_[tensor].parameter.begin());
  }

 private:
  // Leaves the activations, and the derivative of the loss in out_gradient_.
  double ForwardAndLoss(const MicroBatch& micro_batch) {
    const int32_t stages = static_cast<int32_t>(run_.model.stages.size());
    compute_->LoadInput(micro_batch, boundaries_[0].data());
    for (int32_t stage = 0; stage < stages; ++stage) {
      compute_->Forward(stage, stage_parameters_[stage], boundaries_[stage].data(),
                        boundaries_[stage + 1].data());
    }
    return compute_->Loss(micro_batch, boundaries_[stages].data(), out_gradient_.data());
  }

  void AllocateTensors() {
    const std::vector<int32_t> uses = UsesOfTensors(run_.model);
    states_.resize(run_.model.tensors.size());
    for (size_t tensor = 0; tensor < states_.size(); ++tensor) {
      const TensorSpec& spec = run_.model.tensors[tensor];
      const TensorNeeds needs = NeedsOf(run_, options_, spec, uses[tensor]);
      const size_t elements = static_cast<size_t>(Elements(spec));
      TensorState& state = states_[tensor];
      state.parameter.resize(elements);
      FillInitialValues(run_, static_cast<int32_t>(tensor), {0, static_cast<int64_t>(elements)},
                        state.parameter.data());
      if (needs.gradient) state.previous_parameter.resize(elements);
      if (needs.gradient) state.gradient.resize(elements);
      if (needs.group_sum) state.group_sum.resize(elements);
      if (needs.contribution) state.contribution.resize(elements);
      if (needs.magnitude) state.magnitude.resize(elements);
      if (needs.second_use) state.second_use.resize(elements);
      if (needs.exp_avg) state.exp_avg.resize(elements);
      if (needs.exp_avg_sq) state.exp_avg_sq.resize(elements);
    }
    written_.resize(states_.size());
  }

  // One rank's micro-batch is computed at a time, so one set of boundaries serves all.
  void AllocateBoundaries() {
    const int32_t stages = static_cast<int32_t>(run_.model.stages.size());
    size_t widest = 0;
    for (int32_t boundary = 0; boundary <= stages; ++boundary) {
      const int64_t floats = compute_->Width(boundary) * run_.data.micro_batch_size;
      boundaries_.emplace_back(static_cast<size_t>(floats));
      widest = std::max(widest, boundaries_.back().size());
    }
    out_gradient_.resize(widest);
    in_gradient_.resize(widest);
    for (const Stage& stage : run_.model.stages) {
      std::vector<const float*>& parameters = stage_parameters_.emplace_back();
      for (const int32_t tensor : stage.tensors) {
        parameters.push_back(states_[tensor].parameter.data());
      }
      stage_gradients_.emplace_back(stage.tensors.size());
    }
  }

  void DescribeResult() {
    result_.losses.resize(static_cast<size_t>(run_.sharding.world_size.value));
    for (const TensorState& state : states_) {
      ReferenceTensor& tensor = result_.tensors.emplace_back();
      tensor.parameter = state.parameter.data();
      tensor.previous_parameter = state.parameter.data();
      if (!state.gradient.empty()) tensor.previous_parameter = state.previous_parameter.data();
      if (!state.gradient.empty()) tensor.gradient = state.gradient.data();
      if (!state.magnitude.empty()) tensor.gradient_magnitude = state.magnitude.data();
      if (!state.exp_avg.empty()) tensor.exp_avg = state.exp_avg.data();
      if (!state.exp_avg_sq.empty()) tensor.exp_avg_sq = state.exp_avg_sq.data();
    }
  }

  // Leaves the mean over ranks and micro-batches in `gradient`. The first term of each sum
  // is written to where the sum grows, the later ones beside it and then added.
  void ComputeGradients() {
    const bool ranks_add_first = run_.sharding.grad_sync == GradSync::kEvery;
    const bool before = run_.sharding.scale_before_reduce;
    for (TensorState& state : states_) std::fill(state.magnitude.begin(), state.magnitude.end(), 0);
    for (int64_t outer = 0; outer < order_.outer; ++outer) {
      const GradientOf sum = outer == 0 ? &TensorState::gradient : &TensorState::group_sum;
      for (int64_t inner = 0; inner < order_.inner; ++inner) {
        const GradientOf term = inner == 0 ? sum : &TensorState::contribution;
        const int64_t rank = ranks_add_first ? inner : outer;
        const int64_t micro_batch = ranks_add_first ? outer : inner;
        ComputeMicroBatch(
            {result_.step, Rank{static_cast<int32_t>(rank)}, static_cast<int32_t>(micro_batch)},
            term);
        for (TensorState& state : states_) AddAbsolutes(state.*term, state.magnitude);
        if (before && ranks_add_first) ScaleAll(term);
        if (inner > 0) AddAll(term, sum);
      }
      if (before && !ranks_add_first) ScaleAll(sum);
      if (outer > 0) AddAll(sum, &TensorState::gradient);
    }
    if (!before) ScaleAll(&TensorState::gradient);
    ScaleAll(&TensorState::magnitude);
  }

  void Clip(std::optional<float> trainers) {
    double squares = 0;
    for (const TensorState& state : states_) {
      for (const float value : state.gradient) squares += static_cast<double>(value) * value;
    }
    result_.gradient_norm = std::sqrt(squares);
    result_.clip_coefficient =
        static_cast<float>(std::min(1.0, run_.clip_grad_norm / (result_.gradient_norm + 1e-6)));
    const float own = result_.clip_coefficient;
    const bool usable = trainers.has_value() && std::abs(*trainers - own) <= 1e-6f * own;
    result_.used_coefficient = usable ? *trainers : own;
    for (TensorState& state : states_) {
      Scale(result_.used_coefficient, state.gradient);
      Scale(result_.used_coefficient, state.magnitude);
    }
  }

  // Forward, loss and backward of one rank's micro-batch; its gradients go to `into`.
  void ComputeMicroBatch(const MicroBatch& micro_batch, GradientOf into) {
    const int32_t stages = static_cast<int32_t>(run_.model.stages.size());
    result_.losses[micro_batch.rank.value] += ForwardAndLoss(micro_batch);
    std::fill(written_.begin(), written_.end(), false);
    for (int32_t stage = stages - 1; stage >= 0; --stage) {
      BackwardOneStage(micro_batch, stage, into);
      std::swap(out_gradient_, in_gradient_);
    }
  }

  // A tensor's first use in backward writes its gradient, later uses (tied tensors) add.
  void BackwardOneStage(const MicroBatch& micro_batch, int32_t stage, GradientOf into) {
    const std::vector<int32_t>& tensors = run_.model.stages[stage].tensors;
    std::vector<float*>& gradients = stage_gradients_[stage];
    for (size_t i = 0; i < tensors.size(); ++i) {
      TensorState& state = states_[tensors[i]];
      const bool trainable = run_.model.tensors[tensors[i]].trainable;
      std::vector<float>& target = written_[tensors[i]] ? state.second_use : state.*into;
      gradients[i] = trainable ? target.data() : nullptr;
      written_[tensors[i]] = true;
    }
    compute_->Backward(micro_batch, stage, stage_parameters_[stage], boundaries_[stage].data(),
                       boundaries_[stage + 1].data(), out_gradient_.data(),
                       stage == 0 ? nullptr : in_gradient_.data(), gradients);
    for (size_t i = 0; i < tensors.size(); ++i) {
      TensorState& state = states_[tensors[i]];
      const bool added = gradients[i] != nullptr && gradients[i] == state.second_use.data();
      if (added) Add(state.second_use, state.*into);
    }
  }

  void AddAll(GradientOf from, GradientOf to) {
    for (TensorState& state : states_) Add(state.*from, state.*to);
  }

  void ScaleAll(GradientOf gradient) {
    for (TensorState& state : states_) Scale(scale_, state.*gradient);
  }

  static void Update(const OptimizerDescription& optimizer, TensorState& state) {
    ++state.updates;
    switch (optimizer.kind) {
      case OptimizerKind::kAdamW:
        ReplicatedAdamW(optimizer, state.updates, state.gradient, state.parameter, state.exp_avg,
                        state.exp_avg_sq);
        return;
      case OptimizerKind::kSgd:
        ReplicatedSgd(optimizer, state.updates, state.gradient, state.parameter, state.exp_avg);
        return;
    }
  }

  const RunDescription& run_;
  const ReferenceOptions options_;
  std::unique_ptr<ModelCompute> compute_;
  const SumOrder order_;
  const float scale_;  // 1 / (ranks * micro-batches)
  int64_t next_step_ = 0;
  std::vector<TensorState> states_;             // by tensor
  std::vector<char> written_;                   // by tensor, in this micro-batch's backward
  std::vector<std::vector<float>> boundaries_;  // activations, by boundary
  std::vector<float> out_gradient_;
  std::vector<float> in_gradient_;
  std::vector<std::vector<const float*>> stage_parameters_;
  std::vector<std::vector<float*>> stage_gradients_;
  ReferenceStep result_;
};

absl::Status CheckComputable(const RunDescription& run) {
  const MixedPrecision& precision = run.sharding.precision;
  for (const Dtype dtype :
       {precision.parameter, precision.reduce, precision.master, precision.moment}) {
    if (dtype != Dtype::kFloat32) {
      return absl::UnimplementedError(absl::StrCat(
          "dtype ", Name(dtype), ": the oracle computes in float32; accepted is float32"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReplicatedTrainer>> ReplicatedTrainer::Create(
    const RunDescription& run, const ReferenceOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(CheckComputable(run));
  SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<ModelCompute> compute, MakeModelCompute(run));
  return Create(run, std::move(compute), options);
}

absl::StatusOr<std::unique_ptr<ReplicatedTrainer>> ReplicatedTrainer::Create(
    const RunDescription& run, std::unique_ptr<ModelCompute> compute,
    const ReferenceOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(CheckComputable(run));
  return std::make_unique<Replicated>(run, options, std::move(compute));
}

int64_t ReplicatedTrainer::RequiredBytes(const RunDescription& run,
                                         const ReferenceOptions& options) {
  // Shapes of absurd extents end at the largest int64 instead of wrapping to a small number.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  int64_t floats = 0;
  const auto add = [&floats](int64_t count, int64_t times) {
    int64_t product = 0;
    if (__builtin_mul_overflow(count, times, &product) ||
        __builtin_add_overflow(floats, product, &floats)) {
      floats = kMost;
    }
  };
  const std::vector<int32_t> uses = UsesOfTensors(run.model);
  for (size_t tensor = 0; tensor < run.model.tensors.size(); ++tensor) {
    const TensorSpec& spec = run.model.tensors[tensor];
    add(Elements(spec), NeedsOf(run, options, spec, uses[tensor]).vectors());
  }
  const auto compute = MakeModelCompute(run);
  if (compute.ok()) {
    int64_t widest = 0;
    for (int32_t boundary = 0; boundary <= static_cast<int32_t>(run.model.stages.size());
         ++boundary) {
      const int64_t width = (*compute)->Width(boundary);
      add(width, run.data.micro_batch_size);
      widest = std::max(widest, width);
    }
    add(2 * widest, run.data.micro_batch_size);
  }
  return floats > kMost / 4 ? kMost : floats * 4;
}

}  // namespace shardproof
