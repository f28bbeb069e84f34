#include "collectives/required_gpus.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using testing::HasSubstr;

TEST(RequiredGpus, ANumberFromOne) {
  EXPECT_EQ(*RequiredGpus("1"), 1);
  EXPECT_EQ(*RequiredGpus("8"), 8);
}

TEST(RequiredGpus, ATestThatDoesNotSayHowManyIsNoTest) {
  EXPECT_THAT(std::string(RequiredGpus(nullptr).status().message()),
              HasSubstr("SHARDPROOF_GPUS is not set; accepted"));
  for (const char* value : {"", "0", "-1", "two", "2.5"}) {
    EXPECT_THAT(std::string(RequiredGpus(value).status().message()),
                HasSubstr(std::string("SHARDPROOF_GPUS is '") + value + "'; accepted"));
  }
}

}  // namespace
}  // namespace shardproof
