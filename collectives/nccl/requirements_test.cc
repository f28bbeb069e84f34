// What a user meets first on a machine that does not fit must say what it has and what is needed.
#include "collectives/nccl/requirements.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void ExpectRefused(const absl::Status& status, const testing::Matcher<std::string>& message) {
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), message);
}

TEST(GpuCount, AsManyAsNeededOrMoreAreEnough) {
  EXPECT_TRUE(CheckGpuCount(1, 1, "").ok());
  EXPECT_TRUE(CheckGpuCount(8, 2, "").ok());
}

TEST(GpuCount, NamesWhatWasFoundAndWhatIsNeeded) {
  ExpectRefused(CheckGpuCount(0, 1, ""),
                HasSubstr("no NVIDIA driver or no GPU was found, this run needs 1"));
  ExpectRefused(CheckGpuCount(1, 2, ""), HasSubstr("only 1 GPU was found, this run needs 2"));
  ExpectRefused(CheckGpuCount(2, 4, ""), HasSubstr("only 2 GPUs were found, this run needs 4"));
}

TEST(GpuCount, SaysWhatTheDriverSaid) {
  ExpectRefused(CheckGpuCount(0, 1, "no CUDA-capable device is detected"),
                HasSubstr("CUDA says: no CUDA-capable device is detected"));
  // What CUDA says where there is no driver at all: that alone sends people after the wrong thing.
  ExpectRefused(CheckGpuCount(0, 2, "CUDA driver version is insufficient for CUDA runtime version"),
                AllOf(HasSubstr("no NVIDIA driver or no GPU was found, this run needs 2"),
                      HasSubstr("CUDA says: CUDA driver version is insufficient")));
  ExpectRefused(CheckGpuCount(2, 2, "initialization error"),
                AllOf(HasSubstr("cannot be used"), HasSubstr("initialization error")));
}

TEST(VersionText, IsWhatPeopleWrite) {
  EXPECT_EQ(CudaVersionText(13020), "13.2");
  EXPECT_EQ(CudaVersionText(12080), "12.8");
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

TEST(CudaVersions, AnyDriverOfTheSameMajorOrANewerOneFits) {
  EXPECT_TRUE(CheckCudaVersions(13000, 13000).ok());
  EXPECT_TRUE(CheckCudaVersions(13020, 13000).ok());
  EXPECT_TRUE(CheckCudaVersions(12080, 13000).ok());
}

TEST(CudaVersions, AnOlderDriverIsRefusedWithBothVersions) {
  ExpectRefused(CheckCudaVersions(13020, 12080),
                AllOf(HasSubstr("driver supports CUDA 12.8"), HasSubstr("built with CUDA 13.2"),
                      HasSubstr("CUDA 13.0 or newer")));
  ExpectRefused(CheckCudaVersions(13000, 0), HasSubstr("no CUDA driver"));
}

TEST(NcclVersions, TheSameMajorFitsFromTheOldestOn) {
  EXPECT_TRUE(CheckNcclVersions(22809, 22803).ok());
  EXPECT_TRUE(CheckNcclVersions(22809, 22907).ok());
  EXPECT_TRUE(CheckNcclVersions(22809, kOldestNccl).ok());
}

TEST(NcclVersions, OthersAreRefusedWithBothVersions) {
  ExpectRefused(CheckNcclVersions(22809, 21705),
                AllOf(HasSubstr("NCCL 2.17.5 was loaded"), HasSubstr("built with NCCL 2.28.9"),
                      HasSubstr("none before 2.18.0")));
  ExpectRefused(CheckNcclVersions(22809, 2708), HasSubstr("NCCL 2.7.8 was loaded"));
  ExpectRefused(CheckNcclVersions(22809, 30000),
                AllOf(HasSubstr("NCCL 3.0.0"), HasSubstr("accepted are versions 2.x")));
}

TEST(ComputeCapability, NineAndEveryLaterOneFit) {
  EXPECT_TRUE(CheckComputeCapability({0, "NVIDIA H200", 9, 0}, 13000, 13000).ok());
  EXPECT_TRUE(CheckComputeCapability({1, "NVIDIA B200", 10, 0}, 13000, 13000).ok());
  EXPECT_TRUE(CheckComputeCapability({1, "a later one", 12, 1}, 12080, 13000).ok());
}

TEST(ComputeCapability, AnOlderGpuIsRefusedWithBothAndItsName) {
  ExpectRefused(CheckComputeCapability({3, "NVIDIA A100-SXM4-80GB", 8, 0}, 13000, 13000),
                AllOf(HasSubstr("GPU 3 (NVIDIA A100-SXM4-80GB) has compute capability 8.0"),
                      HasSubstr("needed is 9.0 or newer")));
  ExpectRefused(CheckComputeCapability({0, "NVIDIA L4", 8, 9}, 13000, 13000),
                HasSubstr("has compute capability 8.9"));
}

// A driver runs what was compiled by a newer minor version, but it compiles only what it knows.
TEST(ComputeCapability, ALaterGpuNeedsADriverThatReadsThePtx) {
  EXPECT_TRUE(CheckComputeCapability({0, "NVIDIA H200", 9, 0}, 13020, 13000).ok());
  ExpectRefused(CheckComputeCapability({0, "NVIDIA B200", 10, 0}, 13020, 13000),
                AllOf(HasSubstr("GPU 0 (NVIDIA B200)"), HasSubstr("10.0"),
                      HasSubstr("built with CUDA 13.2"), HasSubstr("supports CUDA 13.0")));
}

// No machine has so many: whichever requirement fails here, the error says what was asked for.
TEST(GpuRequirements, AMachineThatDoesNotFitGivesOneError) {
  ExpectRefused(CheckGpuRequirements(100000), HasSubstr("100000"));
  ExpectRefused(CheckRequirementsOfGpu(99999), HasSubstr("100000"));
}

}  // namespace
}  // namespace shardproof
