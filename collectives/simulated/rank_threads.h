// RunRanks: ranks written as ordinary blocking code, run one at a time in an order that a
// seed decides.
//
//   absl::Status status = RunRanks(*world, seed, absl::Seconds(10), [&](RankThread& self) {
//     SHARDPROOF_ASSIGN_OR_RETURN(Communicator* group, self.communicator(Group{0, 1, 4}));
//     SHARDPROOF_ASSIGN_OR_RETURN(CollectiveHandle handle, group->Start(call));
//     return group->Wait(handle, absl::Seconds(1));
//   });
//
// Each rank has a thread, but only one runs at any time: it keeps its turn until it calls Wait
// of a communicator of the world, or RankThread::Yield, or returns. Then the scheduler draws the
// next among all ranks that can go on, the same one included. So ranks may share plain
// variables, equal seeds give equal interleavings and equal bits, and a program that depends on
// an order it does not enforce fails for some seed, every time.
//
// A Wait that is done already is a turn's end too. Poll is not: a loop around Poll must Yield.
#ifndef COLLECTIVES_SIMULATED_RANK_THREADS_H_
#define COLLECTIVES_SIMULATED_RANK_THREADS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/simulated/simulated_world.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// One rank's view of the run; valid during its body, on its thread.
class RankThread {
 public:
  virtual ~RankThread() = default;
  virtual Rank rank() const = 0;

  // This rank's end of `group`, owned by the world.
  virtual absl::StatusOr<Communicator*> communicator(Group group) = 0;

  // Lets another rank run, or this one again. An error says that the run is over: return it.
  virtual absl::Status Yield() = 0;
};

// Runs body once for every rank of `world`, each on its own thread, and returns when all have
// returned: OK if all did so with OK.
//
// Otherwise the run has failed and the error below is returned. Every rank that waits, waits
// later or yields gets it as well, at once and whatever it waits for, so that it can return:
//   - A rank returned an error: that error's code, naming the rank. A released rank that
//     passes the run's error on is not another failure.
//   - Deadlock, no rank can go on and some wait: DeadlineExceeded, as soon as it happens. It
//     names what each waits for, who has not arrived, and the ranks that returned already.
//   - `timeout` of wall time passed before all ranks returned: DeadlineExceeded that says what
//     each rank was doing.
//
// The timeout that a body passes to Wait is not measured, wall time must not decide the
// order: Wait lasts until one of the above. With a timeout <= 0 it does not wait at all.
//
// A rank that never ends its turn cannot be stopped: at most `timeout` later than the limit
// RunRanks returns without it, with DeadlineExceeded that names it. What its body refers to, and
// the world, must then outlive its thread, and the world is of no further use: RunRanks refuses
// it with FailedPrecondition.
//
// After any failure calls may be left pending in the world: give the next run a new one.
// InvalidArgument for a timeout that is not positive or longer than a year. FailedPrecondition if
// ranks of this world run already. `body` must not throw.
absl::Status RunRanks(SimulatedWorld& world, uint64_t seed, absl::Duration timeout,
                      const std::function<absl::Status(RankThread&)>& body);

}  // namespace shardproof

#endif  // COLLECTIVES_SIMULATED_RANK_THREADS_H_
