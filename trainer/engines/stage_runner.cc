#include "trainer/engines/stage_runner.h"

#include <algorithm>

namespace shardproof {
namespace {

// By tensor, its pieces in the set that `set_of_tensor` names. One pass over each layout.
std::vector<std::vector<Piece>> AllPieces(const Placement& placement,
                                          const std::vector<int32_t>& set_of_tensor) {
  std::vector<std::vector<Piece>> pieces(set_of_tensor.size());
  for (size_t index = 0; index < placement.sets.size(); ++index) {
    const FlatLayout& layout = placement.sets[index].layout;
    for (const Segment& segment : layout.segments) {
      if (segment.tensor < 0) continue;
      if (set_of_tensor[segment.tensor] != static_cast<int32_t>(index)) continue;
      AppendPiece({segment.first, segment.count, layout.offset(segment)}, pieces[segment.tensor]);
    }
  }
  return pieces;
}

int32_t BufferOf(absl::Span<const SetUse> uses, int32_t set) {
  for (const SetUse& use : uses) {
    if (use.set == set) return use.buffer;
  }
  return -1;
}

bool Accumulates(absl::Span<const SetUse> uses, int32_t set) {
  for (const SetUse& use : uses) {
    if (use.set == set) return use.accumulate;
  }
  return false;
}

float* At(StageRunner::Buffers buffers, int32_t buffer) {
  return buffer < 0 ? nullptr : buffers[buffer];
}

}  // namespace

StageRunner::StageRunner(const RunDescription& run, const Placement& placement,
                         StageArithmetic& arithmetic)
    : run_(run),
      placement_(placement),
      arithmetic_(arithmetic),
      parameter_pieces_(AllPieces(placement, placement.parameter_set)),
      gradient_pieces_(AllPieces(placement, placement.gradient_set)),
      used_twice_(run.model.tensors.size(), false),
      first_use_(run.model.tensors.size(), -1) {
  for (size_t stage = 0; stage < run.model.stages.size(); ++stage) {
    for (int32_t tensor : run.model.stages[stage].tensors) {
      used_twice_[tensor] = first_use_[tensor] >= 0;
      if (!used_twice_[tensor]) first_use_[tensor] = static_cast<int32_t>(stage);
    }
  }
  progress_.assign(run.sharding.world_size.value,
                   std::vector<GradientProgress>(run.model.tensors.size()));
}

const float* StageRunner::Collect(const StepPlan& plan, const Op& op, int32_t tensor,
                                  int32_t position, Rank rank, Buffers buffers) {
  const float* buffer =
      At(buffers, BufferOf(plan.ParameterUsesOf(op), placement_.parameter_set[tensor]));
  const std::vector<Piece>& pieces = parameter_pieces_[tensor];
  if (pieces.size() == 1 && arithmetic_.InPlace(buffer + pieces[0].offset)) {
    return buffer + pieces[0].offset;
  }
  float* const values = arithmetic_.Workspace({StageWorkspace::Use::kParameter, position, rank},
                                              Elements(run_.model.tensors[tensor]));
  for (const Piece& piece : pieces) {
    arithmetic_.Copy(buffer + piece.offset, piece.count, values + piece.first);
  }
  return values;
}

void StageRunner::CollectParameters(const StepPlan& plan, const Op& op, int32_t stage, Rank rank,
                                    Buffers buffers) {
  const std::vector<int32_t>& tensors = run_.model.stages[stage].tensors;
  parameters_.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    parameters_.push_back(Collect(plan, op, tensors[i], static_cast<int32_t>(i), rank, buffers));
  }
}

void StageRunner::Forward(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                          Buffers buffers) {
  if (op.stage == 0 && plan.activations[0] >= 0) {
    arithmetic_.LoadInput(micro_batch, At(buffers, plan.activations[0]));
  }
  for (int32_t stage = op.stage; stage < op.stage + op.stage_count; ++stage) {
    CollectParameters(plan, op, stage, micro_batch.rank, buffers);
    arithmetic_.Forward(stage, parameters_, At(buffers, plan.activations[stage]),
                        At(buffers, plan.activations[stage + 1]));
  }
}

double StageRunner::Backward(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                             Buffers buffers) {
  double loss = 0;
  const int32_t end = op.stage + op.stage_count;
  if (end == static_cast<int32_t>(run_.model.stages.size())) {
    loss = arithmetic_.Loss(micro_batch, At(buffers, plan.activations[end]),
                            At(buffers, plan.activation_gradients[end]));
  }
  for (int32_t stage = end - 1; stage >= op.stage; --stage) {
    // Frozen stages that begin the model may share this operation: no gradient flows down there.
    if (plan.activations[stage + 1] >= 0 && plan.activation_gradients[stage + 1] < 0) break;
    BackwardStage(plan, op, micro_batch, stage, buffers);
  }
  return loss;
}

