#include "trainer/engines/provenance_stages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

const SetUse* UseOf(absl::Span<const SetUse> uses, int32_t set) {
  for (const SetUse& use : uses) {
    if (use.set == set && use.buffer >= 0) return &use;
  }
  return nullptr;
}

// Frozen stages that begin the model may share an operation with others: no gradient flows down
// there.
bool GradientReaches(const StepPlan& plan, int32_t stage) {
  const auto has = [&](const std::vector<int32_t>& boundaries) {
    const size_t boundary = static_cast<size_t>(stage) + 1;
    return boundary < boundaries.size() && boundaries[boundary] >= 0;
  };
  return !has(plan.activations) || has(plan.activation_gradients);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageOrigins>> StageOrigins::Create(const RunDescription& run,
                                                                   const Placement& placement,
                                                                   OriginArithmetic* arithmetic,
                                                                   StepOrigins* origins) {
  auto stages =
      std::unique_ptr<StageOrigins>(new StageOrigins(run, placement, arithmetic, origins));
  SHARDPROOF_RETURN_IF_ERROR(
      stages->FindPieces(placement.parameter_set, stages->parameter_pieces_));
  SHARDPROOF_RETURN_IF_ERROR(stages->FindPieces(placement.gradient_set, stages->gradient_pieces_));
  return stages;
}

StageOrigins::StageOrigins(const RunDescription& run, const Placement& placement,
                           OriginArithmetic* arithmetic, StepOrigins* origins)
    : run_(run),
      placement_(placement),
      arithmetic_(arithmetic),
      origins_(origins),
      used_twice_(run.model.tensors.size(), false),
      first_use_(run.model.tensors.size(), -1) {
  for (const TensorSpec& tensor : run.model.tensors) elements_.push_back(Elements(tensor));
  for (size_t stage = 0; stage < run.model.stages.size(); ++stage) {
    for (int32_t tensor : run.model.stages[stage].tensors) {
      used_twice_[tensor] = first_use_[tensor] >= 0;
      if (!used_twice_[tensor]) first_use_[tensor] = static_cast<int32_t>(stage);
    }
  }
  written_in_.assign(run.sharding.world_size.value, std::vector<int64_t>(elements_.size(), 0));
  terms_of_uses_.assign(run.sharding.world_size.value, std::vector<int32_t>(elements_.size(), 0));
}

absl::Status StageOrigins::FindPieces(const std::vector<int32_t>& set_of_tensor,
                                      std::vector<std::vector<Piece>>& pieces) const {
  pieces.resize(elements_.size());
  for (size_t index = 0; index < placement_.sets.size(); ++index) {
    const FlatLayout& layout = placement_.sets[index].layout;
    for (const Segment& segment : layout.segments) {
      if (segment.tensor < 0) continue;
      const int64_t offset = layout.offset(segment);
      const bool lies = static_cast<size_t>(segment.tensor) < elements_.size() &&
                        segment.first >= 0 && segment.count >= 0 && offset >= 0 &&
                        segment.first + segment.count <= elements_[segment.tensor] &&
                        offset + segment.count <= layout.padded_elements();
      if (!lies) {
        return absl::InvalidArgumentError(absl::StrCat(
            "set ", index, " places elements [", segment.first, ", ", segment.first + segment.count,
            ") of tensor ", segment.tensor, " at ", offset,
            "; accepted: elements of a tensor, within the set's ", layout.padded_elements()));
      }
      if (set_of_tensor[segment.tensor] != static_cast<int32_t>(index)) continue;
      AppendPiece({segment.first, segment.count, offset}, pieces[segment.tensor]);
    }
  }
  return absl::OkStatus();
}

void StageOrigins::Forward(const OriginOp& at) {
  for (int32_t stage = at.op->stage; stage < at.op->stage + at.op->stage_count; ++stage) {
    RecordReads(at, stage, OriginUse::kForwardParameter);
  }
}

void StageOrigins::Backward(const OriginOp& at) {
  for (int32_t stage = at.op->stage + at.op->stage_count - 1; stage >= at.op->stage; --stage) {
    if (!GradientReaches(*at.plan, stage)) break;
    RecordReads(at, stage, OriginUse::kBackwardParameter);
    for (int32_t tensor : run_.model.stages[stage].tensors) BackwardTensor(at, stage, tensor);
  }
}

void StageOrigins::RecordReads(const OriginOp& at, int32_t stage, OriginUse use) {
  for (int32_t tensor : run_.model.stages[stage].tensors) {
    if (elements_[tensor] == 0) continue;
    const SetUse* found = UseOf(at.plan->ParameterUsesOf(*at.op), placement_.parameter_set[tensor]);
    if (found == nullptr) continue;  // CheckPlan accepts no such plan
    OriginRecord record;
    record.use = use;
    record.rank = at.rank.value;
    record.event = at.index;
    record.buffer = found->buffer;
    record.tensor = tensor;
    record.range = {0, elements_[tensor]};
    record.first_run = static_cast<uint32_t>(origins_->runs.size());
    ReadTensor((*at.buffers)[found->buffer], tensor, found->buffer, at.rank);
    record.run_count = static_cast<uint32_t>(origins_->runs.size()) - record.first_run;
    origins_->records.push_back(record);
  }
}

// Appends the tensor's runs. Elements without a place are those of a workspace that nobody
// filled.
void StageOrigins::ReadTensor(const OriginBuffer& buffer, int32_t tensor, int32_t buffer_index,
                              Rank rank) {
  const std::vector<Piece>& pieces = parameter_pieces_[tensor];
  const size_t begin = origins_->runs.size();
  if (pieces.size() == 1 && pieces[0].first == 0 && pieces[0].count == elements_[tensor]) {
    buffer.Read({pieces[0].offset, pieces[0].count}, begin, origins_->runs);
    return;
  }
  Origin unfilled;
  unfilled.rank = rank.value;
  unfilled.buffer = buffer_index;
  OriginBuffer workspace(elements_[tensor], unfilled);
  std::vector<OriginRun> piece_runs;
  for (const Piece& piece : pieces) {
    piece_runs.clear();
    buffer.Read({piece.offset, piece.count}, 0, piece_runs);
    workspace.Write(piece.first, piece_runs);
  }
  workspace.Read({0, elements_[tensor]}, begin, origins_->runs);
}

void StageOrigins::BackwardTensor(const OriginOp& at, int32_t stage, int32_t tensor) {
  const int32_t set = placement_.gradient_set[tensor];
  const SetUse* found = set < 0 ? nullptr : UseOf(at.plan->GradientUsesOf(*at.op), set);
  if (found == nullptr || elements_[tensor] == 0) return;
  const int32_t micro_batch = at.op->micro_batch;
  const int64_t now = at.step * run_.data.num_micro_batches + micro_batch + 1;
  int64_t& written = written_in_[at.rank.value][tensor];
  const bool again = written == now;
  written = now;
  int32_t terms = arithmetic_->NoTerms();
  if (IsUsed(run_, tensor, at.step, at.rank, micro_batch)) {
    OriginTerm term;
    term.step = at.step;
    term.rank = at.rank.value;
    term.micro_batch = micro_batch;
    term.stage = stage;
    terms = arithmetic_->OneTerm(term);
  }
  // A micro-batch's uses of a tensor add first, and their sum to the micro-batches before. Edited
  // plans may add to a sum that the first use did not begin: -1.
  int32_t& sum = terms_of_uses_[at.rank.value][tensor];
  if (!again) sum = -1;
  if (!found->accumulate || !used_twice_[tensor] || (again && sum < 0)) {
    WriteBack(at, tensor, found->buffer, terms, /*add=*/found->accumulate || again);
    return;
  }
  sum = again ? arithmetic_->SumOfTerms(sum, terms) : terms;
  if (stage == first_use_[tensor]) WriteBack(at, tensor, found->buffer, sum, /*add=*/true);
}

void StageOrigins::WriteBack(const OriginOp& at, int32_t tensor, int32_t buffer, int32_t terms,
                             bool add) {
  OriginBuffer& target = (*at.buffers)[buffer];
  for (const Piece& piece : gradient_pieces_[tensor]) {
    Origin origin;
    origin.kind = OriginKind::kGradient;
    origin.tensor = tensor;
    origin.element = piece.first;
    origin.terms = terms;
    const std::vector<OriginRun> contribution = {{piece.count, origin}};
    if (!add) {
      target.Write(piece.offset, contribution);
      continue;
    }
    std::vector<OriginRun> before;
    target.Read({piece.offset, piece.count}, 0, before);
    target.Write(piece.offset, arithmetic_->Sum(before, contribution));
  }
}

}  // namespace shardproof
