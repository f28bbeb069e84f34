#include "trainer/engines/cuda/rank_worker.h"

#include <utility>

namespace shardproof {

RankWorker::RankWorker() : thread_([this] { Loop(); }) {}

RankWorker::~RankWorker() {
  Join();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RankWorker::Start(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(work);
  }
  changed_.notify_all();
}

void RankWorker::Join() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return work_ == nullptr; });
}

void RankWorker::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return quit_ || work_ != nullptr; });
    if (work_ == nullptr) return;
    lock.unlock();
    work_();
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace shardproof
