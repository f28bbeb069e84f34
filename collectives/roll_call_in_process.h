// A RollCall of ranks that are all in this process.
#ifndef COLLECTIVES_ROLL_CALL_IN_PROCESS_H_
#define COLLECTIVES_ROLL_CALL_IN_PROCESS_H_

#include <memory>

#include "collectives/roll_call.h"

namespace shardproof {

// It knows every answer, so Disagreement does as soon as the second of two members has answered.
std::unique_ptr<RollCall> MakeRollCallInProcess();

}  // namespace shardproof

#endif  // COLLECTIVES_ROLL_CALL_IN_PROCESS_H_
