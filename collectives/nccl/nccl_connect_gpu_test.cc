// A rank that waits for NCCL to connect it must hear of an abort at once, not when its own time is
// up. One GPU and one process: the other rank comes to the meeting, and then never connects.
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/device_exchange_for_test.h"
#include "collectives/device_world.h"
#include "collectives/job_for_test.h"
#include "collectives/nccl/group_meeting.h"
#include "collectives/nccl/nccl_world.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr absl::Duration kLong = absl::Seconds(120);
// What NCCL takes to begin, and to end.
constexpr absl::Duration kAtOnce = absl::Seconds(30);
constexpr Group kBoth = {0, 1, 2};

// What rank 0's Connect returns, in a world that is aborted so long after both ranks have met.
absl::Status ConnectUntilAborted(const absl::Status& why, absl::Duration after) {
  JobBoardForTest board;
  JobForTest rank_0(&board, Rank{0}, WorldSize{2});
  JobForTest rank_1(&board, Rank{1}, WorldSize{2});
  auto world = MakeNcclWorld(rank_0, /*device=*/0);
  if (!world.ok()) return world.status();
  std::thread other([&] {
    EXPECT_TRUE(MakeGroupMeetingOverJob(rank_1)->Meet(Rank{1}, kBoth, "", kLong).ok());
    absl::SleepFor(after);
    (*world)->Abort(why);
  });
  const auto results = OnEveryRank(**world, {Rank{0}}, [&](Rank rank, DeviceStream stream) {
    return (*world)->Connect(rank, kBoth, stream, kLong).status();
  });
  other.join();
  return results[0];
}

// Before NCCL is asked, and while it waits; the second is long enough for that on any machine.
TEST(NcclConnect, AnAbortReachesARankThatNcclConnects) {
  for (const absl::Duration after : {absl::ZeroDuration(), absl::Seconds(5)}) {
    // Even one that looks like a wait of NCCL's.
    const absl::Status why = absl::DeadlineExceededError("another rank waited in vain");
    const absl::Time start = absl::Now();
    EXPECT_EQ(ConnectUntilAborted(why, after), why) << after;
    EXPECT_LT(absl::Now() - start, after + kAtOnce) << after;
  }
}

}  // namespace
}  // namespace shardproof
