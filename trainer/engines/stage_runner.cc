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

}  // namespace

StageRunner::StageRunner(const RunDescription& run, const Placement& placement,
                         const ModelCompute& compute)
    : run_(run),
      placement_(placement),
      compute_(compute),
      parameter_pieces_(AllPieces(placement, placement.parameter_set)),
      gradient_pieces_(AllPieces(placement, placement.gradient_set)),
      used_twice_(run.model.tensors.size(), false),
      first_use_(run.model.tensors.size(), -1) {
  size_t widest = 0;
  for (size_t stage = 0; stage < run.model.stages.size(); ++stage) {
    const std::vector<int32_t>& tensors = run.model.stages[stage].tensors;
    widest = std::max(widest, tensors.size());
    for (int32_t tensor : tensors) {
      used_twice_[tensor] = first_use_[tensor] >= 0;
      if (!used_twice_[tensor]) first_use_[tensor] = static_cast<int32_t>(stage);
    }
  }
  parameter_workspace_.resize(widest);
  gradient_workspace_.resize(widest);
  written_in_.assign(run.sharding.world_size.value,
                     std::vector<int64_t>(run.model.tensors.size(), 0));
  sum_of_uses_.assign(run.sharding.world_size.value,
                      std::vector<std::vector<float>>(run.model.tensors.size()));
}

const float* StageRunner::Collect(const StepPlan& plan, const Op& op, int32_t tensor,
                                  RankMemory& memory, std::vector<float>& workspace) {
  const float* buffer =
      memory.data(BufferOf(plan.ParameterUsesOf(op), placement_.parameter_set[tensor]));
  const std::vector<Piece>& pieces = parameter_pieces_[tensor];
  if (pieces.size() == 1) return buffer + pieces[0].offset;
  workspace.resize(Elements(run_.model.tensors[tensor]));
  for (const Piece& piece : pieces) {
    std::copy_n(buffer + piece.offset, piece.count, workspace.data() + piece.first);
  }
  return workspace.data();
}

void StageRunner::CollectParameters(const StepPlan& plan, const Op& op, int32_t stage,
                                    RankMemory& memory) {
  const std::vector<int32_t>& tensors = run_.model.stages[stage].tensors;
  parameters_.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    parameters_.push_back(Collect(plan, op, tensors[i], memory, parameter_workspace_[i]));
  }
}

void StageRunner::Forward(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                          RankMemory& memory) {
  if (op.stage == 0 && plan.activations[0] >= 0) {
    compute_.LoadInput(micro_batch, memory.data(plan.activations[0]));
  }
  for (int32_t stage = op.stage; stage < op.stage + op.stage_count; ++stage) {
    CollectParameters(plan, op, stage, memory);
    compute_.Forward(stage, parameters_, memory.data(plan.activations[stage]),
                     memory.data(plan.activations[stage + 1]));
  }
}

double StageRunner::Backward(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                             RankMemory& memory) {
  double loss = 0;
  const int32_t end = op.stage + op.stage_count;
  if (end == static_cast<int32_t>(run_.model.stages.size())) {
    loss = compute_.Loss(micro_batch, memory.data(plan.activations[end]),
                         memory.data(plan.activation_gradients[end]));
  }
  for (int32_t stage = end - 1; stage >= op.stage; --stage) {
    // Frozen stages that begin the model may share this operation: no gradient flows down there.
    if (plan.activations[stage + 1] >= 0 && plan.activation_gradients[stage + 1] < 0) break;
    BackwardStage(plan, op, micro_batch, stage, memory);
  }
  return loss;
}

double StageRunner::Loss(const StepPlan& plan, const MicroBatch& micro_batch, RankMemory& memory) {
  const int32_t end = static_cast<int32_t>(run_.model.stages.size());
  std::vector<float> derivative(
      static_cast<size_t>(compute_.Width(end) * run_.data.micro_batch_size));
  return compute_.Loss(micro_batch, memory.data(plan.activations[end]), derivative.data());
}

void StageRunner::BackwardStage(const StepPlan& plan, const Op& op, const MicroBatch& micro_batch,
                                int32_t stage, RankMemory& memory) {
  const std::vector<int32_t>& tensors = run_.model.stages[stage].tensors;
  const absl::Span<const SetUse> uses = plan.GradientUsesOf(op);
  const int64_t now = steps_ * run_.data.num_micro_batches + micro_batch.micro_batch + 1;
  std::vector<int64_t>& written = written_in_[micro_batch.rank.value];
  std::vector<std::vector<float>>& sums = sum_of_uses_[micro_batch.rank.value];
  const auto again = [&](int32_t tensor) { return written[tensor] == now; };
  const auto accumulates = [&](int32_t tensor) {
    return Accumulates(uses, placement_.gradient_set[tensor]);
  };
  // A micro-batch's uses of a tensor add first, and their sum to the micro-batches before.
  const auto sums_uses = [&](int32_t tensor) { return accumulates(tensor) && used_twice_[tensor]; };
  CollectParameters(plan, op, stage, memory);
  gradients_.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int32_t tensor = tensors[i];
    const int32_t set = placement_.gradient_set[tensor];
    const int32_t buffer = set < 0 ? -1 : BufferOf(uses, set);
    if (buffer < 0) {
      gradients_.push_back(nullptr);
      continue;
    }
    // A sum that an edited plan never begins must not be one of an earlier micro-batch.
    if (!again(tensor)) sums[tensor].clear();
    const std::vector<Piece>& pieces = gradient_pieces_[tensor];
    if (pieces.size() == 1 && !accumulates(tensor) && !again(tensor)) {
      gradients_.push_back(memory.data(buffer) + pieces[0].offset);
      continue;
    }
    std::vector<float>& target =
        sums_uses(tensor) && !again(tensor) ? sums[tensor] : gradient_workspace_[i];
    target.resize(Elements(run_.model.tensors[tensor]));
    gradients_.push_back(target.data());
  }
  compute_.Backward(micro_batch, stage, parameters_, memory.data(plan.activations[stage]),
                    memory.data(plan.activations[stage + 1]),
                    memory.data(plan.activation_gradients[stage + 1]),
                    memory.data(plan.activation_gradients[stage]), absl::MakeSpan(gradients_));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int32_t tensor = tensors[i];
    if (gradients_[i] == nullptr) continue;
    float* buffer = memory.data(BufferOf(uses, placement_.gradient_set[tensor]));
    const std::vector<float>& workspace = gradient_workspace_[i];
    if (sums_uses(tensor) && !sums[tensor].empty()) {
      std::vector<float>& sum = sums[tensor];
      if (again(tensor)) {
        for (size_t element = 0; element < sum.size(); ++element)
          sum[element] += workspace[element];
      }
      if (stage == first_use_[tensor]) WriteBack(tensor, buffer, sum, /*add=*/true);
    } else if (gradients_[i] == workspace.data()) {
      WriteBack(tensor, buffer, workspace, accumulates(tensor) || again(tensor));
    }
    written[tensor] = now;
  }
}

void StageRunner::WriteBack(int32_t tensor, float* buffer, const std::vector<float>& workspace,
                            bool add) {
  for (const Piece& piece : gradient_pieces_[tensor]) {
    float* to = buffer + piece.offset;
    const float* from = workspace.data() + piece.first;
    if (add) {
      for (int64_t i = 0; i < piece.count; ++i) to[i] += from[i];
    } else {
      std::copy_n(from, piece.count, to);
    }
  }
}

}  // namespace shardproof
