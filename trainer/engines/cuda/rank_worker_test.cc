#include "trainer/engines/cuda/rank_worker.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(RankWorker, DoesOnePieceOfWorkAfterAnotherOnOneThread) {
  RankWorker worker;
  worker.Join();  // nothing to wait for
  std::thread::id first, second;
  worker.Start([&] { first = std::this_thread::get_id(); });
  worker.Join();
  worker.Start([&] { second = std::this_thread::get_id(); });
  worker.Join();
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
}

// Ranks meet in collectives, so all of them must be able to work at once.
TEST(RankWorker, WorkersRunAtTheSameTime) {
  std::atomic<int> here = 0;
  const auto meet = [&] {
    ++here;
    while (here.load() < 2) std::this_thread::yield();
  };
  RankWorker a, b;
  a.Start(meet);
  b.Start(meet);
  a.Join();
  b.Join();
  EXPECT_EQ(here.load(), 2);
}

TEST(RankWorker, ItsEndWaitsForTheWork) {
  std::atomic<bool> go = false;
  std::atomic<bool> done = false;
  std::thread releases;
  {
    RankWorker worker;
    worker.Start([&] {
      while (!go.load()) std::this_thread::yield();
      done = true;
    });
    releases = std::thread([&] { go = true; });
  }
  EXPECT_TRUE(done.load());
  releases.join();
}

}  // namespace
}  // namespace shardproof
