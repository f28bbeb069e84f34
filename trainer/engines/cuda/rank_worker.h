// RankWorker: a thread that does one piece of work at a time, for as long as the object lives.
#ifndef TRAINER_ENGINES_CUDA_RANK_WORKER_H_
#define TRAINER_ENGINES_CUDA_RANK_WORKER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace shardproof {

class RankWorker {
 public:
  RankWorker();
  RankWorker(const RankWorker&) = delete;
  RankWorker& operator=(const RankWorker&) = delete;
  // Waits for the work at hand.
  ~RankWorker();

  // Not while work is at hand.
  void Start(std::function<void()> work);
  // Returns once the work has ended; at once if there is none.
  void Join();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;  // empty: none
  bool quit_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_RANK_WORKER_H_
