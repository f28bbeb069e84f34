// JobForTest: a Job whose ranks are threads of one process, for tests of what talks over a Job.
#ifndef COLLECTIVES_JOB_FOR_TEST_H_
#define COLLECTIVES_JOB_FOR_TEST_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/job.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {

// What the ranks of one job share. Thread-safe.
class JobBoardForTest {
 public:
  void Set(absl::string_view key, absl::string_view value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[std::string(key)] = std::string(value);
    changed_.notify_all();
  }

  // Nothing if nobody sets it within `timeout`.
  std::optional<std::string> Await(absl::string_view key, absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto found = [&] { return values_.count(std::string(key)) > 0; };
    if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), found)) return std::nullopt;
    return values_[std::string(key)];
  }

  // As if the rank's process had ended.
  void Leave(Rank rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    gone_.push_back(rank);
  }

  std::vector<Rank> gone() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return gone_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::vector<Rank> gone_;
};

class JobForTest final : public Job {
 public:
  // `board` outlives it.
  JobForTest(JobBoardForTest* board, Rank rank, WorldSize size)
      : board_(board), rank_(rank), size_(size) {}

  Rank rank() const override { return rank_; }
  WorldSize world_size() const override { return size_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    board_->Set(key, value);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override {
    return board_->Await(key, absl::ZeroDuration());
  }

  absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who_sets_it,
                                    absl::Duration timeout) override {
    const std::optional<std::string> value = board_->Await(key, timeout);
    if (value.has_value()) return *value;
    return absl::DeadlineExceededError(absl::StrCat(who_sets_it, " has not set ", key));
  }

  absl::StatusOr<std::vector<std::string>> Gather(std::string, absl::Duration) override {
    return absl::UnimplementedError("a job for tests gathers nothing");
  }

  absl::StatusOr<std::vector<Rank>> GoneRanks() override { return board_->gone(); }

 private:
  JobBoardForTest* const board_;
  const Rank rank_;
  const WorldSize size_;
};

}  // namespace shardproof

#endif  // COLLECTIVES_JOB_FOR_TEST_H_
