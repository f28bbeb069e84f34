// JobBoard: what rank 0 knows of its job: values by key, gathers, and whose process is gone. No
// sockets, threads or clocks: job_server.h has those, and decides when to stop asking.
#ifndef COLLECTIVES_LAUNCH_JOB_BOARD_H_
#define COLLECTIVES_LAUNCH_JOB_BOARD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// "rank 3", "ranks 1, 2, 5"; the first few of many and how many more.
std::string RanksText(absl::Span<const Rank> ranks);

class JobBoard {
 public:
  explicit JobBoard(WorldSize world_size) : world_size_(world_size) {}

  void Set(absl::string_view key, absl::string_view value);
  // The value now, or null. Valid until the next Set.
  const std::string* Find(absl::string_view key) const;

  void MarkGone(Rank rank);
  std::vector<Rank> gone() const;

  // The value; or Unavailable if nobody is left to set it: `who_sets_it` is exactly "rank N" and
  // that one is gone, or all but `asker` are; or nothing: go on waiting.
  std::optional<absl::StatusOr<std::string>> TryAwait(Rank asker, absl::string_view key,
                                                      absl::string_view who_sets_it) const;
  // What a waiter is told that has waited for `timeout`.
  absl::Status AwaitTimedOut(absl::string_view key, absl::string_view who_sets_it,
                             absl::Duration timeout) const;

  // What `rank` gives to gather `sequence`, from 0. False if that gather has ended.
  bool Give(Rank rank, int64_t sequence, std::string bytes);
  // The gather that rank 0 collects: the first that has not ended.
  int64_t sequence() const { return sequence_; }
  // What all gave, by rank; or Unavailable that names the gone ranks that did not give; or
  // nothing: go on waiting. A gather that has a result has ended.
  std::optional<absl::StatusOr<std::vector<std::string>>> TryGather();
  // Ends the gather without a result; DeadlineExceeded that names who did not give.
  absl::Status GatherTimedOut(absl::Duration timeout);

 private:
  using Given = std::map<int32_t, std::string>;

  std::vector<Rank> NotGiven() const;
  void EndGather();

  const WorldSize world_size_;
  std::map<std::string, std::string, std::less<>> values_;
  std::set<int32_t> gone_;
  int64_t sequence_ = 0;
  std::map<int64_t, Given> gathers_;  // sequence_ and later
};

}  // namespace shardproof

#endif  // COLLECTIVES_LAUNCH_JOB_BOARD_H_
