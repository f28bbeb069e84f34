#include "property_tests/generators/rapidcheck_defaults.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

// What RC_PARAMS is after SetRapidCheckDefaults(5) with these two set; null: not set.
std::string Parameters(const char* given, const char* cases) {
  given == nullptr ? unsetenv("RC_PARAMS") : setenv("RC_PARAMS", given, 1);
  cases == nullptr ? unsetenv("SHARDPROOF_CASES") : setenv("SHARDPROOF_CASES", cases, 1);
  SetRapidCheckDefaults(5);
  return std::getenv("RC_PARAMS");
}

TEST(SetRapidCheckDefaults, FillsInWhatIsNotGiven) {
  EXPECT_EQ(Parameters(nullptr, nullptr), " seed=20261129 max_success=5");
  EXPECT_EQ(Parameters("seed=3", nullptr), "seed=3 max_success=5");
  EXPECT_EQ(Parameters("reproduce=abc", nullptr), "reproduce=abc max_success=5");
  EXPECT_EQ(Parameters("max_success=9", nullptr), "max_success=9 seed=20261129");
}

TEST(SetRapidCheckDefaults, TakesTheCaseBudget) {
  EXPECT_EQ(Parameters(nullptr, "700"), " seed=20261129 max_success=700");
  EXPECT_EQ(Parameters("seed=3 max_success=9", "700"), "seed=3 max_success=9");
}

TEST(CaseBudget, IsAWholeNumberFromOne) {
  for (const char* bad : {"", "many", "0", "-3", "1.5"}) {
    setenv("SHARDPROOF_CASES", bad, 1);
    EXPECT_EQ(CaseBudget(), std::nullopt) << bad;
    EXPECT_EQ(Parameters("seed=3", bad), "seed=3 max_success=5");
  }
  setenv("SHARDPROOF_CASES", "12", 1);
  EXPECT_EQ(CaseBudget(), 12);
}

}  // namespace
}  // namespace shardproof
