// RankTeam: a thread for each local rank, joined with a bound.
//
// A thread can be held where nothing of ours can reach it: CUDA makes the host wait inside of a
// launch once its queue is full, and a queue that waits for a peer which has died stays full. So
// nobody waits for a member without a bound where it may wait for others: what is late fails the
// team, which aborts what the members wait in, and what does not return even then is given up.
#ifndef TRAINER_ENGINES_CUDA_RANK_TEAM_H_
#define TRAINER_ENGINES_CUDA_RANK_TEAM_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "trainer/engines/cuda/rank_worker.h"

namespace shardproof {

// Used by one thread.
class RankTeam {
 public:
  struct Options {
    // How long members may take to return once the team has failed.
    absl::Duration grace;
    // Which member it is, and where it is. Any thread, while the member works; never waits.
    std::function<std::string(size_t)> describe;
    // Ends what members wait in, for the reason given. Called at most once, on a thread of its own.
    std::function<void(const absl::Status&)> abort;
  };

  RankTeam(size_t members, Options options);
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;
  // Waits for all members without a bound. Whoever cannot afford that asks Finish first and, where
  // it says no, never destroys the team nor anything that members use.
  ~RankTeam() = default;

  // Does something on the thread of every member. The first error fails the team and is returned,
  // now and by every later call, which does nothing else. A member that has not returned after
  // `bound` fails it too, with DeadlineExceeded that describes all such members. Returns at the
  // latest `bound` and the grace after the call, though a member may still be at work then: `work`
  // is kept for it, and what it refers to must outlive it. InfiniteDuration is for work that waits
  // for nobody: all members are waited for, whatever happens.
  absl::Status OnEvery(std::function<absl::Status(size_t)> work, absl::Duration bound);

  // The last thing that the members do, failed or not. True once all have done it, false if they,
  // or what they did before, have not returned after `bound`.
  bool Finish(std::function<void(size_t)> work, absl::Duration bound);

  // Set once the team has failed. Members look at it where they wait.
  const std::atomic<bool>& failed() const { return failed_; }

 private:
  absl::Status Cause();
  void Fail(const absl::Status& why);
  void StartAll(std::function<void(size_t)> work);
  void Ended(size_t index);
  bool AwaitAll(absl::Time deadline, bool until_failed);
  absl::Status Late(absl::Duration bound);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status cause_;  // why the team has failed
  std::atomic<bool> failed_ = false;
  std::vector<bool> busy_;  // by member; the last is whoever aborts
  // Last: their threads use the others, and members the aborter.
  RankWorker aborter_;
  std::vector<std::unique_ptr<RankWorker>> workers_;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_RANK_TEAM_H_
