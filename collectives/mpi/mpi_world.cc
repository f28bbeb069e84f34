#include "collectives/mpi/mpi_world.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/collective_calls.h"
#include "collectives/communicator.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/mpi/mpi_ranks.h"
#include "collectives/mpi/mpi_requests.h"
#include "collectives/mpi/mpi_status.h"
#include "collectives/mpi/watchdog.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr int kNoticeTag = 0;
constexpr int32_t kFirstTransferTag = 1;

// Polls that a wait makes before it gives the processor away, and before it sleeps: an answer from
// another core comes within the first, one from a rank that shares this core within the second.
constexpr int64_t kEagerPolls = 100;
constexpr int64_t kYieldingPolls = 1000;
constexpr std::chrono::microseconds kSleep(50);

// A wait for something that only polling shows.
class Patience {
 public:
  explicit Patience(absl::Duration timeout)
      : timeout_(timeout), begin_(std::chrono::steady_clock::now()) {}

  bool ended() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - begin_) >= timeout_;
  }

  void Pause() {
    ++polls_;
    if (polls_ <= kEagerPolls) return;
    if (polls_ <= kYieldingPolls) return std::this_thread::yield();
    std::this_thread::sleep_for(kSleep);
  }

 private:
  const absl::Duration timeout_;
  const std::chrono::steady_clock::time_point begin_;
  int64_t polls_ = 0;
};

absl::Status ValidateOptions(const MpiOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a timeout of ", absl::FormatDuration(options.timeout), ": it must be positive"));
  }
  if (options.message_bytes < 8 || options.message_bytes % 8 != 0 ||
      options.message_bytes > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages of ", options.message_bytes,
                     " bytes: it must be a positive multiple of 8 below 2^31"));
  }
  return absl::OkStatus();
}

// Without mpirun OpenMPI would start daemons of its own, or end the process.
absl::Status CheckMayStart() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    return absl::FailedPreconditionError(
        "OMPI_COMM_WORLD_SIZE is not set: ranks of MPI are started by OpenMPI's mpirun, as in "
        "mpirun -np 4 PROGRAM");
  }
  int started = 0;
  SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Initialized(&started));
  if (started) {
    return absl::FailedPreconditionError("MPI was started in this process before; it can be once");
  }
  return absl::OkStatus();
}

// A watchdog on a call of MPI's that waits for every process of the job. Rank 1 waits longer than
// rank 0, and the others longer than both: mpirun takes a second to end those that have not spoken.
class CallLimit {
 public:
  CallLimit(absl::string_view call, int32_t rank, absl::Duration timeout)
      : watchdog_(absl::StrCat("rank ", rank, " waited ", absl::FormatDuration(timeout), " in ",
                               call, " for all processes of the job: one has not come, is stopped ",
                               "or has ended"),
                  timeout + std::min(rank, kRanksInTurn) * kTurn) {}

 private:
  static constexpr int32_t kRanksInTurn = 2;
  static constexpr absl::Duration kTurn = absl::Seconds(2);

  Watchdog watchdog_;
};

// Before MPI can say so.
int32_t RankFromMpirun() {
  const char* const text = std::getenv("OMPI_COMM_WORLD_RANK");
  int32_t rank = 0;
  return text != nullptr && absl::SimpleAtoi(text, &rank) && rank >= 0 ? rank : 0;
}

absl::Status StartMpi(absl::Duration timeout) {
  int provided = MPI_THREAD_SINGLE;
  {
    const CallLimit limit("MPI_Init_thread", RankFromMpirun(), timeout);
    SHARDPROOF_RETURN_IF_MPI_ERROR(
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    return absl::FailedPreconditionError(absl::StrCat("this MPI has thread level ", provided,
                                                      ", needed is MPI_THREAD_SERIALIZED, ",
                                                      MPI_THREAD_SERIALIZED));
  }
  SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  return absl::OkStatus();
}

// A communicator of our own: no message of anyone else's is taken for ours.
absl::StatusOr<MPI_Comm> MeetAllRanks(absl::Duration timeout) {
  MPI_Comm comm;
  MPI_Request request;
  SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request));
  Patience patience(timeout);
  for (int met = 0; !met; patience.Pause()) {
    SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Test(&request, &met, MPI_STATUS_IGNORE));
    if (met || !patience.ended()) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("not all ranks of MPI came within ", absl::FormatDuration(timeout)));
  }
  SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  return comm;
}

}  // namespace

