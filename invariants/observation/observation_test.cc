#include "invariants/observation/observation.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename E>
void RoundTrip(E last, absl::StatusOr<E> (*parse)(absl::string_view)) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    const E value = static_cast<E>(i);
    const absl::StatusOr<E> parsed = parse(Name(value));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, value);
  }
}

TEST(Observation, EveryNameParsesBack) {
  RoundTrip(EventKind::kRelease, ParseEventKind);
  RoundTrip(Purpose::kNone, ParsePurpose);
  RoundTrip(AccessKind::kFree, ParseAccessKind);
  RoundTrip(StateClass::kExpAvgSq, ParseStateClass);
  EXPECT_EQ(Name(Purpose::kUnshardParameters), "unshard_parameters");
  EXPECT_EQ(Name(StateClass::kExpAvgSq), "exp_avg_sq");
}

TEST(Observation, AnUnknownNameIsToldWithThoseAccepted) {
  EXPECT_THAT(ParseAccessKind("peek").status().message(),
              AllOf(HasSubstr("access kind 'peek'"), HasSubstr("allocate, read, write, free")));
}

}  // namespace
}  // namespace shardproof
