// Without OpenMPI a program must say what to install rather than fall back to something else.
#include <string>

#include "collectives/mpi/mpi_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(NoMpi, SaysWhatToInstall) {
  const absl::Status status = CreateMpiRanks(MpiOptions{}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("install OpenMPI"));
}

}  // namespace
}  // namespace shardproof
