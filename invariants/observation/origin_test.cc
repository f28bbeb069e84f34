#include "invariants/observation/origin.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

TEST(Origin, OnlyElementsOfTensorsCountUp) {
  for (int kind = 0; kind <= static_cast<int>(OriginKind::kMixed); ++kind) {
    Origin origin;
    origin.kind = static_cast<OriginKind>(kind);
    const bool counts = Advanced(origin, 3).element == 3;
    EXPECT_EQ(counts, HasElement(origin.kind)) << Name(origin.kind);
    EXPECT_FALSE(counts && IsInert(origin.kind)) << Name(origin.kind);
  }
}

TEST(Origin, EveryValueHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int kind = 0; kind <= static_cast<int>(OriginKind::kMixed); ++kind) {
    names.insert(std::string(Name(static_cast<OriginKind>(kind))));
  }
  EXPECT_EQ(names.size(), 10u);
  for (int use = 0; use <= static_cast<int>(OriginUse::kHeldExpAvgSq); ++use) {
    names.insert(std::string(Name(static_cast<OriginUse>(use))));
  }
  EXPECT_EQ(names.size(), 22u);
  EXPECT_EQ(names.count("?"), 0u);
}

}  // namespace
}  // namespace shardproof
