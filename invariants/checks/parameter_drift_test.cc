// The bound must hold for gradients anywhere within their tolerance, and must not be so wide that
// it says nothing.
#include "invariants/checks/parameter_drift.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "invariants/checks/any_order.h"
#include "invariants/checks/optimizer_rule.h"

namespace shardproof {
namespace {

constexpr int kElements = 40;
constexpr int kSteps = 8;

RunDescription RunOf(OptimizerKind kind, double learning_rate) {
  RunDescription run;
  run.model.tensors = {{"weight", {kElements}, kElements, true, {}}};
  run.model.stages = {{"layer", {0}}};
  run.model.units = {{"layer", {0}, true}};
  run.sharding.world_size = {4};
  run.optimizer.kind = kind;
  run.optimizer.learning_rate = learning_rate;
  return run;
}

// One training in float32, whose gradients a test gives.
struct Training {
  std::array<float, kElements> parameter, previous, gradient, exp_avg = {}, exp_avg_sq = {};
  int64_t updates = 0;

  Training() { parameter.fill(0.75f); }
  void Update(const RunDescription& run) {
    previous = parameter;
    const OptimizerRule rule(run.optimizer, ++updates);
    for (int i = 0; i < kElements; ++i) {
      const ElementState after =
          rule.Apply(gradient[i], {parameter[i], exp_avg[i], exp_avg_sq[i]}).value;
      parameter[i] = static_cast<float>(after.parameter);
      exp_avg[i] = static_cast<float>(after.exp_avg);
      exp_avg_sq[i] = static_cast<float>(after.exp_avg_sq);
    }
  }
};

class ParameterDriftTest : public ::testing::Test {
 protected:
  // Gradients that cancel the further, the higher the element's number: from all that there was
  // down to far below the rounding of their sum.
  void Train(const RunDescription& run, uint32_t seed) {
    run_ = run;
    drift_.Begin(run_);
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> part(-1, 1);
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < kElements; ++i) {
        const double gradient = magnitude_[i] * std::pow(0.5, i) * (part(random) > 0 ? 1 : -1);
        const double tolerance = GradientTolerance(run_, magnitude_[i]);
        reference_.gradient[i] = static_cast<float>(gradient);
        trainer_.gradient[i] = static_cast<float>(gradient + 0.9 * part(random) * tolerance);
      }
      reference_.Update(run_);
      trainer_.Update(run_);
      drift_.Step(Reference(step), 0);
      for (int i = 0; i < kElements; ++i) {
        EXPECT_LE(Apart(i), drift_.Of(0, i)) << "step " << step << ", element " << i;
      }
    }
  }
  double Apart(int i) const {
    return std::abs(static_cast<double>(reference_.parameter[i]) - trainer_.parameter[i]);
  }
  ReferenceStep Reference(int64_t step) {
    ReferenceStep shown;
    shown.step = step;
    ReferenceTensor tensor;
    tensor.parameter = reference_.parameter.data();
    tensor.previous_parameter = reference_.previous.data();
    tensor.gradient = reference_.gradient.data();
    tensor.exp_avg = reference_.exp_avg.data();
    tensor.exp_avg_sq = reference_.exp_avg_sq.data();
    tensor.gradient_magnitude = magnitude_.data();
    tensor.updates = reference_.updates;
    shown.tensors = {tensor};
    return shown;
  }

  RunDescription run_;
  std::vector<float> magnitude_ = std::vector<float>(kElements, 0.5f);
  Training reference_, trainer_;
  ParameterDrift drift_;
};

TEST_F(ParameterDriftTest, HoldsForGradientsAnywhereWithinTheirTolerance) {
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    for (const double learning_rate : {1e-3, 0.1, 2.0}) {
      for (uint32_t seed = 0; seed < 20; ++seed) {
        reference_ = trainer_ = {};
        Train(RunOf(kind, learning_rate), seed);
      }
    }
  }
}

TEST_F(ParameterDriftTest, IsWideOnlyWhereGradientsCancel) {
  Train(RunOf(OptimizerKind::kAdamW, 0.1), 7);
  double most = 0;
  for (int i = 0; i < kElements; ++i) most = std::max(most, Apart(i));
  EXPECT_GT(most, 1e-2);  // the trainings did go apart, though each gradient was in order
  for (int i = 0; i < 8; ++i) EXPECT_LT(drift_.Of(0, i), 2e-3) << i;
  EXPECT_LT(drift_.Of(0, 0), 2e-5);
  EXPECT_GT(drift_.Of(0, kElements - 1), 0.1);
}

TEST_F(ParameterDriftTest, GrowsWithTheLearningRateUnderSgd) {
  Train(RunOf(OptimizerKind::kSgd, 0.1), 7);
  const double small = drift_.Of(0, 30);
  reference_ = trainer_ = {};
  Train(RunOf(OptimizerKind::kSgd, 100), 7);
  EXPECT_GT(drift_.Of(0, 30), 100 * small);
}

TEST_F(ParameterDriftTest, AnErrorOfAllGradientsIsAdded) {
  run_ = RunOf(OptimizerKind::kSgd, 1);
  drift_.Begin(run_);
  reference_.gradient.fill(0.5f);
  reference_.Update(run_);
  drift_.Step(Reference(0), 0.01);
  EXPECT_NEAR(drift_.Of(0, 3), 0.005, 1e-4);
}

TEST_F(ParameterDriftTest, NothingIsKnownAfterAStepThatWasNotShown) {
  run_ = RunOf(OptimizerKind::kAdamW, 1e-3);
  drift_.Begin(run_);
  EXPECT_EQ(drift_.Of(0, 0), 0);
  drift_.Forget();
  reference_.gradient.fill(0.5f);
  reference_.Update(run_);
  drift_.Step(Reference(0), 0);
  EXPECT_EQ(drift_.Of(0, 0), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace shardproof
