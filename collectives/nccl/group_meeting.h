// GroupMeeting: where the ranks of a group meet before they are connected, to share NCCL's id.
#ifndef COLLECTIVES_NCCL_GROUP_MEETING_H_
#define COLLECTIVES_NCCL_GROUP_MEETING_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/job.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

class GroupMeeting {
 public:
  virtual ~GroupMeeting() = default;

  // Returns when all members have come as often as this one: what the first member brought. The
  // others' `bytes` are not looked at. DeadlineExceeded names the ranks that have not come; the
  // meeting cannot be repeated then. Unavailable, at once, names those whose process is gone.
  virtual absl::StatusOr<std::string> Meet(Rank rank, const Group& group, absl::string_view bytes,
                                           absl::Duration timeout) = 0;

  // Everybody who waits, or comes later, gets `why`.
  virtual void Abort(absl::Status why) = 0;
};

// All ranks are threads of this process.
std::unique_ptr<GroupMeeting> MakeGroupMeetingInProcess();

// One rank a process; `job` outlives the result.
std::unique_ptr<GroupMeeting> MakeGroupMeetingOverJob(Job& job);

}  // namespace shardproof

#endif  // COLLECTIVES_NCCL_GROUP_MEETING_H_