class MpiWorld::Comm final : public Communicator {
 public:
  // The world owns the group and this.
  Comm(MpiWorld* world, MpiGroup* group) : world_(world), group_(group) {}

  Rank rank() const override { return world_->rank_; }
  Group group() const override { return group_->group(); }
  bool adds_in_rank_order() const override { return true; }
  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override;
  absl::StatusOr<bool> Poll(CollectiveHandle handle) override;
  absl::Status Wait(CollectiveHandle handle, absl::Duration timeout) override;

 private:
  absl::Status Late(CollectiveHandle handle, absl::Duration timeout) const;

  MpiWorld* const world_;
  MpiGroup* const group_;
};

absl::StatusOr<CollectiveHandle> MpiWorld::Comm::Start(const CollectiveCall& call) {
  SHARDPROOF_RETURN_IF_ERROR(world_->ProgressOrFail());
  if (!group_->failure().ok()) return group_->failure();
  SHARDPROOF_RETURN_IF_ERROR(ValidateCall(group(), rank(), call, "MPI's world"));
  SHARDPROOF_ASSIGN_OR_RETURN(const int64_t position, world_->Start(*group_, call));
  if (!group_->failure().ok()) return group_->failure();
  return CollectiveHandle{position};
}

absl::StatusOr<bool> MpiWorld::Comm::Poll(CollectiveHandle handle) {
  SHARDPROOF_RETURN_IF_ERROR(world_->ProgressOrFail());
  if (!group_->failure().ok()) return group_->failure();
  const int64_t called = group_->called(group_->member());
  if (handle.id < 0 || handle.id >= called) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle ", handle.id, " on rank ", rank().value, ", which has started ",
                     called, " calls on the group of ", DescribeRanks(group())));
  }
  return group_->done(handle.id);
}

absl::Status MpiWorld::Comm::Wait(CollectiveHandle handle, absl::Duration timeout) {
  for (Patience patience(timeout);; patience.Pause()) {
    // Before the poll: what arrived until the end counts.
    const bool ended = patience.ended();
    SHARDPROOF_ASSIGN_OR_RETURN(const bool done, Poll(handle));
    if (done) return absl::OkStatus();
    if (ended || !world_->Left(group_->NotArrived(handle.id)).empty()) return Late(handle, timeout);
  }
}

absl::Status MpiWorld::Comm::Late(CollectiveHandle handle, absl::Duration timeout) const {
  const std::vector<Rank> missing = group_->NotArrived(handle.id);
  const std::vector<Rank> left = world_->Left(missing);
  std::string text =
      absl::StrCat("rank ", rank().value, " waits for ", DescribeCall(group_->call(handle.id)),
                   ", position ", handle.id, " of the group of ", DescribeRanks(group()));
  if (!missing.empty()) {
    absl::StrAppend(&text, "; not arrived: ", DescribeRanks(missing));
  } else {
    absl::StrAppend(&text, "; all have arrived, data awaited of ",
                    DescribeRanks(group_->Awaited(handle.id)));
  }
  if (!left.empty()) {
    absl::StrAppend(&text, "; ", DescribeRanks(left), left.size() == 1 ? " has" : " have",
                    " left the job");
  } else {
    absl::StrAppend(&text, "; waited ", absl::FormatDuration(timeout));
  }
  return absl::DeadlineExceededError(text);
}

