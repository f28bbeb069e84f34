// AdamW and SGD against PyTorch's own numbers, and the independence of the cut on which every
// sharded layout relies.
#include "trainer/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fixtures/golden/optimizer_golden.h"

namespace shardproof {
namespace {

struct State {
  std::vector<float> gradient, parameter, exp_avg, exp_avg_sq;
};

State MixedState(size_t elements) {
  State state;
  uint32_t bits = 7;
  const auto next = [&bits] {
    bits = bits * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
  };
  for (size_t i = 0; i < elements; ++i) {
    state.gradient.push_back(next());
    state.parameter.push_back(next());
    state.exp_avg.push_back(next());
    state.exp_avg_sq.push_back(std::fabs(next()));
  }
  return state;
}

void Apply(const OptimizerDescription& optimizer, int64_t update, size_t first, size_t count,
           State& state) {
  ApplyUpdate(optimizer, update, static_cast<int64_t>(count), &state.gradient[first],
              &state.parameter[first], &state.exp_avg[first], &state.exp_avg_sq[first]);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Optimizer, AgreesWithPyTorch) {
  const std::vector<GoldenDistance> distances = DistancesFromGolden(
      [](const OptimizerDescription& settings, int64_t update, GoldenState& state) {
        ApplyUpdate(settings, update, static_cast<int64_t>(state.parameter.size()),
                    state.gradient.data(), state.parameter.data(), state.exp_avg.data(),
                    state.exp_avg_sq.data());
      });
  EXPECT_EQ(distances.size(), 22u);
  for (const GoldenDistance& distance : distances) {
    EXPECT_LE(distance.parameter_ulps, kGoldenUlps) << distance.name;
    EXPECT_LE(distance.exp_avg_ulps, kGoldenUlps) << distance.name;
    EXPECT_LE(distance.exp_avg_sq_ulps, kGoldenUlps) << distance.name;
  }
}

std::vector<OptimizerDescription> AllKinds() {
  OptimizerDescription adamw;
  OptimizerDescription sgd;
  sgd.kind = OptimizerKind::kSgd;
  OptimizerDescription sgd_without_momentum = sgd;
  sgd_without_momentum.momentum = 0;
  return {adamw, sgd, sgd_without_momentum};
}

TEST(Optimizer, BitsOfAnElementDoNotDependOnTheCut) {
  constexpr size_t kElements = 61;
  for (const OptimizerDescription& optimizer : AllKinds()) {
    for (const int64_t update : {1, 2, 1000}) {
      State whole = MixedState(kElements);
      Apply(optimizer, update, 0, kElements, whole);
      for (const size_t piece : {1, 2, 3, 4, 5, 7, 16, 33}) {
        for (size_t first_piece = 1; first_piece <= 5; ++first_piece) {
          State cut = MixedState(kElements);
          Apply(optimizer, update, 0, first_piece, cut);
          for (size_t first = first_piece; first < kElements; first += piece) {
            Apply(optimizer, update, first, std::min(piece, kElements - first), cut);
          }
          EXPECT_TRUE(SameBits(cut.parameter, whole.parameter)) << piece;
          EXPECT_TRUE(SameBits(cut.exp_avg, whole.exp_avg)) << piece;
          EXPECT_TRUE(SameBits(cut.exp_avg_sq, whole.exp_avg_sq)) << piece;
        }
      }
    }
  }
}

// One element of AdamW, one rounding a line, in the header's order.
TEST(Optimizer, AdamWRoundsInTheDocumentedOrder) {
  const OptimizerDescription adamw;
  State state = MixedState(50);
  const State before = state;
  Apply(adamw, 3, 0, 50, state);
  const float step_size = static_cast<float>(1e-3 / (1 - std::pow(0.9, 3)));
  const float root = static_cast<float>(std::sqrt(1 - std::pow(0.999, 3)));
  for (size_t i = 0; i < 50; ++i) {
    const float g = before.gradient[i];
    float p = before.parameter[i] * static_cast<float>(1 - 1e-3 * 0.01);
    const float change = (g - before.exp_avg[i]) * static_cast<float>(1 - 0.9);
    const float m = before.exp_avg[i] + change;
    const float kept = before.exp_avg_sq[i] * static_cast<float>(0.999);
    const float square = (g * g) * static_cast<float>(1 - 0.999);
    const float v = kept + square;
    const float denominator = std::sqrt(v) / root + static_cast<float>(1e-8);
    p = p - step_size * (m / denominator);
    EXPECT_EQ(state.exp_avg[i], m);
    EXPECT_EQ(state.exp_avg_sq[i], v);
    EXPECT_EQ(state.parameter[i], p);
  }
}

TEST(Optimizer, FirstUpdateOfSgdDoesNotReadTheMomentum) {
  State state = MixedState(9);
  state.exp_avg.assign(9, std::numeric_limits<float>::quiet_NaN());
  ApplyUpdate(AllKinds()[1], 1, 9, state.gradient.data(), state.parameter.data(),
              state.exp_avg.data(), nullptr);
  for (const float value : state.parameter) EXPECT_FALSE(std::isnan(value));
}

TEST(Optimizer, SgdWithoutMomentumNeedsNoState) {
  State state = MixedState(9);
  OptimizerDescription sgd = AllKinds()[2];
  sgd.weight_decay = 0;
  sgd.learning_rate = 0.5;
  const State before = state;
  ApplyUpdate(sgd, 1, 9, state.gradient.data(), state.parameter.data(), nullptr, nullptr);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(state.parameter[i], before.parameter[i] - 0.5f * before.gradient[i]);
  }
}

TEST(Optimizer, ZeroElementsAreNoUpdate) {
  for (const OptimizerDescription& optimizer : AllKinds()) {
    ApplyUpdate(optimizer, 1, 0, nullptr, nullptr, nullptr, nullptr);
  }
}

}  // namespace
}  // namespace shardproof
