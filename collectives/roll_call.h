// RollCall: which collective each rank has issued last, told outside the collectives themselves, so
// that a hang can be explained: who is missing, and who called something else.
//
// A rank answers before it issues a collective. Cheap: at most one small message, never a wait.
#ifndef COLLECTIVES_ROLL_CALL_H_
#define COLLECTIVES_ROLL_CALL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

class RollCall {
 public:
  virtual ~RollCall() = default;

  // `rank` is about to issue `call`, its `position`th of the group, from 0. Any thread.
  virtual void Answer(Rank rank, Group group, int64_t position, const CollectiveCall& call) = 0;

  // FailedPrecondition that names them once two members are known to have called different things
  // at one position of the group. Asks nobody: OK means that this process does not know of any.
  virtual absl::Status Disagreement(Group group) = 0;

  // Why the collective at `position` that `rank` called has not ended, as far as answers tell:
  //   FailedPrecondition  members called different things there: who called what
  //   DeadlineExceeded    members have not arrived: who, and what each did last; or all have
  //                       arrived, which is said too
  // Never OK.
  virtual absl::Status Explain(Rank rank, Group group, int64_t position) = 0;
};

}  // namespace shardproof

#endif  // COLLECTIVES_ROLL_CALL_H_
