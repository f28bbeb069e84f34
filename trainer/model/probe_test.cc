// The probe's gradients must tell ranks, micro-batches and steps apart, and add up exactly.
#include "trainer/model/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace shardproof {
namespace {

RunDescription ProbeRun() {
  RunDescription run;
  run.model.kind = ModelKind::kProbe;
  run.model.tensors = {{.name = "t0", .shape = {10, 3}, .aliases = {}},
                       {.name = "t1", .shape = {7}, .trainable = false, .aliases = {}},
                       {.name = "t2", .shape = {2, 2, 2}, .aliases = {}}};
  run.model.stages = {{"s0", {0, 1}}, {"s1", {2, 0}}};
  return run;
}

std::vector<float> Gradient(const MicroBatch& micro_batch, int32_t stage, int32_t tensor) {
  std::vector<float> values(30);
  FillProbeGradient(ProbeRun(), micro_batch, stage, tensor, {0, 30}, values.data());
  return values;
}

TEST(Probe, GradientsAreIntegersWithinEightAndNotConstant) {
  const std::vector<float> values = Gradient({}, 0, 0);
  for (const float value : values) {
    EXPECT_EQ(value, std::round(value));
    EXPECT_LE(std::fabs(value), 8.0f);
  }
  EXPECT_GT(std::set<float>(values.begin(), values.end()).size(), 5u);
}

TEST(Probe, GradientsDifferByEverythingTheyAreAFunctionOf) {
  std::set<std::vector<float>> seen;
  for (int64_t step = 0; step < 4; ++step) {
    for (int32_t rank = 0; rank < 8; ++rank) {
      for (int32_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
        for (int32_t stage = 0; stage < 2; ++stage) {
          for (int32_t tensor = 0; tensor < 3; ++tensor) {
            seen.insert(Gradient({step, Rank{rank}, micro_batch}, stage, tensor));
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u * 8 * 3 * 2 * 3);
}

TEST(Probe, SumsOf4096ContributionsAreExactInAnyOrder) {
  std::vector<float> forth(30), back(30);
  std::vector<int64_t> exact(30);
  for (int32_t rank = 0; rank < 4096; ++rank) {
    const std::vector<float> up = Gradient({0, Rank{rank}, 0}, 0, 0);
    const std::vector<float> down = Gradient({0, Rank{4095 - rank}, 0}, 0, 0);
    for (size_t i = 0; i < 30; ++i) {
      forth[i] += up[i];
      back[i] += down[i];
      exact[i] += static_cast<int64_t>(up[i]);
    }
  }
  EXPECT_EQ(forth, back);
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(forth[i], static_cast<float>(exact[i]));
}

TEST(Probe, BackwardWritesTheGradientsOfItsStageAndSkipsFrozenTensors) {
  const RunDescription run = ProbeRun();
  const std::unique_ptr<ModelCompute> probe = MakeProbe(run);
  const MicroBatch micro_batch = {2, Rank{3}, 1};
  std::vector<float> first(30, 99.0f), second(8, 99.0f);
  std::vector<float*> gradients = {first.data(), nullptr};
  probe->Backward(micro_batch, 0, {}, nullptr, nullptr, nullptr, nullptr, gradients);
  EXPECT_EQ(first, Gradient(micro_batch, 0, 0));
  gradients = {second.data(), first.data()};
  probe->Backward(micro_batch, 1, {}, nullptr, nullptr, nullptr, nullptr, gradients);
  EXPECT_EQ(first, Gradient(micro_batch, 1, 0));
  std::vector<float> expected = Gradient(micro_batch, 1, 2);
  expected.resize(8);
  EXPECT_EQ(second, expected);
}

TEST(Probe, HasNoActivationsAndNoLoss) {
  const RunDescription run = ProbeRun();
  const std::unique_ptr<ModelCompute> probe = MakeProbe(run);
  for (int32_t boundary = 0; boundary <= 2; ++boundary) EXPECT_EQ(probe->Width(boundary), 0);
  probe->LoadInput({}, nullptr);
  probe->Forward(0, {}, nullptr, nullptr);
  EXPECT_EQ(probe->Loss({}, nullptr, nullptr), 0);
}

}  // namespace
}  // namespace shardproof
