// The oracle is the specification, so its test spells out what it must compute: each order of
// sums by hand, tied and frozen tensors, the mean, the losses.
#include "trainer/replicated/replicated_trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "trainer/model/model_compute.h"
#include "trainer/model/probe.h"
#include "trainer/replicated/replicated_optimizer.h"

namespace shardproof {
namespace {

using Values = std::vector<float>;

// An MLP 5-7-6-3 with bias on 3 ranks.
RunDescription MlpRun() {
  RunDescription run;
  const int64_t widths[] = {5, 7, 6, 3};
  for (int32_t layer = 0; layer < 3; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    const int64_t in = widths[layer], out = widths[layer + 1];
    run.model.tensors.push_back({name + ".weight", {out, in}, in, true, {}});
    run.model.tensors.push_back({name + ".bias", {out}, in, true, {}});
    run.model.stages.push_back({name, {2 * layer, 2 * layer + 1}});
  }
  run.sharding.world_size = WorldSize{3};
  run.data.micro_batch_size = 4;
  run.data.num_micro_batches = 3;
  return run;
}

// Stage 0 uses tensors 0 and 1, stage 1 tensor 2, stage 2 tensors 1 and 0 again; 3 is frozen.
RunDescription ProbeRun() {
  RunDescription run;
  run.model.kind = ModelKind::kProbe;
  run.model.tensors = {{"embedding", {4, 3}, 3, true, {"head"}},
                       {"shared", {5}, 1, true, {"shared2"}},
                       {"own", {2, 2, 2}, 1, true, {}},
                       {"frozen", {3}, 1, false, {}}};
  run.model.stages = {{"first", {0, 1}}, {"middle", {2, 3}}, {"last", {1, 0}}};
  run.sharding.world_size = WorldSize{4};
  run.data.num_micro_batches = 2;
  return run;
}

std::unique_ptr<ReplicatedTrainer> Make(const RunDescription& run) {
  auto trainer = ReplicatedTrainer::Create(run);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return *std::move(trainer);
}

Values Copy(const float* values, size_t count) { return Values(values, values + count); }

bool SameBits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<Values> InitialParameters(const RunDescription& run) {
  std::vector<Values> parameters;
  for (size_t tensor = 0; tensor < run.model.tensors.size(); ++tensor) {
    const int64_t elements = Elements(run.model.tensors[tensor]);
    parameters.emplace_back(static_cast<size_t>(elements));
    FillInitialValues(run, static_cast<int32_t>(tensor), {0, elements}, parameters.back().data());
  }
  return parameters;
}

struct MicroBatchResult {
  std::vector<Values> gradients;  // by tensor
  double loss = 0;
};

// One rank's micro-batch of the MLP, whose stage i has tensors 2i and 2i + 1.
MicroBatchResult RunMlp(const RunDescription& run, const std::vector<Values>& parameters,
                        const MicroBatch& micro_batch) {
  const auto compute = *MakeModelCompute(run);
  const int32_t stages = static_cast<int32_t>(run.model.stages.size());
  std::vector<Values> boundaries;
  for (int32_t b = 0; b <= stages; ++b) {
    boundaries.emplace_back(compute->Width(b) * run.data.micro_batch_size);
  }
  const auto of_stage = [&](int32_t stage) {
    return std::vector<const float*>{parameters[2 * stage].data(),
                                     parameters[2 * stage + 1].data()};
  };
  compute->LoadInput(micro_batch, boundaries[0].data());
  for (int32_t stage = 0; stage < stages; ++stage) {
    compute->Forward(stage, of_stage(stage), boundaries[stage].data(),
                     boundaries[stage + 1].data());
  }
  MicroBatchResult result;
  for (const Values& parameter : parameters) result.gradients.emplace_back(parameter.size());
  Values out_gradient(boundaries.back().size());
  result.loss = compute->Loss(micro_batch, boundaries.back().data(), out_gradient.data());
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    Values in_gradient(boundaries[stage].size());
    const std::vector<float*> gradients = {result.gradients[2 * stage].data(),
                                           result.gradients[2 * stage + 1].data()};
    compute->Backward(micro_batch, stage, of_stage(stage), boundaries[stage].data(),
                      boundaries[stage + 1].data(), out_gradient.data(), in_gradient.data(),
                      gradients);
    out_gradient = in_gradient;
  }
  return result;
}

// The gradient of `tensor` from all results[rank][micro_batch], 3 ranks and 3 micro-batches,
// with every addition of the order written out.
Values SumByHand(const RunDescription& run,
                 const std::vector<std::vector<MicroBatchResult>>& results, size_t tensor) {
  const float scale = static_cast<float>(1.0 / 9);
  const bool before = run.sharding.scale_before_reduce;
  const bool last = run.sharding.grad_sync == GradSync::kLast;
  Values sum(results[0][0].gradients[tensor].size());
  for (size_t i = 0; i < sum.size(); ++i) {
    const auto g = [&](int rank, int micro_batch) {
      return results[rank][micro_batch].gradients[tensor][i];
    };
    if (last && before) {
      sum[i] = (g(0, 0) + g(0, 1) + g(0, 2)) * scale + (g(1, 0) + g(1, 1) + g(1, 2)) * scale +
               (g(2, 0) + g(2, 1) + g(2, 2)) * scale;
    } else if (last) {
      sum[i] = (((g(0, 0) + g(0, 1) + g(0, 2)) + (g(1, 0) + g(1, 1) + g(1, 2))) +
                (g(2, 0) + g(2, 1) + g(2, 2))) *
               scale;
    } else if (before) {
      sum[i] = ((g(0, 0) * scale + g(1, 0) * scale + g(2, 0) * scale) +
                (g(0, 1) * scale + g(1, 1) * scale + g(2, 1) * scale)) +
               (g(0, 2) * scale + g(1, 2) * scale + g(2, 2) * scale);
    } else {
      sum[i] = (((g(0, 0) + g(1, 0) + g(2, 0)) + (g(0, 1) + g(1, 1) + g(2, 1))) +
                (g(0, 2) + g(1, 2) + g(2, 2))) *
               scale;
    }
  }
  return sum;
}

TEST(ReplicatedTrainer, AddsInTheOrderOfEachSetting) {
  for (const GradSync grad_sync : {GradSync::kEvery, GradSync::kLast}) {
    for (const bool before : {false, true}) {
      SCOPED_TRACE(testing::Message() << Name(grad_sync) << ", scale before " << before);
      RunDescription run = MlpRun();
      run.sharding.grad_sync = grad_sync;
      run.sharding.scale_before_reduce = before;
      const auto trainer = Make(run);
      std::vector<Values> parameters = InitialParameters(run);
      std::vector<Values> exp_avg, exp_avg_sq;
      for (const Values& parameter : parameters) exp_avg.emplace_back(parameter.size());
      exp_avg_sq = exp_avg;
      for (int64_t step = 0; step < 3; ++step) {
        std::vector<std::vector<MicroBatchResult>> results(3);
        for (int32_t rank = 0; rank < 3; ++rank) {
          for (int32_t k = 0; k < 3; ++k) {
            results[rank].push_back(RunMlp(run, parameters, {step, Rank{rank}, k}));
          }
        }
        const ReferenceStep& reference = trainer->Step();
        EXPECT_EQ(reference.step, step);
        for (size_t rank = 0; rank < 3; ++rank) {
          EXPECT_EQ(reference.losses[rank],
                    (results[rank][0].loss + results[rank][1].loss + results[rank][2].loss) / 3);
        }
        for (size_t t = 0; t < parameters.size(); ++t) {
          const size_t count = parameters[t].size();
          const ReferenceTensor& tensor = reference.tensors[t];
          EXPECT_TRUE(SameBits(Copy(tensor.previous_parameter, count), parameters[t])) << t;
          const Values gradient = SumByHand(run, results, t);
          EXPECT_TRUE(SameBits(Copy(tensor.gradient, count), gradient)) << t;
          ReplicatedAdamW(run.optimizer, step + 1, gradient, parameters[t], exp_avg[t],
                          exp_avg_sq[t]);
          EXPECT_TRUE(SameBits(Copy(tensor.parameter, count), parameters[t])) << t;
          EXPECT_TRUE(SameBits(Copy(tensor.exp_avg, count), exp_avg[t])) << t;
          EXPECT_TRUE(SameBits(Copy(tensor.exp_avg_sq, count), exp_avg_sq[t])) << t;
          EXPECT_EQ(tensor.updates, step + 1);
        }
      }
    }
  }
}

// The mean over ranks, micro-batches and the given stages' uses, from the probe's definition.
Values ProbeMean(const RunDescription& run, int64_t step, int32_t tensor,
                 const std::vector<int32_t>& stages) {
  const int64_t elements = Elements(run.model.tensors[tensor]);
  Values sum(static_cast<size_t>(elements));
  for (int32_t rank = 0; rank < 4; ++rank) {
    for (int32_t k = 0; k < 2; ++k) {
      for (const int32_t stage : stages) {
        Values one(sum.size());
        FillProbeGradient(run, {step, Rank{rank}, k}, stage, tensor, {0, elements}, one.data());
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
      }
    }
  }
  for (float& value : sum) value /= 8;
  return sum;
}

TEST(ReplicatedTrainer, AddsTheUsesOfTiedTensors) {
  for (const GradSync grad_sync : {GradSync::kEvery, GradSync::kLast}) {
    RunDescription run = ProbeRun();
    run.sharding.grad_sync = grad_sync;
    const auto trainer = Make(run);
    for (int64_t step = 0; step < 3; ++step) {
      const ReferenceStep& reference = trainer->Step();
      EXPECT_EQ(Copy(reference.tensors[0].gradient, 12), ProbeMean(run, step, 0, {0, 2}));
      EXPECT_EQ(Copy(reference.tensors[1].gradient, 5), ProbeMean(run, step, 1, {0, 2}));
      EXPECT_EQ(Copy(reference.tensors[2].gradient, 8), ProbeMean(run, step, 2, {1}));
    }
  }
}

TEST(ReplicatedTrainer, LeavesFrozenTensorsAlone) {
  const RunDescription run = ProbeRun();
  const auto trainer = Make(run);
  const Values initial = InitialParameters(run)[3];
  for (int64_t step = 0; step < 3; ++step) {
    const ReferenceTensor& frozen = trainer->Step().tensors[3];
    EXPECT_EQ(Copy(frozen.parameter, 3), initial);
    EXPECT_EQ(Copy(frozen.previous_parameter, 3), initial);
    EXPECT_EQ(frozen.gradient, nullptr);
    EXPECT_EQ(frozen.exp_avg, nullptr);
    EXPECT_EQ(frozen.exp_avg_sq, nullptr);
    EXPECT_EQ(frozen.updates, 0);
  }
}

TEST(ReplicatedTrainer, FrozenAndTiedTogetherIsStillFrozen) {
  RunDescription run = ProbeRun();
  run.model.tensors[0].trainable = false;
  const auto trainer = Make(run);
  EXPECT_EQ(trainer->Step().tensors[0].gradient, nullptr);
  EXPECT_EQ(Copy(trainer->Step().tensors[0].parameter, 12), InitialParameters(run)[0]);
}

TEST(ReplicatedTrainer, SgdShowsItsMomentumAndNothingElse) {
  RunDescription run = ProbeRun();
  run.optimizer.kind = OptimizerKind::kSgd;
  const auto with_momentum = Make(run);
  EXPECT_NE(with_momentum->Step().tensors[0].exp_avg, nullptr);
  EXPECT_EQ(with_momentum->Step().tensors[0].exp_avg_sq, nullptr);
  run.optimizer.momentum = 0;
  const auto plain = Make(run);
  EXPECT_EQ(plain->Step().tensors[0].exp_avg, nullptr);
  EXPECT_EQ(plain->Step().tensors[0].updates, 2);
}

TEST(ReplicatedTrainer, SgdOnOneRankSubtractsTheGradient) {
  RunDescription run = ProbeRun();
  run.sharding.world_size = WorldSize{1};
  run.data.num_micro_batches = 1;
  run.optimizer = {
      .kind = OptimizerKind::kSgd, .learning_rate = 0.5, .weight_decay = 0, .momentum = 0};
  const auto trainer = Make(run);
  const ReferenceTensor& tensor = trainer->Step().tensors[2];
  Values gradient(8);
  FillProbeGradient(run, {0, Rank{0}, 0}, 1, 2, {0, 8}, gradient.data());
  EXPECT_EQ(Copy(tensor.gradient, 8), gradient);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(tensor.parameter[i], tensor.previous_parameter[i] - 0.5f * gradient[i]);
  }
}

