// What roll calls keep and what they make of it, whichever way answers travel.
#ifndef COLLECTIVES_ROLL_CALL_ANSWERS_H_
#define COLLECTIVES_ROLL_CALL_ANSWERS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// How far back a roll call remembers. A rank is ahead of another by what its host enqueues before
// it waits: a step's collectives.
inline constexpr int64_t kAnswersKept = 1024;

struct Answer {
  int64_t position = -1;
  CollectiveCall call;
};

// One rank's answers in one group, the last kAnswersKept of them.
class AnswerRing {
 public:
  void Add(const Answer& answer);
  // The position of the last, or -1.
  int64_t last_position() const { return last_position_; }
  // Nothing for a position that was not answered yet or was too long ago.
  std::optional<Answer> At(int64_t position) const;

 private:
  int64_t last_position_ = -1;
  std::vector<Answer> answers_;  // grows to kAnswersKept; at position % kAnswersKept
};

// What is known of one member when somebody asks about a position.
struct MemberAnswer {
  bool arrived = false;
  std::optional<CollectiveCall> call;  // there, if it is still known
  std::optional<Answer> last;          // of one that has not arrived: its last answer, if any
  bool gone = false;                   // its process has ended
};

// RollCall::Explain for what `rank` called at `position`, from what is known of each member.
absl::Status ExplainAnswers(Rank rank, const Group& group, int64_t position,
                            const CollectiveCall& called, absl::Span<const MemberAnswer> members);

// The FailedPrecondition of two ranks that called different things.
absl::Status DisagreementAt(const Group& group, int64_t position, Rank a,
                            const CollectiveCall& called_by_a, Rank b,
                            const CollectiveCall& called_by_b);

}  // namespace shardproof

#endif  // COLLECTIVES_ROLL_CALL_ANSWERS_H_
