// For tests: a job whose ranks are threads of this process.
#ifndef TRAINER_ENGINES_THREAD_JOBS_H_
#define TRAINER_ENGINES_THREAD_JOBS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/launch/job.h"

namespace shardproof {

// What the jobs of one launch share.
struct ThreadBoard {
  explicit ThreadBoard(int32_t ranks) : ranks(ranks), gathers_of(static_cast<size_t>(ranks), 0) {}

  // Waits until done() is true, which is asked under the lock; false: `timeout` has passed.
  template <typename Done>
  bool Wait(std::unique_lock<std::mutex>& lock, absl::Duration timeout, Done done) {
    return changed.wait_for(lock, absl::ToChronoMilliseconds(timeout), done);
  }

  const int32_t ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::vector<int64_t> gathers_of;                            // by rank, so far
  std::map<int64_t, std::map<int32_t, std::string>> gathers;  // by number, then by rank
};

class ThreadJob : public Job {
 public:
  ThreadJob(ThreadBoard& board, int32_t rank) : board_(board), rank_(rank) {}
  Rank rank() const override { return Rank{rank_}; }
  WorldSize world_size() const override { return WorldSize{board_.ranks}; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    const std::lock_guard<std::mutex> lock(board_.mutex);
    board_.values[std::string(key)] = std::string(value);
    board_.changed.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override {
    const std::lock_guard<std::mutex> lock(board_.mutex);
    const auto found = board_.values.find(std::string(key));
    if (found == board_.values.end()) return std::nullopt;
    return found->second;
  }
  absl::StatusOr<std::string> Await(absl::string_view key, absl::string_view who_sets_it,
                                    absl::Duration timeout) override {
    std::unique_lock<std::mutex> lock(board_.mutex);
    const std::string text(key);
    if (!board_.Wait(lock, timeout, [&] { return board_.values.count(text) > 0; })) {
      return absl::DeadlineExceededError(absl::StrCat(who_sets_it, " did not set ", key));
    }
    return board_.values[text];
  }
  absl::StatusOr<std::vector<std::string>> Gather(std::string bytes,
                                                  absl::Duration timeout) override {
    std::unique_lock<std::mutex> lock(board_.mutex);
    const int64_t number = board_.gathers_of[rank_]++;
    std::map<int32_t, std::string>& given = board_.gathers[number];
    given[rank_] = std::move(bytes);
    board_.changed.notify_all();
    std::vector<std::string> all;
    if (rank_ != 0) return all;
    const size_t ranks = static_cast<size_t>(board_.ranks);
    const bool whole = board_.Wait(lock, timeout, [&] { return given.size() == ranks; });
    for (int32_t rank = 0; rank < board_.ranks; ++rank) {
      if (!whole && given.count(rank) == 0) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", rank, " did not give"));
      }
      all.push_back(given[rank]);
    }
    return all;
  }
  absl::StatusOr<std::vector<Rank>> GoneRanks() override { return std::vector<Rank>(); }

 private:
  ThreadBoard& board_;
  const int32_t rank_;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_THREAD_JOBS_H_
