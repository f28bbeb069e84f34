// Agreement: whether the processes of a job go on together, or all end with one cause.
//
// Each process may fail where the others do not, and would then leave them waiting. So they meet
// after what can fail, and all go on or all have the same error.
#ifndef TRAINER_ENGINES_AGREEMENT_H_
#define TRAINER_ENGINES_AGREEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/launch/job.h"

namespace shardproof {

class Agreement {
 public:
  using Pieces = absl::Span<const absl::string_view>;

  // `job` outlives it. `timeout`: how long a rank waits for the others where all is well, and so
  // how far they may be apart.
  Agreement(Job& job, absl::Duration timeout) : job_(job), timeout_(timeout) {}

  // Collective, as the next: all ranks call the same in the same order. OK on every rank if every
  // rank gave OK; else on every rank the cause, and IsKnownToAll of it. The cause is the error of
  // the lowest rank with one that is not about others (a rank that waited in vain knows less than
  // the one that did not come), or else of the lowest rank. A rank that gave an error does not
  // wait long for others: where they do not answer it has its own back, which only it knows.
  absl::Status Conclude(const absl::Status& mine);

  // The same, with bytes of a rank that gives OK, which lie in pieces, one behind the other: on
  // rank 0 those of all ranks, by rank; on others nothing. Nothing is copied (Job::GatherPieces);
  // rank 0 may give what it got back for the next time (Job::Reuse).
  absl::StatusOr<std::vector<std::string>> Gather(const absl::Status& mine, Pieces pieces);

  Job& job() { return job_; }
  absl::Duration timeout() const { return timeout_; }

 private:
  absl::StatusOr<std::vector<std::string>> Give(const absl::Status& mine, Pieces pieces,
                                                absl::Duration timeout);
  absl::StatusOr<std::vector<std::string>> Lead(const absl::Status& mine, Pieces pieces,
                                                const std::string& key);
  absl::Status Follow(const absl::Status& mine, Pieces pieces, const std::string& key);

  Job& job_;
  const absl::Duration timeout_;
  int64_t meetings_ = 0;
};

// Whether an error came out of an agreement: rank 0 has it too, and will tell it.
bool IsKnownToAll(const absl::Status& status);

}  // namespace shardproof

#endif  // TRAINER_ENGINES_AGREEMENT_H_
