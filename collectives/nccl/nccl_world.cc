#include "collectives/nccl/nccl_world.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/launch/job.h"
#include "collectives/nccl/group_meeting.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/nccl_connection.h"
#include "collectives/nccl/nccl_status.h"
#include "collectives/nccl/requirements.h"
#include "collectives/roll_call.h"
#include "collectives/roll_call_in_process.h"
#include "collectives/roll_call_over_job.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

// A rank of this process, its GPU, and its connections in order of first use.
struct LocalRank {
  Rank rank;
  int device;
  std::vector<std::unique_ptr<NcclConnection>> connections;
};

class NcclWorld final : public DeviceWorld {
 public:
  NcclWorld(WorldSize size, std::vector<LocalRank> local_ranks,
            std::unique_ptr<GroupMeeting> meeting, std::unique_ptr<RollCall> roll_call)
      : size_(size),
        local_ranks_(std::move(local_ranks)),
        meeting_(std::move(meeting)),
        roll_call_(std::move(roll_call)) {}

  ~NcclWorld() override {
    AllAtOnce([](std::unique_ptr<NcclConnection>& connection) { connection.reset(); });
  }

  WorldSize size() const override { return size_; }

  std::vector<Rank> local_ranks() const override {
    std::vector<Rank> ranks;
    for (const LocalRank& local : local_ranks_) ranks.push_back(local.rank);
    return ranks;
  }

  int device(Rank rank) const override {
    const LocalRank* const local = Find(rank);
    return local == nullptr ? -1 : local->device;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Connect(Rank rank, Group group, DeviceStream stream,
                                                        absl::Duration timeout) override;

  void Abort(absl::Status why) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.ok()) return;
    aborted_ = std::move(why);
    meeting_->Abort(aborted_);
    AllAtOnce([&](std::unique_ptr<NcclConnection>& connection) { connection->Abort(aborted_); });
  }

 private:
  // `end` waits, in NCCL, for the same of other connections.
  void AllAtOnce(const std::function<void(std::unique_ptr<NcclConnection>&)>& end) {
    std::vector<std::thread> threads;
    for (LocalRank& local : local_ranks_) {
      for (auto& connection : local.connections) {
        threads.emplace_back([&end, &connection] { end(connection); });
      }
    }
    for (std::thread& thread : threads) thread.join();
  }

  const LocalRank* Find(Rank rank) const {
    const auto found = std::find_if(local_ranks_.begin(), local_ranks_.end(),
                                    [&](const LocalRank& local) { return local.rank == rank; });
    return found == local_ranks_.end() ? nullptr : &*found;
  }

  absl::StatusOr<NcclConnection*> ConnectionOf(LocalRank& local, const Group& group,
                                               absl::Duration timeout);
  NcclConnection* FindConnection(const LocalRank& local, const Group& group);
  absl::StatusOr<NcclConnection*> AddConnection(LocalRank& local, const Group& group);
  void DropConnection(LocalRank& local, const NcclConnection* connection);

  const WorldSize size_;
  std::mutex mutex_;
  absl::Status aborted_;
  std::vector<LocalRank> local_ranks_;
  std::unique_ptr<GroupMeeting> meeting_;
  std::unique_ptr<RollCall> roll_call_;
};

// The bytes that the first member brings to a meeting: an id where it has no connection yet.
absl::StatusOr<std::string> NewId() {
  ncclUniqueId id;
  SHARDPROOF_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId"));
  return std::string(id.internal, sizeof(id.internal));
}

absl::StatusOr<ncclUniqueId> IdOf(Rank rank, const Group& group, absl::string_view bytes) {
  ncclUniqueId id;
  if (bytes.size() != sizeof(id.internal)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank.value, " is not connected with the group of ",
                     DescribeRanks(group), ", but rank ", group.first, " is, from before: it gave ",
                     bytes.size(), " bytes for an id"));
  }
  std::memcpy(id.internal, bytes.data(), sizeof(id.internal));
  return id;
}

