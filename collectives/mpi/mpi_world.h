// MpiWorld: one rank a process, the processes started by OpenMPI's mpirun.
//
//   SHARDPROOF_ASSIGN_OR_RETURN(auto world, MpiWorld::Create(MpiOptions{}));
//   const Rank self = world->local_ranks()[0];
//   SHARDPROOF_ASSIGN_OR_RETURN(Communicator* all,
//                               world->communicator(self, Group{0, 1, world->size().value}));
//
// Order: members add in rank order, ((g0 + g1) + g2) + ..., each partial sum rounded to the
// dtype: the same bits as SimulatedWorld gives. Dtypes: float32 and float64.
//
// Agreement: Start tells every other member, in one message of 56 bytes, what this rank calls.
// Data moves once all members' calls are known and agree, so a disagreement moves none, and who
// is missing is known exactly. A disagreement is FailedPrecondition on every member, in the same
// words, for everything it does in that group afterwards; what was called before is completed
// first. Other groups are not affected.
//
// Progress is made by Start, Poll and Wait of any of the world's communicators, for all
// collectives at once; a rank that computes for long delays the others' collectives. Poll makes
// progress and returns. Wait gives the processor away while nothing arrives.
//
// Wait ends with DeadlineExceeded after its timeout, and at once where a rank that has not arrived
// has left its world. It names the collective, the ranks that have not arrived or, where all
// have, those whose data is awaited (one that waits itself may be among them). The collective stays
// under way: it may be waited for again.
//
// The end. Destructors of all ranks wait for each other, at most options.timeout, then end MPI. If
// they do not meet, MPI is left as it is: nothing hangs, and mpirun ends the job with an error
// when the process exits. So ranks that have ended their work wait for a rank that has not, and a
// program keeps them together where that may take long. A killed rank makes mpirun kill the
// others and name it. A stopped rank is found by a timeout; the program then calls Abort, which
// nothing here does by itself. Buffers of collectives under way must outlive the world.
//
// Bounds: everything. MPI's own start and end wait for every process of the job, also one that has
// ended or is stopped, and return nothing else: when options.timeout is over a watchdog says so in
// one line and ends this process with exit status 2, upon which mpirun ends the job (watchdog.h).
// Rank 0 does so first, rank 1 after 2 s and the others after 4 s, so that in general one speaks.
//
// Threads: one at a time (MPI_THREAD_SERIALIZED).
#ifndef COLLECTIVES_MPI_MPI_WORLD_H_
#define COLLECTIVES_MPI_MPI_WORLD_H_

#include <mpi.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/mpi/mpi_ranks.h"
#include "collectives/mpi/mpi_requests.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

class MpiWorld final : public MpiRanks {
 public:
  // FailedPrecondition if no mpirun has started this process, or MPI was started in it before.
  // InvalidArgument for options out of their range. DeadlineExceeded if MPI starts and the other
  // ranks do not come; where MPI does not start, see Bounds.
  static absl::StatusOr<std::unique_ptr<MpiWorld>> Create(const MpiOptions& options);
  ~MpiWorld() override;
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  WorldSize size() const override { return size_; }
  std::vector<Rank> local_ranks() const override { return {rank_}; }
  absl::StatusOr<Communicator*> communicator(Rank rank, Group group) override;
  std::string DescribePending() const override;
  absl::Duration patience() const override { return options_.timeout; }
  void Abort(const absl::Status& why, int exit_code) override;

 private:
  class Comm;

  // What one rank tells the others; its fields are of one width so that none is padding.
  struct Notice {
    int64_t leaves = 0;  // 1: the sender starts nothing more, and the rest is without meaning
    int64_t message_bytes = 0;  // the sender's option
    int64_t elements = 0;
    int32_t first = 0, stride = 0, count = 0;  // the group
    int32_t kind = 0, dtype = 0, root = 0, label = 0;
    int32_t tag = 0;
  };
  struct SentNotice {
    SentNotice(MPI_Comm comm, const Notice& notice)
        : notice(notice), requests(comm, sizeof(Notice)) {}
    const Notice notice;
    MpiRequests requests;
  };
  struct GroupEntry {
    std::unique_ptr<MpiGroup> group;
    std::unique_ptr<Comm> communicator;
  };

  MpiWorld(const MpiOptions& options, MPI_Comm comm, Rank rank, WorldSize size);
  GroupEntry& Entry(const Group& group);
  absl::StatusOr<int64_t> Start(MpiGroup& group, const CollectiveCall& call);
  absl::Status Send(const Notice& notice, const Group& to);
  absl::Status Progress();
  absl::Status ProgressOrFail();
  absl::Status ReceiveNotices();
  absl::Status Take(const Notice& notice, Rank sender);
  // Those of `ranks` that have left their world.
  std::vector<Rank> Left(const std::vector<Rank>& ranks) const;
  bool Leave();

  const MpiOptions options_;
  const MPI_Comm comm_;
  const Rank rank_;
  const WorldSize size_;
  int32_t next_tag_;
  int32_t last_tag_;
  std::vector<GroupEntry> groups_;  // in order of first use, here or elsewhere
  std::list<SentNotice> sent_;      // on their way
  Notice incoming_;
  MPI_Request receiving_ = MPI_REQUEST_NULL;  // into incoming_
  std::vector<bool> left_;                    // [rank]
  absl::Status failure_;                      // of MPI, or options that differ: no way on
};

}  // namespace shardproof

#endif  // COLLECTIVES_MPI_MPI_WORLD_H_