double StageRunner::Loss(const StepPlan& plan, const MicroBatch& micro_batch, Buffers buffers) {
  const size_t end = run_.model.stages.size();
  return arithmetic_.Loss(micro_batch, At(buffers, plan.activations[end]), nullptr);
}

void StageRunner::FindTargets(const StepPlan& plan, const Op& op, int32_t stage, Rank rank,
                              int64_t now, Buffers buffers) {
  const std::vector<int32_t>& tensors = run_.model.stages[stage].tensors;
  const absl::Span<const SetUse> uses = plan.GradientUsesOf(op);
  targets_.assign(tensors.size(), {});
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int32_t tensor = tensors[i];
    const int32_t set = placement_.gradient_set[tensor];
    const int32_t buffer = set < 0 ? -1 : BufferOf(uses, set);
    if (buffer < 0) continue;
    GradientTarget& target = targets_[i];
    GradientProgress& progress = progress_[rank.value][tensor];
    target.buffer = buffers[buffer];
    target.again = progress.written_in == now;
    target.accumulates = Accumulates(uses, set);
    // A sum that an edited plan never begins must not be one of an earlier micro-batch.
    if (!target.again) progress.sum_begun = false;
    const std::vector<Piece>& pieces = gradient_pieces_[tensor];
    if (pieces.size() == 1 && !target.accumulates && !target.again &&
        arithmetic_.InPlace(target.buffer + pieces[0].offset)) {
      target.gradient = target.buffer + pieces[0].offset;
      target.in_buffer = true;
      continue;
    }
    const int64_t elements = Elements(run_.model.tensors[tensor]);
    // A micro-batch's uses of a tensor add first, and their sum to the micro-batches before.
    const bool sums_uses = target.accumulates && used_twice_[tensor];
    if (sums_uses && !target.again) progress.sum_begun = true;
    if (sums_uses && progress.sum_begun) {
      target.sum = arithmetic_.Workspace({StageWorkspace::Use::kSum, tensor, rank}, elements);
    }
    target.gradient =
        target.sum != nullptr && !target.again
            ? target.sum
            : arithmetic_.Workspace({StageWorkspace::Use::kGradient, static_cast<int32_t>(i), rank},
                                    elements);
  }
}

void StageRunner::BackwardStage(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                                int32_t stage, Buffers buffers) {
  const std::vector<int32_t>& tensors = run_.model.stages[stage].tensors;
  const int64_t now = steps_ * run_.data.num_micro_batches + micro_batch.micro_batch + 1;
  CollectParameters(plan, op, stage, micro_batch.rank, buffers);
  FindTargets(plan, op, stage, micro_batch.rank, now, buffers);
  gradients_.clear();
  for (const GradientTarget& target : targets_) gradients_.push_back(target.gradient);
  arithmetic_.Backward(micro_batch, stage, parameters_, At(buffers, plan.activations[stage]),
                       At(buffers, plan.activations[stage + 1]),
                       At(buffers, plan.activation_gradients[stage + 1]),
                       At(buffers, plan.activation_gradients[stage]), absl::MakeSpan(gradients_));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (targets_[i].gradient == nullptr) continue;
    KeepGradient(tensors[i], stage, targets_[i]);
    progress_[micro_batch.rank.value][tensors[i]].written_in = now;
  }
}

void StageRunner::KeepGradient(int32_t tensor, int32_t stage, const GradientTarget& target) {
  if (target.sum != nullptr) {
    if (target.again) {
      arithmetic_.Add(target.gradient, Elements(run_.model.tensors[tensor]), target.sum);
    }
    if (stage == first_use_[tensor]) WriteBack(tensor, target.sum, /*add=*/true, target.buffer);
  } else if (!target.in_buffer) {
    WriteBack(tensor, target.gradient, target.accumulates || target.again, target.buffer);
  }
}

void StageRunner::WriteBack(int32_t tensor, const float* gradient, bool add, float* buffer) {
  for (const Piece& piece : gradient_pieces_[tensor]) {
    float* const to = buffer + piece.offset;
    if (add) {
      arithmetic_.Add(gradient + piece.first, piece.count, to);
    } else {
      arithmetic_.Copy(gradient + piece.first, piece.count, to);
    }
  }
}

}  // namespace shardproof