TEST(ReplicatedTrainer, LossesFall) {
  RunDescription run = MlpRun();
  run.optimizer.learning_rate = 0.01;
  const auto trainer = Make(run);
  const auto mean = [](const ReferenceStep& step) {
    return (step.losses[0] + step.losses[1] + step.losses[2]) / 3;
  };
  // The targets are noise, so the best a model can do is to predict their mean, 0, for a loss
  // of 1/3: it starts above and must come near.
  for (int step = 0; step < 200; ++step) trainer->Step();
  double late = 0;
  for (int step = 0; step < 50; ++step) late += mean(trainer->Step()) / 50;
  EXPECT_NEAR(late, 1.0 / 3, 0.03);
}

TEST(ReplicatedTrainer, RefusesWhatItDoesNotCompute) {
  RunDescription run = MlpRun();
  run.model.kind = ModelKind::kOpaque;
  EXPECT_EQ(ReplicatedTrainer::Create(run).status().code(), absl::StatusCode::kUnimplemented);
  run = MlpRun();
  run.sharding.precision.moment = Dtype::kBFloat16;
  EXPECT_EQ(ReplicatedTrainer::Create(run).status().message(),
            "dtype bfloat16: the oracle computes in float32; accepted is float32");
}

// Arithmetic of one's own, which tells itself by its loss.
class OtherArithmetic : public ModelCompute {
 public:
  explicit OtherArithmetic(const RunDescription& run) : inner_(*MakeModelCompute(run)) {}
  int64_t Width(int32_t boundary) const override { return inner_->Width(boundary); }
  void LoadInput(const MicroBatch& micro_batch, float* input) const override {
    inner_->LoadInput(micro_batch, input);
  }
  void Forward(int32_t stage, absl::Span<const float* const> parameters, const float* in,
               float* out) const override {
    inner_->Forward(stage, parameters, in, out);
  }
  double Loss(const MicroBatch& micro_batch, const float* output,
              float* output_gradient) const override {
    inner_->Loss(micro_batch, output, output_gradient);
    return 42;
  }
  void Backward(const MicroBatch& micro_batch, int32_t stage,
                absl::Span<const float* const> parameters, const float* in, const float* out,
                float* out_gradient, float* in_gradient,
                absl::Span<float* const> gradients) const override {
    inner_->Backward(micro_batch, stage, parameters, in, out, out_gradient, in_gradient, gradients);
  }

