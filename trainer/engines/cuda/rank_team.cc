#include "trainer/engines/cuda/rank_team.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace shardproof {

RankTeam::RankTeam(size_t members, Options options)
    : options_(std::move(options)), busy_(members + 1, false) {
  for (size_t i = 0; i < members; ++i) workers_.push_back(std::make_unique<RankWorker>());
}

absl::Status RankTeam::Cause() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return cause_;
}

void RankTeam::Fail(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!cause_.ok()) return;
  cause_ = why;
  failed_.store(true);
  busy_.back() = true;
  // It may have to wait for something that a member holds, so nobody waits for it without a bound.
  aborter_.Start([this, why] {
    options_.abort(why);
    Ended(busy_.size() - 1);
  });
  changed_.notify_all();
}

void RankTeam::Ended(size_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  busy_[index] = false;
  changed_.notify_all();
}

void RankTeam::StartAll(std::function<void(size_t)> work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::fill_n(busy_.begin(), workers_.size(), true);
  }
  const auto kept = std::make_shared<const std::function<void(size_t)>>(std::move(work));
  for (size_t i = 0; i < workers_.size(); ++i) {
    workers_[i]->Join();  // it has said that its work has ended, and is about to be free
    workers_[i]->Start([this, kept, i] {
      (*kept)(i);
      Ended(i);
    });
  }
}

// Whether all have ended. `until_failed`: a failure ends the wait.
bool RankTeam::AwaitAll(absl::Time deadline, bool until_failed) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto idle = [&] { return std::find(busy_.begin(), busy_.end(), true) == busy_.end(); };
  const auto over = [&] { return idle() || (until_failed && !cause_.ok()); };
  if (deadline == absl::InfiniteFuture()) {
    changed_.wait(lock, over);
  } else {
    changed_.wait_until(lock, absl::ToChronoTime(deadline), over);
  }
  return idle();
}

absl::Status RankTeam::Late(absl::Duration bound) {
  std::vector<std::string> late;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (busy_[i]) late.push_back(options_.describe(i));
    }
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "not returned within ", absl::FormatDuration(bound), ": ", absl::StrJoin(late, "; ")));
}

absl::Status RankTeam::OnEvery(std::function<absl::Status(size_t)> work, absl::Duration bound) {
  if (failed_.load()) return Cause();
  StartAll([this, work = std::move(work)](size_t i) {
    const absl::Status status = work(i);
    if (!status.ok()) Fail(status);
  });
  const bool bounded = bound != absl::InfiniteDuration();
  const bool ended = AwaitAll(absl::Now() + bound, /*until_failed=*/bounded);
  if (ended) return Cause();
  if (Cause().ok()) Fail(Late(bound));
  AwaitAll(absl::Now() + options_.grace, /*until_failed=*/false);
  return Cause();
}

bool RankTeam::Finish(std::function<void(size_t)> work, absl::Duration bound) {
  const absl::Time deadline = absl::Now() + bound;
  if (!AwaitAll(deadline, /*until_failed=*/false)) return false;
  StartAll(std::move(work));
  return AwaitAll(deadline, /*until_failed=*/false);
}

}  // namespace shardproof
