#include "collectives/mpi/mpi_group.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/mpi/mpi_transfer.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// DescribePending is for one message: the first positions tell the story.
constexpr size_t kPositionsDescribed = 8;

}  // namespace

void MpiGroup::Arrive(int32_t member, const CollectiveCall& call, int32_t tag) {
  const size_t index = called_[member]++ - first_;
  if (index == meetings_.size()) {
    meetings_.emplace_back();
    meetings_.back().calls.resize(group_.count);
    meetings_.back().tags.resize(group_.count);
  }
  Meeting& meeting = meetings_[index];
  meeting.calls[member] = call;
  meeting.tags[member] = tag;
  ++meeting.arrived;
}

absl::Status MpiGroup::Advance() {
  if (!failure_.ok()) return absl::OkStatus();
  bool earlier_done = true;
  for (size_t index = 0; index < meetings_.size(); ++index) {
    Meeting& meeting = meetings_[index];
    if (meeting.done) continue;
    if (meeting.arrived < group_.count) break;
    if (meeting.transfer == nullptr) {
      // Members may still need this one's part of what was called, and agreed on, before.
      const absl::Status agreement = CheckAgreement(group_, first_ + index, meeting.calls);
      if (!agreement.ok()) {
        if (earlier_done) failure_ = agreement;
        break;
      }
    }
    SHARDPROOF_RETURN_IF_ERROR(Advance(meeting));
    earlier_done = earlier_done && meeting.done;
  }
  for (; !meetings_.empty() && meetings_.front().done; ++first_) meetings_.pop_front();
  return absl::OkStatus();
}

absl::Status MpiGroup::Advance(Meeting& meeting) {
  const CollectiveCall& call = meeting.calls[member_];
  if (call.kind == CollectiveKind::kBarrier || call.elements == 0) {
    meeting.done = true;
    return absl::OkStatus();
  }
  if (meeting.transfer == nullptr) {
    meeting.transfer = std::make_unique<MpiTransfer>(comm_, message_bytes_, group_, member_, call,
                                                     std::move(meeting.tags));
  }
  SHARDPROOF_ASSIGN_OR_RETURN(meeting.done, meeting.transfer->Advance());
  if (meeting.done) meeting.transfer.reset();
  return absl::OkStatus();
}

std::vector<Rank> MpiGroup::NotArrived(int64_t position) const {
  std::vector<Rank> missing;
  for (int32_t member = 0; member < group_.count; ++member) {
    if (called_[member] <= position) missing.push_back(group_.member(member));
  }
  return missing;
}

std::vector<Rank> MpiGroup::Awaited(int64_t position) const {
  const auto& transfer = meetings_[position - first_].transfer;
  return transfer == nullptr ? std::vector<Rank>{} : transfer->Awaited();
}

bool MpiGroup::moves() const {
  return std::any_of(meetings_.begin(), meetings_.end(),
                     [](const Meeting& meeting) { return meeting.transfer != nullptr; });
}

void MpiGroup::DescribePending(std::string& text) const {
  if (!failure_.ok()) {
    absl::StrAppend(&text, failure_.message(), "\n");
    return;
  }
  for (size_t index = 0; index < std::min(meetings_.size(), kPositionsDescribed); ++index) {
    if (meetings_[index].done) continue;
    const int64_t position = first_ + index;
    std::vector<std::pair<Rank, CollectiveCall>> arrived;
    for (int32_t member = 0; member < group_.count; ++member) {
      if (called_[member] <= position) continue;
      arrived.emplace_back(group_.member(member), meetings_[index].calls[member]);
    }
    absl::StrAppend(&text, DescribeArrivals(group_, position, arrived, NotArrived(position)));
    const std::vector<Rank> awaited = Awaited(position);
    if (!awaited.empty()) absl::StrAppend(&text, ", data awaited of ", DescribeRanks(awaited));
    absl::StrAppend(&text, "\n");
  }
  if (meetings_.size() > kPositionsDescribed) {
    absl::StrAppend(&text, "group of ", DescribeRanks(group_), ": and ",
                    meetings_.size() - kPositionsDescribed, " later positions\n");
  }
}

}  // namespace shardproof
