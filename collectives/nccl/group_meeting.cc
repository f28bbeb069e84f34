#include "collectives/nccl/group_meeting.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/collective_calls.h"
#include "collectives/launch/job.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// So long a wait for one rank may hide that another's process has ended.
constexpr absl::Duration kSlice = absl::Seconds(1);

absl::Status Late(Rank rank, const Group& group, absl::Duration timeout,
                  const std::vector<Rank>& missing) {
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", rank.value, " waited ", absl::FormatDuration(timeout), " to connect the group of ",
      DescribeRanks(group), "; not arrived: ", DescribeRanks(missing)));
}

class MeetingInProcess final : public GroupMeeting {
 public:
  absl::StatusOr<std::string> Meet(Rank rank, const Group& group, absl::string_view bytes,
                                   absl::Duration timeout) override {
    std::unique_lock<std::mutex> lock(mutex_);
    Attendance& attendance = AttendanceOf(group);
    const int32_t member = (rank.value - group.first) / group.stride;
    const int64_t meeting = attendance.came[member]++;
    if (member == 0) attendance.bytes[meeting] = std::string(bytes);
    changed_.notify_all();
    const auto bounded = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
    const bool met = changed_.wait_for(
        lock, bounded, [&] { return !aborted_.ok() || Missing(attendance, meeting).empty(); });
    if (!aborted_.ok()) return aborted_;
    if (!met) return Late(rank, group, timeout, Missing(attendance, meeting));
    // Whoever has met here is past all meetings before it.
    attendance.bytes.erase(attendance.bytes.begin(), attendance.bytes.find(meeting));
    return attendance.bytes[meeting];
  }

  void Abort(absl::Status why) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_.ok()) aborted_ = std::move(why);
    changed_.notify_all();
  }

 private:
  struct Attendance {
    Group group;
    std::vector<int64_t> came;             // [member], how often
    std::map<int64_t, std::string> bytes;  // of the first member, by meeting
  };

  Attendance& AttendanceOf(const Group& group) {
    for (const auto& known : attendances_) {
      if (known->group == group) return *known;
    }
    attendances_.push_back(
        std::make_unique<Attendance>(Attendance{group, std::vector<int64_t>(group.count), {}}));
    return *attendances_.back();
  }

  static std::vector<Rank> Missing(const Attendance& attendance, int64_t meeting) {
    std::vector<Rank> missing;
    for (int32_t member = 0; member < attendance.group.count; ++member) {
      if (attendance.came[member] <= meeting) missing.push_back(attendance.group.member(member));
    }
    return missing;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Attendance>> attendances_;
  absl::Status aborted_;
};

class MeetingOverJob final : public GroupMeeting {
 public:
  explicit MeetingOverJob(Job& job) : job_(job) {}

  absl::StatusOr<std::string> Meet(Rank rank, const Group& group, absl::string_view bytes,
                                   absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    int64_t meeting = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!aborted_.ok()) return aborted_;
      meeting = came_[group]++;
    }
    SHARDPROOF_RETURN_IF_ERROR(job_.Set(Key(group, meeting, rank), bytes));
    std::string brought(bytes);
    for (int32_t member = 0; member < group.count; ++member) {
      if (group.member(member) == rank) continue;
      auto theirs = AwaitMember(group, meeting, group.member(member), deadline);
      if (absl::IsDeadlineExceeded(theirs.status())) {
        SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<Rank> missing, Missing(group, meeting));
        // The last may have come between the two questions: it was late all the same.
        return Late(rank, group, timeout,
                    missing.empty() ? std::vector<Rank>{group.member(member)} : missing);
      }
      if (!theirs.ok()) return theirs.status();
      if (member == 0) brought = *std::move(theirs);
    }
    return brought;
  }

  void Abort(absl::Status why) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_.ok()) aborted_ = std::move(why);
  }

 private:
  static std::string Key(const Group& group, int64_t meeting, Rank rank) {
    return absl::StrCat("nccl/", group.first, "+", group.stride, "x", group.count, "/", meeting,
                        "/", rank.value);
  }

  absl::StatusOr<std::string> AwaitMember(const Group& group, int64_t meeting, Rank member,
                                          absl::Time deadline) {
    while (true) {
      const absl::Duration left = deadline - absl::Now();
      auto value = job_.Await(Key(group, meeting, member), absl::StrCat("rank ", member.value),
                              std::min(std::max(left, absl::ZeroDuration()), kSlice));
      if (!absl::IsDeadlineExceeded(value.status()) || left <= kSlice) return value;
      SHARDPROOF_RETURN_IF_ERROR(CheckPresence(group, meeting));
    }
  }

  absl::Status CheckPresence(const Group& group, int64_t meeting) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!aborted_.ok()) return aborted_;
    }
    SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<Rank> missing, Missing(group, meeting));
    SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<Rank> gone, job_.GoneRanks());
    std::vector<Rank> never;
    for (const Rank rank : missing) {
      if (std::find(gone.begin(), gone.end(), rank) != gone.end()) never.push_back(rank);
    }
    if (never.empty()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot connect the group of ", DescribeRanks(group),
                                               "; gone: ", DescribeRanks(never)));
  }

  absl::StatusOr<std::vector<Rank>> Missing(const Group& group, int64_t meeting) {
    std::vector<Rank> missing;
    for (int32_t member = 0; member < group.count; ++member) {
      const Rank rank = group.member(member);
      SHARDPROOF_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                                  job_.Get(Key(group, meeting, rank)));
      if (!value.has_value()) missing.push_back(rank);
    }
    return missing;
  }

  Job& job_;
  std::mutex mutex_;
  std::map<Group, int64_t> came_;
  absl::Status aborted_;
};

}  // namespace

std::unique_ptr<GroupMeeting> MakeGroupMeetingInProcess() {
  return std::make_unique<MeetingInProcess>();
}

std::unique_ptr<GroupMeeting> MakeGroupMeetingOverJob(Job& job) {
  return std::make_unique<MeetingOverJob>(job);
}

}  // namespace shardproof
