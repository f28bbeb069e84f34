// The witness must see every kernel, and NCCL must run exactly one for each collective that is
// called: the suite compares the two counts.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_exchange_for_test.h"
#include "collectives/device_world.h"
#include "collectives/nccl/gpus_for_test.h"
#include "collectives/nccl/kernel_witness.h"
#include "collectives/nccl/nccl_world.h"
#include "collectives/simulated/shared_gpu_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/status_macros.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

// Collectives of `members` ranks, each with its own two buffers, as many of each kind as asked.
absl::Status RunMany(Communicator& communicator, const KernelCounts& counts) {
  const int64_t elements = 1000 * communicator.group().count;
  const FloatsForTest send(std::vector<float>(elements, 1.0f));
  const FloatsForTest recv(std::vector<float>(elements, 2.0f));
  CollectiveHandle last;
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                    CollectiveKind::kReduceScatter, CollectiveKind::kBroadcast}) {
    for (int64_t i = 0; i <= counts.of(kind); ++i) {
      CollectiveCall call;
      call.kind = kind;
      call.elements = i == 0 ? 0 : elements;  // an empty one first, which has no kernel
      call.send = send.data();
      call.recv = recv.data();
      call.root = communicator.group().member(0);
      SHARDPROOF_ASSIGN_OR_RETURN(last, communicator.Start(call));
    }
  }
  return communicator.Wait(last, kLong);
}

void ExpectOk(const std::vector<absl::Status>& results) {
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

TEST(KernelWitness, SeesOurKernelsAndEachOnce) {
  auto world = MakeSharedGpuWorld(WorldSize{2}, 0);
  ASSERT_TRUE(world.ok()) << world.status();
  auto witness = KernelWitness::Start();
  ASSERT_TRUE(witness.ok()) << witness.status();
  const KernelCounts wanted = {{5, 0, 0, 0, 0}};
  for (int repetition = 0; repetition < 2; ++repetition) {
    ExpectOk(OnEveryRank(**world, (*world)->local_ranks(), [&](Rank rank, DeviceStream stream) {
      SHARDPROOF_ASSIGN_OR_RETURN(auto communicator,
                                  (*world)->Connect(rank, Group{0, 1, 2}, stream, kLong));
      return RunMany(*communicator, wanted);
    }));
    const auto kernels = (*witness)->Collect();
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    EXPECT_EQ(std::count_if(kernels->begin(), kernels->end(),
                            [](const KernelRecord& kernel) {
                              return kernel.name.find("AllReduceKernel") != std::string::npos;
                            }),
              5);
    for (const KernelRecord& kernel : *kernels) {
      EXPECT_EQ(kernel.device, 0);
      EXPECT_LT(kernel.start_ns, kernel.end_ns);
    }
    EXPECT_TRUE(CountCollectiveKernels(*kernels).empty());
  }
}

TEST(KernelWitness, NcclRunsOneKernelACallAndNoneForOneRank) {
  auto world = MakeNcclWorld(WorldSize{GpusForTest()});
  ASSERT_TRUE(world.ok()) << world.status();
  auto witness = KernelWitness::Start();
  ASSERT_TRUE(witness.ok()) << witness.status();
  const KernelCounts wanted = {{3, 2, 4, 1, 0}};
  ExpectOk(OnEveryRank(**world, (*world)->local_ranks(), [&](Rank rank, DeviceStream stream) {
    SHARDPROOF_ASSIGN_OR_RETURN(auto communicator,
                                (*world)->Connect(rank, Group{0, 1, GpusForTest()}, stream, kLong));
    return RunMany(*communicator, wanted);
  }));
  const auto kernels = (*witness)->Collect();
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  auto counts = CountCollectiveKernels(*kernels);
  if (GpusForTest() == 1) {
    EXPECT_TRUE(counts.empty());
    return;
  }
  for (int32_t device = 0; device < GpusForTest(); ++device) {
    EXPECT_EQ(counts[device].counts, wanted.counts) << "device " << device;
  }
}

TEST(KernelWitness, ThereIsOneAtATime) {
  auto first = KernelWitness::Start();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(KernelWitness::Start().status()));
  first->reset();
  const auto second = KernelWitness::Start();
  EXPECT_TRUE(second.ok()) << second.status();
}

}  // namespace
}  // namespace shardproof
