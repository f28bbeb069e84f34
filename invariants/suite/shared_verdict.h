// SharedVerdicts: the processes of a job judge the same cases and must go on alike. Rank 0 alone
// sees what all ranks did: were the next case a smaller one there and another elsewhere, they would
// wait for each other in vain.
#ifndef INVARIANTS_SUITE_SHARED_VERDICT_H_
#define INVARIANTS_SUITE_SHARED_VERDICT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/launch/job.h"
#include "property_tests/judge_case.h"

namespace shardproof {

class SharedVerdicts {
 public:
  // `job` outlives it. `timeout`: how far the ranks may be apart.
  SharedVerdicts(Job& job, absl::Duration timeout) : job_(job), timeout_(timeout) {}

  // Collective. Every rank gets rank 0's verdict or, where rank 0 passes and another does not, that
  // of the lowest such rank, which its headline then names. An error where the ranks do not meet
  // within the timeout: the job is over then, and so are its cases. A rank whose verdict does not
  // pass waits for some seconds only, long enough for others that have found the same; its error
  // ends in its own headline.
  absl::StatusOr<EngineVerdict> Share(const EngineVerdict& mine);

 private:
  absl::StatusOr<EngineVerdict> Meet(const EngineVerdict& mine, absl::Duration timeout);

  Job& job_;
  const absl::Duration timeout_;
  int64_t cases_ = 0;
};

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_SHARED_VERDICT_H_
