// Kernels are counted by their names: a name that is read wrong would make the witness disagree
// with a ledger that is right, or agree with one that is wrong.
#include <optional>
#include <vector>

#include "collectives/nccl/kernel_witness.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

TEST(CollectiveKindOfKernel, ReadsMangledNames) {
  EXPECT_EQ(CollectiveKindOfKernel("_Z38ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                                   "24ncclDevKernelArgsStorageILm4096EE"),
            CollectiveKind::kAllReduce);
  EXPECT_EQ(CollectiveKindOfKernel(
                "_Z32ncclDevKernel_AllGather_RING_LL24ncclDevKernelArgsStorageILm4096EE"),
            CollectiveKind::kAllGather);
}

TEST(CollectiveKindOfKernel, ReadsDemangledNames) {
  EXPECT_EQ(CollectiveKindOfKernel(
                "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
            CollectiveKind::kReduceScatter);
  EXPECT_EQ(CollectiveKindOfKernel("void ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)"),
            CollectiveKind::kBroadcast);
  EXPECT_EQ(CollectiveKindOfKernel("ncclDevKernel_AllReduce_Sum_f64_TREE_LL"),
            CollectiveKind::kAllReduce);
}

TEST(CollectiveKindOfKernel, ReadsOlderNamesAndThoseOfSymmetricMemory) {
  EXPECT_EQ(CollectiveKindOfKernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"),
            CollectiveKind::kAllReduce);
  EXPECT_EQ(CollectiveKindOfKernel("ncclSymkDevKernel_AllGather_ST(ncclSymkDevWorkArgs)"),
            CollectiveKind::kAllGather);
}

TEST(CollectiveKindOfKernel, OtherKernelsHaveNone) {
  for (const char* name :
       {"ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "my_ncclDevKernel_AllReduce_Sum(float*)", "AllReduceKernel", "sgemm_128x64_nn", ""}) {
    EXPECT_EQ(CollectiveKindOfKernel(name), std::nullopt) << name;
  }
}

KernelRecord On(int32_t device, const char* name) {
  KernelRecord record;
  record.device = device;
  record.name = name;
  return record;
}

TEST(CountCollectiveKernels, CountsByDeviceAndKind) {
  const std::vector<KernelRecord> records = {
      On(0, "ncclDevKernel_AllGather_RING_LL"), On(1, "ncclDevKernel_AllGather_RING_LL"),
      On(0, "ncclDevKernel_AllGather_RING_LL"),
      On(0, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"), On(2, "sgemm_128x64_nn")};
  auto counts = CountCollectiveKernels(records);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts[0].of(CollectiveKind::kAllGather), 2);
  EXPECT_EQ(counts[0].of(CollectiveKind::kReduceScatter), 1);
  EXPECT_EQ(counts[0].of(CollectiveKind::kAllReduce), 0);
  EXPECT_EQ(counts[1].of(CollectiveKind::kAllGather), 1);
}

}  // namespace
}  // namespace shardproof
