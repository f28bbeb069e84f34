// Whatever the run, the reference trainer computes beside the reduction that it just issued.
#include "gtest/gtest.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "property_tests/random_cases.h"

namespace shardproof {
namespace {

TEST(OverlapProperty, TheTrainerNeverWaitsForTheReductionItJustIssued) {
  EXPECT_EQ(CheckRandomCases({.name = "overlap", .checks = {"overlap"}}), "");
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  shardproof::SetRapidCheckDefaults(/*max_success=*/300);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
