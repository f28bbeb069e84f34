// The oracle's optimizers against PyTorch's numbers, and bit for bit against the sharded
// trainer's, which were written apart.
#include "trainer/replicated/replicated_optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "fixtures/golden/optimizer_golden.h"
#include "trainer/optimizer/optimizer.h"

namespace shardproof {
namespace {

void ApplyReplicated(const OptimizerDescription& settings, int64_t update, GoldenState& state) {
  if (settings.kind == OptimizerKind::kAdamW) {
    ReplicatedAdamW(settings, update, state.gradient, state.parameter, state.exp_avg,
                    state.exp_avg_sq);
  } else {
    ReplicatedSgd(settings, update, state.gradient, state.parameter, state.exp_avg);
  }
}

void ApplySharded(const OptimizerDescription& settings, int64_t update, GoldenState& state) {
  ApplyUpdate(settings, update, static_cast<int64_t>(state.parameter.size()), state.gradient.data(),
              state.parameter.data(), state.exp_avg.data(), state.exp_avg_sq.data());
}

TEST(ReplicatedOptimizer, AgreesWithPyTorch) {
  const std::vector<GoldenDistance> distances = DistancesFromGolden(ApplyReplicated);
  EXPECT_EQ(distances.size(), 22u);
  for (const GoldenDistance& distance : distances) {
    EXPECT_LE(distance.parameter_ulps, kGoldenUlps) << distance.name;
    EXPECT_LE(distance.exp_avg_ulps, kGoldenUlps) << distance.name;
    EXPECT_LE(distance.exp_avg_sq_ulps, kGoldenUlps) << distance.name;
  }
}

GoldenState MixedState(size_t elements) {
  GoldenState state;
  uint32_t bits = 3;
  const auto next = [&bits] {
    bits = bits * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
  };
  for (size_t i = 0; i < elements; ++i) {
    state.gradient.push_back(next());
    state.parameter.push_back(next());
    state.exp_avg.push_back(0);
    state.exp_avg_sq.push_back(0);
  }
  return state;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(ReplicatedOptimizer, AgreesWithTheShardedTrainersBitForBit) {
  std::vector<OptimizerDescription> all(5);
  all[1].beta1 = 0.3;
  all[1].epsilon = 1e-3;
  all[2].weight_decay = 0;
  all[3].kind = OptimizerKind::kSgd;
  all[4].kind = OptimizerKind::kSgd;
  all[4].momentum = 0;
  for (size_t kind = 0; kind < all.size(); ++kind) {
    SCOPED_TRACE(kind);
    GoldenState replicated = MixedState(1003);
    GoldenState sharded = replicated;
    for (int64_t update = 1; update <= 20; ++update) {
      for (size_t i = 0; i < replicated.gradient.size(); ++i) {
        replicated.gradient[i] = std::sin(static_cast<float>(i * update)) *
                                 std::ldexp(1.0f, static_cast<int>(i % 60) - 50);
      }
      sharded.gradient = replicated.gradient;
      ApplyReplicated(all[kind], update, replicated);
      ApplySharded(all[kind], update, sharded);
      ASSERT_TRUE(SameBits(replicated.parameter, sharded.parameter)) << "update " << update;
      ASSERT_TRUE(SameBits(replicated.exp_avg, sharded.exp_avg)) << "update " << update;
      ASSERT_TRUE(SameBits(replicated.exp_avg_sq, sharded.exp_avg_sq)) << "update " << update;
    }
  }
}

}  // namespace
}  // namespace shardproof
