#include "collectives/mpi/watchdog.h"

#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

void WaitIn(absl::Duration timeout, std::chrono::milliseconds call) {
  Watchdog watchdog("rank 1 waited in vain", timeout);
  std::this_thread::sleep_for(call);
}

TEST(WatchdogDeathTest, EndsAProcessWhoseCallDoesNotReturn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(WaitIn(absl::Milliseconds(20), std::chrono::minutes(1)), testing::ExitedWithCode(2),
              "^rank 1 waited in vain\n$");
}

TEST(Watchdog, LeavesAProcessWhoseCallReturns) {
  WaitIn(absl::Milliseconds(200), std::chrono::milliseconds(0));
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const auto begin = std::chrono::steady_clock::now();
  WaitIn(absl::InfiniteDuration(), std::chrono::milliseconds(1));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace shardproof
