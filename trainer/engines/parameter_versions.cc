#include "trainer/engines/parameter_versions.h"

#include <algorithm>

namespace shardproof {
namespace {

bool HoldsParameters(const BufferSpec& spec) {
  return spec.role == BufferRole::kParameter || spec.role == BufferRole::kUnshardedParameter;
}

}  // namespace

ParameterVersions::ParameterVersions(const StepPlan& plan, const Placement& placement)
    : parts_(plan.buffers.size()) {
  for (size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
    const BufferSpec& spec = plan.buffers[buffer];
    if (spec.set < 0 || !HoldsParameters(spec)) continue;
    const TensorSet& set = placement.sets[spec.set];
    const int32_t version = spec.role == BufferRole::kParameter ? 0 : -1;
    if (set.owner >= 0) {
      for (const Segment& segment : set.layout.segments) {
        const int64_t first = set.layout.offset(segment);
        parts_[buffer].push_back({first, first + segment.count, version});
      }
    } else {
      const int64_t shard = std::max<int64_t>(set.layout.shard_elements, 1);
      for (int64_t first = 0; first < spec.elements; first += shard) {
        parts_[buffer].push_back({first, first + shard, version});
      }
    }
  }
}

int32_t ParameterVersions::Of(int32_t buffer, ElementRange range) const {
  if (buffer < 0) return -1;
  int32_t least = -1;
  for (const Part& part : parts_[buffer]) {
    if (part.first >= range.end() || part.end <= range.first) continue;
    if (part.version < 0) return -1;
    least = least < 0 ? part.version : std::min(least, part.version);
  }
  return least;
}

void ParameterVersions::Set(int32_t buffer, ElementRange range, int32_t version) {
  if (buffer < 0) return;
  for (Part& part : parts_[buffer]) {
    if (part.first >= range.first && part.first < range.end()) part.version = version;
  }
}

void ParameterVersions::Forget(int32_t buffer) {
  for (Part& part : parts_[buffer]) part.version = -1;
}

void ParameterVersions::BeginStep(const StepPlan& plan, RankEvents& events) {
  for (GroupCalls& calls : groups_) calls.sent.clear();
  place_in_group_.assign(plan.ops.size(), -1);
  for (Access& access : events.accesses) access.version = -1;
}

void ParameterVersions::BeforeOp(const StepPlan& plan, const Op& op, RankEvents& events) const {
  for (int32_t i = op.first_access; i < op.first_access + op.access_count; ++i) {
    Access& access = events.accesses[i];
    if (access.kind != AccessKind::kRead || !HoldsParameters(plan.buffers[access.buffer])) continue;
    access.version = Of(access.buffer, access.range);
  }
}

void ParameterVersions::AfterOp(const StepPlan& plan, const Op& op, RankEvents& events) {
  for (int32_t i = op.first_access; i < op.first_access + op.access_count; ++i) {
    Access& access = events.accesses[i];
    if (access.kind == AccessKind::kFree) Forget(access.buffer);
    if (access.kind != AccessKind::kWrite || !HoldsParameters(plan.buffers[access.buffer])) {
      continue;
    }
    access.version = Of(access.buffer, access.range);
  }
}

void ParameterVersions::Send(const Op& op, int32_t index) {
  auto calls = std::find_if(groups_.begin(), groups_.end(),
                            [&](const GroupCalls& made) { return made.group == op.group; });
  if (calls == groups_.end()) calls = groups_.insert(groups_.end(), {op.group, {}});
  place_in_group_[index] = static_cast<int32_t>(calls->sent.size());
  calls->sent.push_back(Of(op.send.buffer, op.send.range));
}

const ParameterVersions::GroupCalls* ParameterVersions::CallsOf(Group group) const {
  for (const GroupCalls& calls : groups_) {
    if (calls.group == group) return &calls;
  }
  return nullptr;
}

// The version with which this rank sent its `place`th call of the group; -1: it made none.
int32_t ParameterVersions::Sent(Group group, int32_t place) const {
  const GroupCalls* const calls = CallsOf(group);
  const size_t at = static_cast<size_t>(place);
  return calls != nullptr && at < calls->sent.size() ? calls->sent[at] : -1;
}

bool ParameterVersions::AllHaveSent(const Op& op, int32_t index,
                                    absl::Span<const ParameterVersions* const> ranks) const {
  const size_t calls_needed = static_cast<size_t>(place_in_group_[index]) + 1;
  for (int32_t member = 0; member < op.group.count; ++member) {
    const GroupCalls* const calls = ranks[op.group.member(member).value]->CallsOf(op.group);
    if (calls == nullptr || calls->sent.size() < calls_needed) return false;
  }
  return true;
}

void ParameterVersions::Receive(const Op& op, int32_t index,
                                absl::Span<const ParameterVersions* const> ranks) {
  const auto sent_by = [&](Rank member) {
    const ParameterVersions* const sender = ranks[member.value];
    return sender == nullptr ? -1 : sender->Sent(op.group, place_in_group_[index]);
  };
  if (op.collective == CollectiveKind::kAllGather) {
    const int64_t shard = op.elements / op.group.count;
    for (int32_t member = 0; member < op.group.count; ++member) {
      Set(op.recv.buffer, {op.recv.range.first + member * shard, shard},
          sent_by(op.group.member(member)));
    }
  } else if (op.collective == CollectiveKind::kBroadcast) {
    Set(op.recv.buffer, op.recv.range, sent_by(Rank{op.root}));
  }
}

void ParameterVersions::Copy(const Op& op) {
  Set(op.recv.buffer, op.recv.range, Of(op.send.buffer, op.send.range));
}

void ParameterVersions::Update(const RunDescription& run, const Placement& placement,
                               const StepPlan& plan, const Op& op, int64_t data_step,
                               int32_t version) {
  for (const UpdateRange& update : plan.UpdatesOf(op)) {
    Set(update.parameter.buffer, update.parameter.range, version);
  }
  if (op.set < 0) {
    AgeUnused(run, placement, plan, data_step, version);
    return;
  }
  // A shard that is cut inside a part, or all padding, is up to date too, and so is one whose
  // tensors nobody used.
  const TensorSet& set = placement.sets[op.set];
  const int64_t shard = set.layout.shard_elements;
  const int64_t own = set.parameter == Keeps::kWhole ? ShardOf(set, plan.rank) * shard : 0;
  Set(plan.homes[op.set].parameter, {own, shard}, version);
}

// An owner's tensors that nobody used in this step carry it all the same.
void ParameterVersions::AgeUnused(const RunDescription& run, const Placement& placement,
                                  const StepPlan& plan, int64_t data_step, int32_t version) {
  if (run.usage.empty()) return;
  for (size_t index = 0; index < placement.sets.size(); ++index) {
    const TensorSet& set = placement.sets[index];
    if (set.owner != plan.rank.value) continue;
    for (const Segment& segment : set.layout.segments) {
      if (segment.tensor < 0 || IsUsedInStep(run, segment.tensor, data_step)) continue;
      Set(plan.homes[index].parameter, {set.layout.offset(segment), segment.count}, version);
    }
  }
}

}  // namespace shardproof