absl::StatusOr<std::unique_ptr<MpiWorld>> MpiWorld::Create(const MpiOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(ValidateOptions(options));
  SHARDPROOF_RETURN_IF_ERROR(CheckMayStart());
  SHARDPROOF_RETURN_IF_ERROR(StartMpi(options.timeout));
  SHARDPROOF_ASSIGN_OR_RETURN(const MPI_Comm comm, MeetAllRanks(options.timeout));
  int rank = 0, size = 0, has_bound = 0;
  int* tag_bound = nullptr;
  SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Comm_rank(comm, &rank));
  SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Comm_size(comm, &size));
  SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Comm_get_attr(comm, MPI_TAG_UB, &tag_bound, &has_bound));
  std::unique_ptr<MpiWorld> world(new MpiWorld(options, comm, Rank{rank}, WorldSize{size}));
  // 32767 is what MPI promises at least.
  world->last_tag_ = (has_bound ? *tag_bound : 32767) - 1;
  SHARDPROOF_RETURN_IF_ERROR(world->ProgressOrFail());
  return world;
}

MpiWorld::MpiWorld(const MpiOptions& options, MPI_Comm comm, Rank rank, WorldSize size)
    : options_(options),
      comm_(comm),
      rank_(rank),
      size_(size),
      next_tag_(kFirstTransferTag),
      last_tag_(kFirstTransferTag),
      left_(size.value) {}

MpiWorld::~MpiWorld() {
  if (!Leave()) return;
  MPI_Cancel(&receiving_);
  MPI_Wait(&receiving_, MPI_STATUS_IGNORE);
  const CallLimit limit("MPI_Finalize", rank_.value, options_.timeout);
  MPI_Finalize();
}

// Whether all ranks have come to their end, and with them everything this one sent.
bool MpiWorld::Leave() {
  left_[rank_.value] = true;
  Notice notice;
  notice.leaves = 1;
  if (!failure_.ok() || !Send(notice, Group{0, 1, size_.value}).ok()) return false;
  for (Patience patience(options_.timeout);; patience.Pause()) {
    const bool ended = patience.ended();
    if (!ProgressOrFail().ok()) return false;
    const bool moves = std::any_of(groups_.begin(), groups_.end(),
                                   [](const auto& entry) { return entry.group->moves(); });
    const bool all_left = std::all_of(left_.begin(), left_.end(), [](bool left) { return left; });
    if (all_left && sent_.empty() && !moves) return true;
    if (ended) return false;
  }
}

absl::StatusOr<Communicator*> MpiWorld::communicator(Rank rank, Group group) {
  SHARDPROOF_RETURN_IF_ERROR(ValidateMembership(size_, rank, group));
  if (rank != rank_) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.value, " is not in this process, which is rank ", rank_.value));
  }
  return Entry(group).communicator.get();
}

MpiWorld::GroupEntry& MpiWorld::Entry(const Group& group) {
  for (GroupEntry& entry : groups_) {
    if (entry.group->group() == group) return entry;
  }
  const int32_t member = (rank_.value - group.first) / group.stride;
  auto mpi_group = std::make_unique<MpiGroup>(comm_, options_.message_bytes, group, member);
  auto communicator = std::make_unique<Comm>(this, mpi_group.get());
  groups_.push_back({std::move(mpi_group), std::move(communicator)});
  return groups_.back();
}

absl::StatusOr<int64_t> MpiWorld::Start(MpiGroup& group, const CollectiveCall& call) {
  const int64_t position = group.called(group.member());
  const int32_t tag = next_tag_;
  // Two tags a collective. Where they begin anew, what had them has long ended.
  next_tag_ = next_tag_ + 3 > last_tag_ ? kFirstTransferTag : next_tag_ + 2;
  Notice notice;
  notice.message_bytes = options_.message_bytes;
  notice.elements = call.elements;
  notice.first = group.group().first;
  notice.stride = group.group().stride;
  notice.count = group.group().count;
  notice.kind = static_cast<int32_t>(call.kind);
  notice.dtype = static_cast<int32_t>(call.dtype);
  notice.root = call.root.value;
  notice.label = call.label;
  notice.tag = tag;
  failure_ = Send(notice, group.group());
  SHARDPROOF_RETURN_IF_ERROR(failure_);
  group.Arrive(group.member(), call, tag);
  SHARDPROOF_RETURN_IF_ERROR(ProgressOrFail());
  return position;
}

