#include "trainer/engines/cuda/launch_window.h"

#include <set>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

// What the GPU has done.
struct Gpu {
  bool HasRoom(LaunchWindow& window) {
    return *window.HasRoom(
        [&](int32_t mark) -> absl::StatusOr<bool> { return done.contains(mark); });
  }
  std::set<int32_t> done;
};

TEST(LaunchWindow, WaitsForTheOldestOfItsStream) {
  LaunchWindow window(/*most=*/10, /*between_marks=*/4);
  Gpu gpu;
  EXPECT_EQ(window.Add(StreamId::kCompute, 3), -1);  // no mark is due
  EXPECT_EQ(window.Add(StreamId::kCompute, 1), 0);
  EXPECT_EQ(window.Add(StreamId::kCommunication, 5), 1);
  EXPECT_TRUE(gpu.HasRoom(window));  // 9 of 10
  EXPECT_EQ(window.Add(StreamId::kCompute, 4), 2);
  EXPECT_FALSE(gpu.HasRoom(window));
  gpu.done = {2};  // cannot be before mark 0 of its stream
  EXPECT_FALSE(gpu.HasRoom(window));
  gpu.done = {1};
  EXPECT_TRUE(gpu.HasRoom(window));                       // 8
  EXPECT_EQ(window.Add(StreamId::kCommunication, 4), 1);  // its number again
  gpu.done = {0};
  EXPECT_TRUE(gpu.HasRoom(window));
}

TEST(LaunchWindow, ClearsAndPassesErrorsOn) {
  LaunchWindow window(/*most=*/4, /*between_marks=*/1);
  window.Add(StreamId::kCompute, 9);
  const auto fails = [](int32_t) -> absl::StatusOr<bool> { return absl::InternalError("lost"); };
  EXPECT_EQ(window.HasRoom(fails).status(), absl::InternalError("lost"));
  window.Clear();
  EXPECT_TRUE(*window.HasRoom(fails));
}

// As many update ranges as there are, since each is a launch.
TEST(LaunchWindow, CountsWhatAnOperationLaunches) {
  Op op;
  op.update_count = 1000;
  op.access_count = 20;
  EXPECT_GE(LaunchesOf(op), 1020);
  EXPECT_LE(LaunchesOf(op), 1040);
}

}  // namespace
}  // namespace shardproof