NcclConnection* NcclWorld::FindConnection(const LocalRank& local, const Group& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& connection : local.connections) {
    if (connection->group() == group) return connection.get();
  }
  return nullptr;
}

// Before NCCL connects it, so that Abort also reaches a rank that waits for that.
absl::StatusOr<NcclConnection*> NcclWorld::AddConnection(LocalRank& local, const Group& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_.ok()) return aborted_;
  local.connections.push_back(std::make_unique<NcclConnection>(local.rank, group, local.device));
  return local.connections.back().get();
}

void NcclWorld::DropConnection(LocalRank& local, const NcclConnection* connection) {
  std::unique_ptr<NcclConnection> dropped;  // ends without the lock: NCCL may wait for others there
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(local.connections.begin(), local.connections.end(),
                                  [&](const auto& each) { return each.get() == connection; });
  if (found == local.connections.end()) return;
  dropped = std::move(*found);
  local.connections.erase(found);
}

// All members meet, those that are connected too: Connect returns when all have come.
absl::StatusOr<NcclConnection*> NcclWorld::ConnectionOf(LocalRank& local, const Group& group,
                                                        absl::Duration timeout) {
  NcclConnection* const known = FindConnection(local, group);
  if (group.count == 1) {
    return known != nullptr ? known : AddConnection(local, group);
  }
  const absl::Time deadline = absl::Now() + timeout;
  std::string bytes;
  if (known == nullptr && local.rank == group.member(0)) {
    SHARDPROOF_ASSIGN_OR_RETURN(bytes, NewId());
  }
  SHARDPROOF_ASSIGN_OR_RETURN(bytes, meeting_->Meet(local.rank, group, bytes, timeout));
  if (known != nullptr) return known;
  SHARDPROOF_ASSIGN_OR_RETURN(const ncclUniqueId id, IdOf(local.rank, group, bytes));
  SHARDPROOF_ASSIGN_OR_RETURN(NcclConnection* const connection, AddConnection(local, group));
  const absl::Status connected = connection->Connect(id, deadline - absl::Now());
  if (connected.ok()) return connection;
  DropConnection(local, connection);
  return connected;
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclWorld::Connect(Rank rank, Group group,
                                                                 DeviceStream stream,
                                                                 absl::Duration timeout) {
  SHARDPROOF_RETURN_IF_ERROR(ValidateMembership(size_, rank, group));
  LocalRank* const local = const_cast<LocalRank*>(Find(rank));
  if (local == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank.value, " is not in this process: ", DescribeRanks(local_ranks())));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.ok()) return aborted_;
  }
  SHARDPROOF_ASSIGN_OR_RETURN(NcclConnection* const connection,
                              ConnectionOf(*local, group, timeout));
  return std::make_unique<NcclCommunicator>(
      NcclCommunicator::Options{rank, group, local->device, stream, timeout}, connection,
      roll_call_.get());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWorld>> MakeNcclWorld(WorldSize size) {
  if (size.value < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a world of ", size.value, " ranks: there must be at least one"));
  }
  SHARDPROOF_RETURN_IF_ERROR(CheckGpuRequirements(size.value));
  std::vector<LocalRank> ranks(size.value);
  for (int32_t rank = 0; rank < size.value; ++rank) {
    ranks[rank].rank = Rank{rank};
    ranks[rank].device = rank;
  }
  return std::make_unique<NcclWorld>(size, std::move(ranks), MakeGroupMeetingInProcess(),
                                     MakeRollCallInProcess());
}

absl::StatusOr<std::unique_ptr<DeviceWorld>> MakeNcclWorld(Job& job, int device) {
  if (device < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("GPU ", device, " of rank ", job.rank().value, ": ordinals start at 0"));
  }
  SHARDPROOF_RETURN_IF_ERROR(CheckRequirementsOfGpu(device));
  std::vector<LocalRank> ranks(1);
  ranks[0].rank = job.rank();
  ranks[0].device = device;
  return std::make_unique<NcclWorld>(job.world_size(), std::move(ranks),
                                     MakeGroupMeetingOverJob(job), MakeRollCallOverJob(job));
}

}  // namespace shardproof
