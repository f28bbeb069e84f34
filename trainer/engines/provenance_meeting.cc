#include "trainer/engines/provenance_meeting.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

std::string RanksText(const Group& group) {
  std::string text = group.count == 1 ? "rank " : "ranks ";
  for (int32_t member = 0; member < group.count; ++member) {
    absl::StrAppend(&text, member > 0 ? ", " : "", group.member(member).value);
  }
  return text;
}

bool HasRoot(const Op& op) { return op.collective == CollectiveKind::kBroadcast; }

bool Agree(const Op& a, const Op& b) {
  return a.collective == b.collective && a.elements == b.elements && a.dtype == b.dtype &&
         a.group == b.group && (!HasRoot(a) || a.root == b.root);
}

absl::Status CheckCall(const Participant& member) {
  const Op& op = *member.op;
  const bool divides = op.collective == CollectiveKind::kAllGather ||
                       op.collective == CollectiveKind::kReduceScatter;
  if (divides && op.elements % op.group.count != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", member.rank.value, ": ", CollectiveText(op, member.index),
                     "; accepted: a multiple of the ", op.group.count, " ranks"));
  }
  if (HasRoot(op) && !op.group.Contains(Rank{op.root})) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", member.rank.value, ": ",
                                                   CollectiveText(op, member.index),
                                                   "; accepted: a root of the group"));
  }
  return absl::OkStatus();
}

std::vector<OriginRun> ReadRuns(const Participant& member, const BufferRange& from, int64_t count) {
  std::vector<OriginRun> runs;
  (*member.buffers)[from.buffer].Read({from.range.first, count}, 0, runs);
  return runs;
}

void WriteRuns(const Participant& member, int64_t offset, absl::Span<const OriginRun> runs) {
  const BufferRange& to = member.op->recv;
  (*member.buffers)[to.buffer].Write(to.range.first + offset, runs);
}

// The elements [first, first + count) of runs.
std::vector<OriginRun> Cut(absl::Span<const OriginRun> runs, int64_t first, int64_t count) {
  std::vector<OriginRun> cut;
  int64_t at = 0;
  for (const OriginRun& run : runs) {
    const int64_t from = std::max(first, at);
    const int64_t to = std::min(first + count, at + run.count);
    if (from < to) AppendRun({to - from, Advanced(run.origin, from - at)}, 0, cut);
    at += run.count;
  }
  return cut;
}

// In the order of the members.
std::vector<OriginRun> SumOfSends(absl::Span<const Participant> members,
                                  OriginArithmetic& arithmetic) {
  const int64_t elements = members[0].op->elements;
  std::vector<OriginRun> sum = ReadRuns(members[0], members[0].op->send, elements);
  for (size_t i = 1; i < members.size(); ++i) {
    sum = arithmetic.Sum(sum, ReadRuns(members[i], members[i].op->send, elements));
  }
  return sum;
}

void AllGather(absl::Span<const Participant> members) {
  const int64_t shard = members[0].op->elements / static_cast<int64_t>(members.size());
  // All are read before any is written: a member may send a part of where it receives.
  std::vector<std::vector<OriginRun>> sent;
  for (const Participant& member : members) {
    sent.push_back(ReadRuns(member, member.op->send, shard));
  }
  for (const Participant& member : members) {
    for (size_t i = 0; i < sent.size(); ++i) {
      WriteRuns(member, static_cast<int64_t>(i) * shard, sent[i]);
    }
  }
}

void ReduceScatter(absl::Span<const Participant> members, OriginArithmetic& arithmetic) {
  const int64_t shard = members[0].op->elements / static_cast<int64_t>(members.size());
  const std::vector<OriginRun> sum = SumOfSends(members, arithmetic);
  for (size_t i = 0; i < members.size(); ++i) {
    WriteRuns(members[i], 0, Cut(sum, static_cast<int64_t>(i) * shard, shard));
  }
}

void Broadcast(absl::Span<const Participant> members) {
  const Op& op = *members[0].op;
  for (const Participant& member : members) {
    if (member.rank.value != op.root) continue;
    const std::vector<OriginRun> sent = ReadRuns(member, member.op->send, op.elements);
    for (const Participant& receiver : members) WriteRuns(receiver, 0, sent);
    return;
  }
}

// Whether each is in the other's group, and the groups differ.
bool ExpectOtherGroups(const Standing& a, const Standing& b) {
  const auto collective = [](const Standing& at) {
    return at.op != nullptr && at.never_ends < 0 && at.op->kind == OpKind::kCollective;
  };
  return collective(a) && collective(b) && !(a.op->group == b.op->group) &&
         a.op->group.Contains(b.rank) && b.op->group.Contains(a.rank);
}

}  // namespace

std::string CollectiveText(const Op& op, int32_t index) {
  std::string text = absl::StrCat(Name(op.collective), " of ", op.elements, " ", Name(op.dtype),
                                  " elements over ", RanksText(op.group));
  if (HasRoot(op)) absl::StrAppend(&text, " from rank ", op.root);
  return absl::StrCat(text, " (operation ", index, ")");
}

absl::Status Meet(absl::Span<const Participant> members, OriginArithmetic& arithmetic) {
  const Participant& first = members[0];
  for (const Participant& member : members) {
    if (Agree(*first.op, *member.op)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("collectives disagree: rank ", first.rank.value, " calls ",
                     CollectiveText(*first.op, first.index), ", rank ", member.rank.value, " ",
                     CollectiveText(*member.op, member.index)));
  }
  SHARDPROOF_RETURN_IF_ERROR(CheckCall(first));
  if (first.op->elements == 0) return absl::OkStatus();
  switch (first.op->collective) {
    case CollectiveKind::kAllReduce: {
      const std::vector<OriginRun> sum = SumOfSends(members, arithmetic);
      for (const Participant& member : members) WriteRuns(member, 0, sum);
      break;
    }
    case CollectiveKind::kAllGather:
      AllGather(members);
      break;
    case CollectiveKind::kReduceScatter:
      ReduceScatter(members, arithmetic);
      break;
    case CollectiveKind::kBroadcast:
      Broadcast(members);
      break;
    case CollectiveKind::kBarrier:
      break;
  }
  return absl::OkStatus();
}

absl::Status StuckError(int64_t step, absl::Span<const Standing> ranks) {
  std::string message = absl::StrCat("deadlock in step ", step, ": ");
  bool disagree = false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Standing& at = ranks[i];
    absl::StrAppend(&message, i > 0 ? "; " : "", "rank ", at.rank.value);
    if (at.op == nullptr) {
      absl::StrAppend(&message, " has ended its step");
    } else if (at.never_ends >= 0) {
      absl::StrAppend(&message, " at operation ", at.index, " waits for operation ", at.never_ends,
                      ", which it does not issue before");
    } else {
      absl::StrAppend(&message, " waits in ", CollectiveText(*at.op, at.index));
    }
    for (size_t j = 0; j < i; ++j) disagree = disagree || ExpectOtherGroups(at, ranks[j]);
  }
  if (disagree) return absl::FailedPreconditionError(message);
  return absl::DeadlineExceededError(message);
}

}  // namespace shardproof
