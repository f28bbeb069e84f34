// A RollCall of ranks in processes of their own, over their Job.
#ifndef COLLECTIVES_ROLL_CALL_OVER_JOB_H_
#define COLLECTIVES_ROLL_CALL_OVER_JOB_H_

#include <memory>

#include "collectives/launch/job.h"
#include "collectives/roll_call.h"

namespace shardproof {

// `job` outlives the result. Answer is one Set of the job, under a key of its own for each of the
// last kAnswersKept positions (roll_call_answers.h). Explain reads the others' answers, and which
// processes are gone. Disagreement is OK until an Explain has found one.
std::unique_ptr<RollCall> MakeRollCallOverJob(Job& job);

}  // namespace shardproof

#endif  // COLLECTIVES_ROLL_CALL_OVER_JOB_H_
