#include "collectives/roll_call_over_job.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/launch/job.h"
#include "collectives/roll_call_answers.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// How many positions before the one that is asked about are looked at for a rank's last answer.
constexpr int64_t kLookBack = 64;

std::string Key(Rank rank, const Group& group, int64_t position) {
  return absl::StrCat("roll_call/", group.first, "+", group.stride, "x", group.count, "/",
                      rank.value, "/", position % kAnswersKept);
}

std::string Encode(int64_t position, const CollectiveCall& call) {
  return absl::StrCat(position, " ", static_cast<int>(call.kind), " ", static_cast<int>(call.dtype),
                      " ", call.elements, " ", call.root.value, " ", call.label);
}

absl::StatusOr<Answer> Decode(absl::string_view key, absl::string_view value) {
  const std::vector<absl::string_view> words = absl::StrSplit(value, ' ');
  Answer answer;
  int32_t kind = 0, dtype = 0;
  const bool read = words.size() == 6 && absl::SimpleAtoi(words[0], &answer.position) &&
                    absl::SimpleAtoi(words[1], &kind) && absl::SimpleAtoi(words[2], &dtype) &&
                    absl::SimpleAtoi(words[3], &answer.call.elements) &&
                    absl::SimpleAtoi(words[4], &answer.call.root.value) &&
                    absl::SimpleAtoi(words[5], &answer.call.label);
  if (!read || kind < 0 || kind > static_cast<int>(CollectiveKind::kBarrier) || dtype < 0 ||
      dtype > static_cast<int>(Dtype::kFloat64)) {
    return absl::InternalError(absl::StrCat("the job's value of ", key, " is '", value,
                                            "', which is not a roll call's answer"));
  }
  answer.call.kind = static_cast<CollectiveKind>(kind);
  answer.call.dtype = static_cast<Dtype>(dtype);
  return answer;
}

class RollCallOverJob final : public RollCall {
 public:
  explicit RollCallOverJob(Job& job) : job_(job) {}

  void Answer(Rank rank, Group group, int64_t position, const CollectiveCall& call) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      own_[group].Add({position, call});
    }
    // A job that fails is reported by whoever needs it; a rank that trains does not yet.
    static_cast<void>(job_.Set(Key(rank, group, position), Encode(position, call)));
  }

  absl::Status Disagreement(Group group) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = disagreements_.find(group);
    return found == disagreements_.end() ? absl::OkStatus() : found->second;
  }

  absl::Status Explain(Rank rank, Group group, int64_t position) override {
    SHARDPROOF_RETURN_IF_ERROR(Disagreement(group));
    const CollectiveCall called = OwnCall(group, position);
    auto members = ReadMembers(rank, group, position);
    // Without the job there is still something to say: what this rank waits for.
    if (!members.ok()) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", rank.value, " waits for ", DescribeCall(called), ", position ",
                       position, " of the group of ", DescribeRanks(group),
                       "; who has not arrived cannot be asked: ", members.status().message()));
    }
    absl::Status why = ExplainAnswers(rank, group, position, called, *members);
    if (absl::IsFailedPrecondition(why)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      disagreements_.emplace(group, why);
    }
    return why;
  }

 private:
  CollectiveCall OwnCall(const Group& group, int64_t position) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto answer = own_[group].At(position);
    return answer.has_value() ? answer->call : CollectiveCall();
  }

  absl::StatusOr<std::optional<shardproof::Answer>> Read(Rank rank, const Group& group,
                                                         int64_t position) {
    const std::string key = Key(rank, group, position);
    SHARDPROOF_ASSIGN_OR_RETURN(const std::optional<std::string> value, job_.Get(key));
    if (!value.has_value()) return std::optional<shardproof::Answer>();
    SHARDPROOF_ASSIGN_OR_RETURN(shardproof::Answer answer, Decode(key, *value));
    return std::optional<shardproof::Answer>(answer);
  }

  absl::StatusOr<MemberAnswer> ReadMember(Rank other, const Group& group, int64_t position) {
    MemberAnswer member;
    for (int64_t at = position; at >= 0 && at > position - kLookBack; --at) {
      SHARDPROOF_ASSIGN_OR_RETURN(const auto answer, Read(other, group, at));
      if (!answer.has_value() || answer->position < at) continue;
      // A later answer in the slot: this one was given too.
      if (at == position) member.arrived = true;
      if (at == position && answer->position == at) member.call = answer->call;
      if (!member.arrived) member.last = *answer;
      break;
    }
    return member;
  }

  absl::StatusOr<std::vector<MemberAnswer>> ReadMembers(Rank rank, const Group& group,
                                                        int64_t position) {
    std::vector<MemberAnswer> members(group.count);
    SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<Rank> gone, job_.GoneRanks());
    for (int32_t member = 0; member < group.count; ++member) {
      const Rank other = group.member(member);
      if (other == rank) {
        members[member].arrived = true;
        continue;
      }
      SHARDPROOF_ASSIGN_OR_RETURN(members[member], ReadMember(other, group, position));
      members[member].gone = std::find(gone.begin(), gone.end(), other) != gone.end();
    }
    return members;
  }

  Job& job_;
  std::mutex mutex_;
  std::map<Group, AnswerRing> own_;
  std::map<Group, absl::Status> disagreements_;
};

}  // namespace

std::unique_ptr<RollCall> MakeRollCallOverJob(Job& job) {
  return std::make_unique<RollCallOverJob>(job);
}

}  // namespace shardproof
