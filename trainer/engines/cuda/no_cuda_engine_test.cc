// What a program gets where it was built without CUDA.
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "trainer/engines/cuda/cuda_engine.h"
#include "trainer/engines/engine_parts.h"
#include "trainer/sharding/test_runs.h"

namespace shardproof {
namespace {

class NoWorld : public DeviceWorld {
 public:
  WorldSize size() const override { return WorldSize{1}; }
  std::vector<Rank> local_ranks() const override { return {Rank{0}}; }
  int device(Rank) const override { return 0; }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(Rank, Group, DeviceStream,
                                                        absl::Duration) override {
    return absl::UnavailableError("no world");
  }
  void Abort(absl::Status) override {}
};

TEST(NoCudaEngine, SaysThatTheBuildHasNone) {
  const RunDescription run = TestRun("probe:4", Mode::kReplicated, 1);
  NoWorld world;
  const absl::Status status = MakeCudaEngine(run, PlannedParts(run), world, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "this build has no CUDA engine: ")) << status;
}

}  // namespace
}  // namespace shardproof
