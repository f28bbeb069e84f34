// The factors that update kernels get, in plain loops on the host, against ApplyUpdate.
#include "trainer/engines/cuda/update_factors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "trainer/optimizer/optimizer.h"

namespace shardproof {
namespace {

constexpr int64_t kElements = 257;

struct State {
  std::vector<float> gradient, parameter, exp_avg, exp_avg_sq;
};

State MixedState() {
  State state;
  uint32_t bits = 11;
  const auto next = [&bits] {
    bits = bits * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
  };
  for (int64_t i = 0; i < kElements; ++i) {
    state.gradient.push_back(next());
    state.parameter.push_back(next());
    state.exp_avg.push_back(next());
    state.exp_avg_sq.push_back(std::fabs(next()));
  }
  return state;
}

State Applied(const OptimizerDescription& optimizer, int64_t update) {
  State state = MixedState();
  ApplyUpdate(optimizer, update, kElements, state.gradient.data(), state.parameter.data(),
              state.exp_avg.data(), state.exp_avg_sq.data());
  return state;
}

void ExpectSameBits(const std::vector<float>& actual, const std::vector<float>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(float)), 0)
        << "element " << i << ": " << actual[i] << " is not " << expected[i];
  }
}

void ExpectSameBits(const State& actual, const State& expected) {
  ExpectSameBits(actual.parameter, expected.parameter);
  ExpectSameBits(actual.exp_avg, expected.exp_avg);
  ExpectSameBits(actual.exp_avg_sq, expected.exp_avg_sq);
}

// Settings whose float32 roundings differ from their doubles, and PyTorch's defaults.
std::vector<OptimizerDescription> Settings(OptimizerKind kind) {
  OptimizerDescription defaults;
  defaults.kind = kind;
  OptimizerDescription odd = defaults;
  odd.learning_rate = 0.0123;
  odd.beta1 = 0.77;
  odd.beta2 = 0.9371;
  odd.epsilon = 3e-5;
  odd.weight_decay = 0.137;
  odd.momentum = 0.613;
  return {defaults, odd};
}

TEST(UpdateFactors, AdamWInAPlainLoopHasTheBitsOfApplyUpdate) {
  for (const OptimizerDescription& optimizer : Settings(OptimizerKind::kAdamW)) {
    for (const int64_t update : {1, 2, 17, 1000000}) {
      const cuda::AdamWFactors f = AdamWFactorsOf(optimizer, update);
      State state = MixedState();
      for (int64_t i = 0; i < kElements; ++i) {
        const float g = state.gradient[i];
        const float m = state.exp_avg[i] + (g - state.exp_avg[i]) * f.one_minus_beta1;
        const float v = state.exp_avg_sq[i] * f.beta2 + (g * g) * f.one_minus_beta2;
        state.exp_avg[i] = m;
        state.exp_avg_sq[i] = v;
        state.parameter[i] = state.parameter[i] * f.decay -
                             f.step_size * (m / (std::sqrt(v) / f.root_correction2 + f.epsilon));
      }
      ExpectSameBits(state, Applied(optimizer, update));
    }
  }
}

TEST(UpdateFactors, SgdInAPlainLoopHasTheBitsOfApplyUpdate) {
  for (OptimizerDescription optimizer : Settings(OptimizerKind::kSgd)) {
    for (const bool with_momentum : {true, false}) {
      if (!with_momentum) optimizer.momentum = 0;
      for (const int64_t update : {1, 2, 17}) {
        const cuda::SgdFactors f = SgdFactorsOf(optimizer, update);
        State state = MixedState();
        for (int64_t i = 0; i < kElements; ++i) {
          float g = state.gradient[i] + f.weight_decay * state.parameter[i];
          if (with_momentum) {
            if (!f.first_update) g = f.momentum * state.exp_avg[i] + g;
            state.exp_avg[i] = g;
          }
          state.parameter[i] = state.parameter[i] - f.learning_rate * g;
        }
        ExpectSameBits(state, Applied(optimizer, update));
      }
    }
  }
}

}  // namespace
}  // namespace shardproof
