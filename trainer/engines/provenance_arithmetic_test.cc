#include "trainer/engines/provenance_arithmetic.h"

#include <limits>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

class ArithmeticTest : public ::testing::Test {
 protected:
  Origin Gradient(int64_t element, int32_t rank) {
    OriginTerm term;
    term.rank = rank;
    term.micro_batch = 0;
    Origin origin;
    origin.kind = OriginKind::kGradient;
    origin.tensor = 0;
    origin.element = element;
    origin.terms = arithmetic_.OneTerm(term);
    return origin;
  }
  static Origin Of(OriginKind kind) {
    Origin origin;
    origin.kind = kind;
    return origin;
  }
  const std::vector<OriginTerm>& Terms(const Origin& origin) {
    return origins_.term_sets[origin.terms];
  }

  StepOrigins origins_;
  OriginArithmetic arithmetic_{&origins_};
};

TEST_F(ArithmeticTest, GradientsOfOneElementAddInAnyOrder) {
  const Origin ab = arithmetic_.Sum(Gradient(3, 0), Gradient(3, 1));
  const Origin ba = arithmetic_.Sum(Gradient(3, 1), Gradient(3, 0));
  EXPECT_EQ(ab, ba);
  ASSERT_EQ(Terms(ab).size(), 2u);
  const Origin aba = arithmetic_.Sum(ab, Gradient(3, 0));
  ASSERT_EQ(Terms(aba).size(), 2u);
  EXPECT_EQ(Terms(aba)[0].count, 2);
  EXPECT_EQ(Terms(aba)[1].count, 1);
}

TEST_F(ArithmeticTest, AZeroAddsNothing) {
  Origin zero = Gradient(3, 0);
  zero.terms = arithmetic_.NoTerms();
  EXPECT_EQ(arithmetic_.Sum(zero, Gradient(3, 1)), Gradient(3, 1));
  EXPECT_EQ(arithmetic_.Scaled(zero, 0.5), zero);
}

TEST_F(ArithmeticTest, OtherThingsMixAndStayTheFirstMixture) {
  const Origin padding = Of(OriginKind::kPadding);
  const Origin mixed = arithmetic_.Sum(Gradient(3, 0), padding);
  ASSERT_EQ(mixed.kind, OriginKind::kMixed);
  EXPECT_EQ(origins_.mixtures[mixed.mixture].left.element, 3);
  EXPECT_EQ(origins_.mixtures[mixed.mixture].right, padding);
  EXPECT_EQ(arithmetic_.Sum(mixed, Gradient(4, 0)), mixed);
  EXPECT_EQ(arithmetic_.Scaled(mixed, 2), mixed);
  EXPECT_EQ(arithmetic_.Sum(Gradient(3, 0), Gradient(4, 0)).kind, OriginKind::kMixed);
  EXPECT_EQ(arithmetic_.Scaled(Of(OriginKind::kParameter), 2).kind, OriginKind::kMixed);
  EXPECT_EQ(arithmetic_.CoefficientOf(padding).kind, OriginKind::kMixed);
}

TEST_F(ArithmeticTest, MemoryThatHoldsNothingStaysThatAndTheWorseIsKept) {
  const Origin padding = Of(OriginKind::kPadding);
  const Origin freed = Of(OriginKind::kFreed);
  EXPECT_EQ(arithmetic_.Sum(padding, padding), padding);
  EXPECT_EQ(arithmetic_.Sum(padding, freed), freed);
  EXPECT_EQ(arithmetic_.Sum(freed, Of(OriginKind::kNeverWritten)), freed);
  EXPECT_EQ(arithmetic_.Scaled(padding, 3), padding);
  EXPECT_EQ(arithmetic_.ScaledBy(padding, freed), padding);
}

TEST_F(ArithmeticTest, ScalesMultiplyAndClipsCount) {
  Origin norm = Of(OriginKind::kNorm);
  norm.terms = arithmetic_.OneTerm({});
  const Origin coefficient = arithmetic_.CoefficientOf(norm);
  const Origin scaled = arithmetic_.Scaled(arithmetic_.Scaled(Gradient(0, 0), 0.5), 0.25);
  EXPECT_EQ(Terms(scaled)[0].scale, 0.125);
  EXPECT_EQ(Terms(scaled)[0].scalings, 2);
  const Origin clipped = arithmetic_.ScaledBy(scaled, coefficient);
  EXPECT_EQ(Terms(clipped)[0].clips, 1);
  EXPECT_EQ(arithmetic_.ScaledBy(scaled, norm).kind, OriginKind::kMixed);
}

TEST_F(ArithmeticTest, AnEditedScaleCannotBreakTheOrderOfTerms) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(arithmetic_.Scaled(Gradient(0, 0), infinity).kind, OriginKind::kMixed);
  EXPECT_EQ(arithmetic_.Scaled(Gradient(0, 0), infinity - infinity).kind, OriginKind::kMixed);
  Origin large = Gradient(0, 0);
  for (int i = 0; i < 3; ++i) large = arithmetic_.Scaled(large, 1e200);
  EXPECT_EQ(Terms(large)[0].scale, std::numeric_limits<double>::max());
}

TEST_F(ArithmeticTest, RunsAddElementByElement) {
  const std::vector<OriginRun> left = {{2, Gradient(0, 0)}, {2, Of(OriginKind::kPadding)}};
  const std::vector<OriginRun> right = {{1, Gradient(0, 1)}, {3, Gradient(1, 1)}};
  const std::vector<OriginRun> sum = arithmetic_.Sum(left, right);
  ASSERT_EQ(sum.size(), 2u);
  EXPECT_EQ(sum[0].count, 2);
  EXPECT_EQ(sum[0].origin, arithmetic_.Sum(Gradient(0, 0), Gradient(0, 1)));
  EXPECT_EQ(sum[1].count, 2);
  EXPECT_EQ(sum[1].origin.kind, OriginKind::kMixed);
}

TEST_F(ArithmeticTest, CompactKeepsWhatIsReferredToAndNothingElse) {
  Origin kept = arithmetic_.Sum(Gradient(3, 0), Gradient(3, 1));
  Origin mixed = arithmetic_.Sum(Gradient(3, 5), Of(OriginKind::kPadding));
  const std::vector<OriginTerm> terms = Terms(kept);
  arithmetic_.Compact([&](auto keep) {
    keep(kept);
    keep(mixed);
  });
  EXPECT_EQ(Terms(kept), terms);
  EXPECT_EQ(origins_.term_sets.size(), 3u);  // none, the sum, and what was mixed
  ASSERT_EQ(origins_.mixtures.size(), 1u);
  EXPECT_EQ(Terms(origins_.mixtures[mixed.mixture].left)[0].rank, 5);
  EXPECT_EQ(arithmetic_.Sum(Gradient(3, 0), Gradient(3, 1)).terms, kept.terms);
}

TEST_F(ArithmeticTest, UpdatesCountOnlyWhatIsUpdated) {
  EXPECT_EQ(OriginArithmetic::Updated(Of(OriginKind::kExpAvg)).version, 1);
  EXPECT_EQ(OriginArithmetic::Updated(Of(OriginKind::kPadding)).version, 0);
}

}  // namespace
}  // namespace shardproof
