#include "collectives/roll_call_answers.h"

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// A message is read by a person: the first ranks that are missing tell the story.
constexpr int kMissingDescribed = 8;

std::string DescribeMissing(Rank rank, const MemberAnswer& member) {
  std::string text = absl::StrCat("rank ", rank.value, " (");
  if (member.gone) absl::StrAppend(&text, "its process is gone; ");
  if (!member.last.has_value()) return absl::StrCat(text, "has started nothing)");
  return absl::StrCat(text, "last started ", DescribeCall(member.last->call), ", position ",
                      member.last->position, ")");
}

}  // namespace

void AnswerRing::Add(const Answer& answer) {
  const int64_t slot = answer.position % kAnswersKept;
  if (slot >= static_cast<int64_t>(answers_.size())) answers_.resize(slot + 1);
  answers_[slot] = answer;
  last_position_ = answer.position;
}

std::optional<Answer> AnswerRing::At(int64_t position) const {
  const int64_t slot = position % kAnswersKept;
  if (position < 0 || slot >= static_cast<int64_t>(answers_.size())) return std::nullopt;
  if (answers_[slot].position != position) return std::nullopt;
  return answers_[slot];
}

absl::Status DisagreementAt(const Group& group, int64_t position, Rank a,
                            const CollectiveCall& called_by_a, Rank b,
                            const CollectiveCall& called_by_b) {
  return absl::FailedPreconditionError(
      absl::StrCat("ranks disagree at position ", position, " of the group of ",
                   DescribeRanks(group), ": rank ", a.value, " called ", DescribeCall(called_by_a),
                   ", rank ", b.value, " called ", DescribeCall(called_by_b)));
}

absl::Status ExplainAnswers(Rank rank, const Group& group, int64_t position,
                            const CollectiveCall& called, absl::Span<const MemberAnswer> members) {
  std::string missing;
  int missing_count = 0;
  for (int32_t member = 0; member < group.count; ++member) {
    const MemberAnswer& answer = members[member];
    const Rank other = group.member(member);
    if (answer.call.has_value() && !Agree(called, *answer.call)) {
      return DisagreementAt(group, position, rank, called, other, *answer.call);
    }
    // A rank whose process is gone will not do its part, even if it started it.
    if (answer.arrived && !answer.gone) continue;
    if (++missing_count > kMissingDescribed) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ");
    if (answer.arrived) {
      absl::StrAppend(&missing, "rank ", other.value, " (its process is gone)");
    } else {
      absl::StrAppend(&missing, DescribeMissing(other, answer));
    }
  }
  if (missing_count > kMissingDescribed) {
    absl::StrAppend(&missing, " and ", missing_count - kMissingDescribed, " more");
  }
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", rank.value, " waits for ", DescribeCall(called), ", position ",
                   position, " of the group of ", DescribeRanks(group),
                   missing.empty() ? "; all ranks have started it and it has not ended"
                                   : absl::StrCat("; not arrived: ", missing)));
}

}  // namespace shardproof