 private:
  const std::unique_ptr<ModelCompute> inner_;
};

TEST(ReplicatedTrainer, ComputesWithTheArithmeticThatItIsGiven) {
  RunDescription run = MlpRun();
  const auto trainer = ReplicatedTrainer::Create(run, std::make_unique<OtherArithmetic>(run));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  for (const double loss : (*trainer)->Step().losses) EXPECT_EQ(loss, 42);
  auto arithmetic = std::make_unique<OtherArithmetic>(run);
  run.sharding.precision.reduce = Dtype::kBFloat16;
  EXPECT_EQ(ReplicatedTrainer::Create(run, std::move(arithmetic)).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(ReplicatedTrainer, ClipsTheMeanGradientToTheNorm) {
  RunDescription run = ProbeRun();
  const auto plain = ReplicatedTrainer::Create(run);
  ASSERT_TRUE(plain.ok());
  const ReferenceStep& whole = (*plain)->Step();
  double squares = 0;
  for (size_t tensor = 0; tensor < run.model.tensors.size(); ++tensor) {
    const float* gradient = whole.tensors[tensor].gradient;
    if (gradient == nullptr) continue;
    for (int64_t i = 0; i < Elements(run.model.tensors[tensor]); ++i) {
      squares += static_cast<double>(gradient[i]) * gradient[i];
    }
  }
  run.clip_grad_norm = std::sqrt(squares) / 4;
  const auto clipped = ReplicatedTrainer::Create(run);
  ASSERT_TRUE(clipped.ok());
  const ReferenceStep& step = (*clipped)->Step();
  EXPECT_DOUBLE_EQ(step.gradient_norm, std::sqrt(squares));
  EXPECT_NEAR(step.clip_coefficient, 0.25, 1e-6);
  EXPECT_EQ(step.tensors[0].gradient[0], whole.tensors[0].gradient[0] * step.clip_coefficient);
}

TEST(ReplicatedTrainer, GoesOnWithTheTrainersCoefficientOnlyWhereItIsNear) {
  RunDescription run = ProbeRun();
  run.clip_grad_norm = 0.01;
  const auto trainer = ReplicatedTrainer::Create(run);
  ASSERT_TRUE(trainer.ok());
  const float own = (*trainer)->Step().clip_coefficient;
  const float next = std::nextafter(own, 1.0f);
  const auto near = ReplicatedTrainer::Create(run);
  EXPECT_EQ((*near)->Step(next).used_coefficient, next);
  const auto far = ReplicatedTrainer::Create(run);
  EXPECT_EQ((*far)->Step(own * 1.01f).used_coefficient, own);
}

TEST(ReplicatedTrainer, LeavesWhatNobodyUsesAlone) {
  RunDescription run = ProbeRun();
  run.optimizer.weight_decay = 0.1;
  run.usage = {{.tensor = 0, .steps = StepUse::kOdd}};
  const auto trainer = ReplicatedTrainer::Create(run);
  ASSERT_TRUE(trainer.ok());
  const ReferenceTensor& tensor = (*trainer)->Step().tensors[0];
  const int64_t elements = Elements(run.model.tensors[0]);
  EXPECT_EQ(Copy(tensor.parameter, elements), Copy(tensor.previous_parameter, elements));
  EXPECT_EQ(Copy(tensor.gradient, elements), std::vector<float>(elements, 0.0f));
  EXPECT_EQ(tensor.updates, 0);
  EXPECT_EQ((*trainer)->Step().tensors[0].updates, 1);
  EXPECT_NE(Copy(tensor.parameter, elements), Copy(tensor.previous_parameter, elements));
}

TEST(ReplicatedTrainer, GivesTheMagnitudeOfContributionsWhenAsked) {
  const RunDescription run = ProbeRun();
  const auto plain = ReplicatedTrainer::Create(run);
  EXPECT_EQ((*plain)->Step().tensors[0].gradient_magnitude, nullptr);
  const auto trainer = ReplicatedTrainer::Create(run, {.gradient_magnitude = true});
  ASSERT_TRUE(trainer.ok());
  const ReferenceTensor& tensor = (*trainer)->Step().tensors[0];
  double magnitudes = 0;
  double gradients = 0;
  for (int64_t i = 0; i < Elements(run.model.tensors[0]); ++i) {
    EXPECT_GE(tensor.gradient_magnitude[i], std::abs(tensor.gradient[i]) * 0.9999f);
    magnitudes += tensor.gradient_magnitude[i];
    gradients += std::abs(tensor.gradient[i]);
  }
  EXPECT_GT(magnitudes, 1.5 * gradients) << "integers of both signs cancel in the mean";
}

TEST(ReplicatedTrainer, RequiredBytesCountWhatItAllocates) {
  RunDescription run = ProbeRun();
  // Parameter, previous, gradient, group sum, contribution and two moments are 7; tied
  // tensors have one more, a frozen one has its parameter only.
  EXPECT_EQ(ReplicatedTrainer::RequiredBytes(run), 4 * (12 * 8 + 5 * 8 + 8 * 7 + 3));
  run.sharding.world_size = WorldSize{1};
  run.data.num_micro_batches = 1;
  EXPECT_EQ(ReplicatedTrainer::RequiredBytes(run), 4 * (12 * 6 + 5 * 6 + 8 * 5 + 3));
  run = MlpRun();
  const int64_t elements = 7 * 5 + 7 + 6 * 7 + 6 + 3 * 6 + 3;
  const int64_t activations = 4 * (5 + 7 + 6 + 3) + 2 * 4 * 7;
  EXPECT_EQ(ReplicatedTrainer::RequiredBytes(run), 4 * (elements * 7 + activations));
  run.model.tensors[0].shape = {int64_t{1} << 31, int64_t{1} << 31};
  EXPECT_EQ(ReplicatedTrainer::RequiredBytes(run), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace shardproof
