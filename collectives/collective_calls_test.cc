// Messages about hangs and disagreements are built here for every backend: a wrong rank in one
// sends the reader to the wrong machine.
#include "collectives/collective_calls.h"

#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/run_description/vocabulary.h"

namespace shardproof {
namespace {

using testing::HasSubstr;

CollectiveCall Reduce(int64_t elements) {
  CollectiveCall call;
  call.kind = CollectiveKind::kAllReduce;
  call.elements = elements;
  return call;
}

TEST(CollectiveCalls, NamesTheMemberThatCalledSomethingElse) {
  const std::vector<CollectiveCall> calls = {Reduce(4), Reduce(4), Reduce(8)};
  const absl::Status status = CheckAgreement(Group{1, 2, 3}, 7, calls);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "ranks disagree at position 7 of the group of ranks 1, 3, 5: rank 1 called all_reduce "
            "of 4 float32 (label -1), rank 5 called all_reduce of 8 float32 (label -1); 2 of 3 "
            "ranks called as rank 1");
  EXPECT_TRUE(CheckAgreement(Group{1, 2, 2}, 7, {Reduce(4), Reduce(4)}).ok());
}

TEST(CollectiveCalls, ARefusalNamesTheWorld) {
  CollectiveCall call = Reduce(4);
  call.dtype = Dtype::kBFloat16;
  const absl::Status status = ValidateCall(Group{0, 1, 2}, Rank{1}, call, "that world");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1, all_reduce of 4 bfloat16 (label -1): that world moves"));
}

TEST(CollectiveCalls, SaysThatAllHaveArrivedWhenNobodyIsMissing) {
  EXPECT_EQ(DescribeArrivals(Group{0, 1, 2}, 3, {{Rank{0}, Reduce(4)}, {Rank{1}, Reduce(4)}}, {}),
            "group of ranks 0, 1, position 3: ranks 0, 1 wait in all_reduce of 4 float32 (label "
            "-1); all have arrived");
}

}  // namespace
}  // namespace shardproof