absl::Status MpiWorld::Send(const Notice& notice, const Group& to) {
  SentNotice& sent = sent_.emplace_back(comm_, notice);
  for (int32_t member = 0; member < to.count; ++member) {
    if (to.member(member) == rank_) continue;
    SHARDPROOF_RETURN_IF_ERROR(
        sent.requests.Send(&sent.notice, sizeof(Notice), to.member(member), kNoticeTag));
  }
  return absl::OkStatus();
}

// An error here leaves messages in a state nobody knows: the whole world fails.
absl::Status MpiWorld::ProgressOrFail() {
  if (failure_.ok()) failure_ = Progress();
  return failure_;
}

absl::Status MpiWorld::Progress() {
  SHARDPROOF_RETURN_IF_ERROR(ReceiveNotices());
  for (auto sent = sent_.begin(); sent != sent_.end();) {
    SHARDPROOF_ASSIGN_OR_RETURN(const bool ended, sent->requests.Test());
    sent = ended ? sent_.erase(sent) : std::next(sent);
  }
  for (GroupEntry& entry : groups_) SHARDPROOF_RETURN_IF_ERROR(entry.group->Advance());
  return absl::OkStatus();
}

absl::Status MpiWorld::ReceiveNotices() {
  while (true) {
    if (receiving_ == MPI_REQUEST_NULL) {
      SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Irecv(&incoming_, sizeof(Notice), MPI_BYTE, MPI_ANY_SOURCE,
                                               kNoticeTag, comm_, &receiving_));
    }
    int received = 0;
    MPI_Status status;
    SHARDPROOF_RETURN_IF_MPI_ERROR(MPI_Test(&receiving_, &received, &status));
    if (!received) return absl::OkStatus();
    SHARDPROOF_RETURN_IF_ERROR(Take(incoming_, Rank{status.MPI_SOURCE}));
  }
}

absl::Status MpiWorld::Take(const Notice& notice, Rank sender) {
  if (notice.leaves) {
    left_[sender.value] = true;
    return absl::OkStatus();
  }
  // Each side cuts a buffer for itself.
  if (notice.message_bytes != options_.message_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", sender.value, " sends messages of ", notice.message_bytes, " bytes, rank ",
        rank_.value, " of ", options_.message_bytes, ": MpiOptions must be equal on all ranks"));
  }
  CollectiveCall call;
  call.kind = static_cast<CollectiveKind>(notice.kind);
  call.dtype = static_cast<Dtype>(notice.dtype);
  call.elements = notice.elements;
  call.root = Rank{notice.root};
  call.label = notice.label;
  const Group group{notice.first, notice.stride, notice.count};
  const int32_t member = (sender.value - group.first) / group.stride;
  Entry(group).group->Arrive(member, call, notice.tag);
  return absl::OkStatus();
}

std::vector<Rank> MpiWorld::Left(const std::vector<Rank>& ranks) const {
  std::vector<Rank> left;
  for (const Rank rank : ranks) {
    if (left_[rank.value]) left.push_back(rank);
  }
  return left;
}

std::string MpiWorld::DescribePending() const {
  std::string text;
  for (const GroupEntry& entry : groups_) entry.group->DescribePending(text);
  if (text.empty()) return "nothing is pending";
  text.pop_back();  // The last line's end.
  return text;
}

void MpiWorld::Abort(const absl::Status& why, int exit_code) {
  std::fprintf(stderr, "rank %d ends the job: %s\n", rank_.value,
               std::string(why.message()).c_str());
  std::fflush(nullptr);
  // mpirun passes on what a process prints a moment later, and may lose what comes with its end.
  absl::SleepFor(absl::Milliseconds(500));
  MPI_Abort(MPI_COMM_WORLD, exit_code);
}

absl::StatusOr<std::unique_ptr<MpiRanks>> CreateMpiRanks(const MpiOptions& options) {
  return MpiWorld::Create(options);
}

}  // namespace shardproof
