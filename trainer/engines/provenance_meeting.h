// Collectives on origins, and what is said of ranks that do not meet in one.
#ifndef TRAINER_ENGINES_PROVENANCE_MEETING_H_
#define TRAINER_ENGINES_PROVENANCE_MEETING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "trainer/engines/provenance_arithmetic.h"
#include "trainer/engines/provenance_memory.h"
#include "trainer/plan/step_plan.h"

namespace shardproof {

// One member's end of a collective. CheckPlan has accepted its plan.
struct Participant {
  Rank rank;
  int32_t index = 0;  // of the operation in the rank's plan
  const Op* op = nullptr;
  std::vector<OriginBuffer>* buffers = nullptr;
};

// "all_reduce of 12 float32 elements over ranks 0, 1 (operation 5)".
std::string CollectiveText(const Op& op, int32_t index);

// The members of one group, in its order, have all arrived. FailedPrecondition names the ranks
// that called another collective than the first member did; InvalidArgument a call that no group
// of this size can serve.
absl::Status Meet(absl::Span<const Participant> members, OriginArithmetic& arithmetic);

// What one rank stands at when nobody can go on. `op` is null when it has ended its step.
struct Standing {
  Rank rank;
  int32_t index = 0;
  const Op* op = nullptr;
  int32_t never_ends = -1;  // it waits for this operation, which is not issued before it
};

// Why nobody can go on: FailedPrecondition if two ranks expect each other in different groups,
// else DeadlineExceeded; with where each rank stands.
absl::Status StuckError(int64_t step, absl::Span<const Standing> ranks);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PROVENANCE_MEETING_H_
