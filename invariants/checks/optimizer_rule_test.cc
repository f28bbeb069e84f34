// The formulas against numbers worked out by hand, with hyper-parameters that keep them round; and
// the tolerance against roundings of float32, which it must cover, and an ulp more than it covers.
#include "invariants/checks/optimizer_rule.h"

#include <cmath>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

OptimizerDescription AdamW() {
  OptimizerDescription optimizer;
  optimizer.learning_rate = 0.5;
  optimizer.beta1 = 0.5;
  optimizer.beta2 = 0.75;
  optimizer.epsilon = 1;
  optimizer.weight_decay = 0.5;
  return optimizer;
}

TEST(OptimizerRule, AdamWByHand) {
  // t = 1: m = 0 + 4/2 = 2; v = 16/4 = 4; root = 2 / sqrt(1/4) = 4; step size 0.5 / 0.5 = 1.
  // p = 8 (1 - 0.25) - 1 * 2 / (4 + 1) = 5.6.
  const UpdatedElement first = OptimizerRule(AdamW(), 1).Apply(4, {8, 0, 0});
  EXPECT_DOUBLE_EQ(first.value.exp_avg, 2);
  EXPECT_DOUBLE_EQ(first.value.exp_avg_sq, 4);
  EXPECT_DOUBLE_EQ(first.value.parameter, 5.6);
  // t = 2: m = 2 - 3 = -1 for g = -4; v = 3 + 4 = 7; 1 - 0.75^2 = 0.4375, sqrt(7 / 0.4375) = 4;
  // step size 0.5 / 0.75. p = 0 + (2/3) / 5.
  const UpdatedElement second = OptimizerRule(AdamW(), 2).Apply(-4, {0, 2, 4});
  EXPECT_DOUBLE_EQ(second.value.exp_avg, -1);
  EXPECT_DOUBLE_EQ(second.value.exp_avg_sq, 7);
  EXPECT_DOUBLE_EQ(second.value.parameter, 2.0 / 15);
}

TEST(OptimizerRule, SgdByHand) {
  OptimizerDescription sgd;
  sgd.kind = OptimizerKind::kSgd;
  sgd.learning_rate = 0.25;
  sgd.weight_decay = 0.5;
  sgd.momentum = 0.5;
  // d = 4 + 0.5 * 8 = 8. First: m = 8 whatever was there. Later: m = 0.5 * 6 + 8 = 11.
  const UpdatedElement first = OptimizerRule(sgd, 1).Apply(4, {8, 6, 0});
  EXPECT_EQ(first.value.exp_avg, 8);
  EXPECT_EQ(first.value.parameter, 6);
  const UpdatedElement later = OptimizerRule(sgd, 2).Apply(4, {8, 6, 0});
  EXPECT_EQ(later.value.exp_avg, 11);
  EXPECT_EQ(later.value.parameter, 5.25);
  sgd.momentum = 0;
  EXPECT_EQ(OptimizerRule(sgd, 2).Apply(4, {8, 6, 0}).value.parameter, 6);
}

TEST(OptimizerRule, ToleranceIsAFewUlpAndNotMore) {
  OptimizerDescription optimizer;  // the usual ones
  const UpdatedElement updated = OptimizerRule(optimizer, 3).Apply(0.3, {0.7, 0.1, 0.02});
  const double ulp = 0x1p-24;  // of numbers from 0.5 to 1: twice this
  EXPECT_GT(updated.tolerance.parameter, 2 * ulp);
  EXPECT_LT(updated.tolerance.parameter, 8 * ulp);
  EXPECT_LT(updated.tolerance.exp_avg, 4 * ulp * 0.14);
  EXPECT_LT(updated.tolerance.exp_avg_sq, 5 * ulp * 0.0201);
  EXPECT_GT(updated.tolerance.exp_avg_sq, ulp * 0.02);
}

// AdamW in float32, in the two usual ways of writing the moments.
TEST(OptimizerRule, CoversFloat32InBothWaysOfWritingIt) {
  const OptimizerDescription optimizer;
  const float rest1 = static_cast<float>(1 - optimizer.beta1);
  const float beta1 = static_cast<float>(optimizer.beta1);
  const float rest2 = static_cast<float>(1 - optimizer.beta2);
  const float beta2 = static_cast<float>(optimizer.beta2);
  const float epsilon = static_cast<float>(optimizer.epsilon);
  const float decay = static_cast<float>(1 - optimizer.learning_rate * optimizer.weight_decay);
  for (int way = 0; way < 2; ++way) {
    for (int64_t seed = 1; seed <= 2000; ++seed) {
      float p = std::sin(static_cast<float>(seed)), m = 0, v = 0;
      for (int64_t t = 1; t <= 4; ++t) {
        // From huge to underflowing squares, and signs that make moments cancel.
        const float scale = std::pow(10.0f, static_cast<float>(seed % 50) - 30);
        const float g = scale * std::cos(static_cast<float>(seed * 7 + t * 13));
        const UpdatedElement expected = OptimizerRule(optimizer, t).Apply(g, {p, m, v});
        const double time = static_cast<double>(t);
        m = way == 0 ? m + (g - m) * rest1 : beta1 * m + rest1 * g;
        v = v * beta2 + (g * g) * rest2;
        const float step =
            static_cast<float>(optimizer.learning_rate / (1 - std::pow(optimizer.beta1, time)));
        const float root = static_cast<float>(std::sqrt(1 - std::pow(optimizer.beta2, time)));
        p = p * decay - step * (m / (std::sqrt(v) / root + epsilon));
        ASSERT_LE(std::abs(m - expected.value.exp_avg), expected.tolerance.exp_avg) << seed;
        ASSERT_LE(std::abs(v - expected.value.exp_avg_sq), expected.tolerance.exp_avg_sq) << seed;
        ASSERT_LE(std::abs(p - expected.value.parameter), expected.tolerance.parameter)
            << "seed " << seed << " t " << t;
      }
    }
  }
}

}  // namespace
}  // namespace shardproof
