// The MLP's gradients against finite differences of an independent forward in double, layer
// by layer and through the whole model.
#include "trainer/model/mlp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "trainer/model/data.h"

namespace shardproof {
namespace {

RunDescription MlpRun(const std::vector<int64_t>& widths, bool bias, int64_t batch) {
  RunDescription run;
  run.data.micro_batch_size = batch;
  run.sharding.world_size = WorldSize{3};
  for (size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    Stage stage = {name, {static_cast<int32_t>(run.model.tensors.size())}};
    run.model.tensors.push_back({.name = name + ".weight",
                                 .shape = {widths[layer + 1], widths[layer]},
                                 .fan_in = widths[layer],
                                 .aliases = {}});
    if (bias) {
      stage.tensors.push_back(stage.tensors[0] + 1);
      run.model.tensors.push_back({.name = name + ".bias",
                                   .shape = {widths[layer + 1]},
                                   .fan_in = widths[layer],
                                   .aliases = {}});
    }
    run.model.stages.push_back(stage);
  }
  return run;
}

using Values = std::vector<double>;

// Everything of one micro-batch, from the model under test, in double.
struct Problem {
  RunDescription run;
  MicroBatch micro_batch = {1, Rank{2}, 0};
  std::unique_ptr<ModelCompute> compute;
  std::vector<std::vector<float>> parameters;  // by tensor
  std::vector<std::vector<float>> boundaries;

  std::vector<const float*> StageParameters(int32_t stage) const {
    std::vector<const float*> result;
    for (const int32_t tensor : run.model.stages[stage].tensors) {
      result.push_back(parameters[tensor].data());
    }
    return result;
  }
};

std::unique_ptr<Problem> MakeProblem(const std::vector<int64_t>& widths, bool bias, int64_t batch) {
  auto problem = std::make_unique<Problem>();
  problem->run = MlpRun(widths, bias, batch);
  problem->compute = *MakeMlp(problem->run);
  for (size_t tensor = 0; tensor < problem->run.model.tensors.size(); ++tensor) {
    const int64_t elements = Elements(problem->run.model.tensors[tensor]);
    problem->parameters.emplace_back(static_cast<size_t>(elements));
    FillInitialValues(problem->run, static_cast<int32_t>(tensor), {0, elements},
                      problem->parameters.back().data());
  }
  for (const int64_t width : widths) problem->boundaries.emplace_back(batch * width);
  problem->compute->LoadInput(problem->micro_batch, problem->boundaries[0].data());
  for (size_t stage = 0; stage < problem->run.model.stages.size(); ++stage) {
    problem->compute->Forward(
        static_cast<int32_t>(stage), problem->StageParameters(static_cast<int32_t>(stage)),
        problem->boundaries[stage].data(), problem->boundaries[stage + 1].data());
  }
  return problem;
}

// Stage `stage` in double: the test's own Linear and ReLU.
Values ForwardInDouble(const Problem& problem, int32_t stage, const Values& in,
                       const std::vector<Values>& parameters) {
  const std::vector<int32_t>& tensors = problem.run.model.stages[stage].tensors;
  const std::vector<int64_t>& shape = problem.run.model.tensors[tensors[0]].shape;
  const bool last = stage + 1 == static_cast<int32_t>(problem.run.model.stages.size());
  Values out;
  for (int64_t row = 0; row < problem.run.data.micro_batch_size; ++row) {
    for (int64_t output = 0; output < shape[0]; ++output) {
      double sum = tensors.size() > 1 ? parameters[tensors[1]][output] : 0;
      for (int64_t i = 0; i < shape[1]; ++i) {
        sum += in[row * shape[1] + i] * parameters[tensors[0]][output * shape[1] + i];
      }
      out.push_back(last ? sum : std::max(sum, 0.0));
    }
  }
  return out;
}

double LossInDouble(const Problem& problem, const Values& output) {
  const int64_t batch = problem.run.data.micro_batch_size;
  const int64_t width = static_cast<int64_t>(output.size()) / batch;
  const uint64_t first = FirstSample(problem.run, problem.micro_batch);
  double sum = 0;
  for (int64_t row = 0; row < batch; ++row) {
    std::vector<float> target(width);
    FillUniform(StreamKey(problem.run.data.seed, StreamPurpose::kTarget, first + row), {0, width},
                1, target.data());
    for (int64_t i = 0; i < width; ++i) sum += std::pow(output[row * width + i] - target[i], 2);
  }
  return sum / static_cast<double>(output.size());
}

std::vector<Values> InDouble(const std::vector<std::vector<float>>& tensors) {
  std::vector<Values> result;
  for (const std::vector<float>& tensor : tensors)
    result.emplace_back(tensor.begin(), tensor.end());
  return result;
}

double ModelLossInDouble(const Problem& problem, const std::vector<Values>& parameters) {
  Values values(problem.boundaries[0].begin(), problem.boundaries[0].end());
  for (size_t stage = 0; stage < problem.run.model.stages.size(); ++stage) {
    values = ForwardInDouble(problem, static_cast<int32_t>(stage), values, parameters);
  }
  return LossInDouble(problem, values);
}

// The central difference of `function` by `value`: exact to about 1e-9 for these functions,
// unless a ReLU switches within the step, which these seeds do not meet.
template <typename Function>
double Difference(double& value, const Function& function) {
  constexpr double kStep = 1e-6;
  const double centre = value;
  value = centre + kStep;
  const double up = function();
  value = centre - kStep;
  const double down = function();
  value = centre;
  return (up - down) / (2 * kStep);
}

// A float32 gradient has errors of some 2^-24 of its largest terms.
constexpr double kTolerance = 2e-6;

struct MlpCase {
  std::vector<int64_t> widths;
  bool bias;
  int64_t batch;
};

const MlpCase kCases[] = {{{3, 5, 2}, true, 4},
                          {{7, 9, 8, 4, 3}, true, 3},
                          {{6, 6, 6, 6}, false, 2},
                          {{1, 1}, true, 1},
                          {{33, 17, 5, 1}, true, 1}};

TEST(Mlp, ForwardAndLossAgreeWithDouble) {
  for (const MlpCase& c : kCases) {
    const auto problem = MakeProblem(c.widths, c.bias, c.batch);
    const double expected = ModelLossInDouble(*problem, InDouble(problem->parameters));
    std::vector<float> gradient(problem->boundaries.back().size());
    EXPECT_NEAR(problem->compute->Loss(problem->micro_batch, problem->boundaries.back().data(),
                                       gradient.data()),
                expected, 1e-6);
  }
}

TEST(Mlp, BackwardOfEachStageIsTheFiniteDifferenceOfItsForward) {
  for (const MlpCase& c : kCases) {
    const auto problem = MakeProblem(c.widths, c.bias, c.batch);
    std::vector<Values> parameters = InDouble(problem->parameters);
    for (int32_t stage = 0; stage < static_cast<int32_t>(problem->run.model.stages.size());
         ++stage) {
      SCOPED_TRACE(stage);
      const std::vector<float>& in = problem->boundaries[stage];
      const std::vector<float>& out = problem->boundaries[stage + 1];
      std::vector<float> out_gradient(out.size()), in_gradient(in.size());
      FillUniform(77, {0, static_cast<int64_t>(out.size())}, 1, out_gradient.data());
      const Values weights(out_gradient.begin(), out_gradient.end());
      std::vector<std::vector<float>> gradients;
      std::vector<float*> pointers;
      const std::vector<int32_t>& tensors = problem->run.model.stages[stage].tensors;
      for (const int32_t tensor : tensors) gradients.emplace_back(parameters[tensor].size());
      for (std::vector<float>& gradient : gradients) pointers.push_back(gradient.data());
      problem->compute->Backward(problem->micro_batch, stage, problem->StageParameters(stage),
                                 in.data(), out.data(), out_gradient.data(), in_gradient.data(),
                                 pointers);
      Values in_double(in.begin(), in.end());
      const auto function = [&] {
        const Values y = ForwardInDouble(*problem, stage, in_double, parameters);
        double sum = 0;
        for (size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
        return sum;
      };
      // ReLU's derivative has two answers at inputs that a hidden ReLU made exactly 0, but the
      // stage's own inputs are not behind its ReLU.
      for (size_t i = 0; i < in.size(); ++i) {
        EXPECT_NEAR(in_gradient[i], Difference(in_double[i], function), kTolerance);
      }
      for (size_t t = 0; t < tensors.size(); ++t) {
        for (size_t i = 0; i < gradients[t].size(); ++i) {
          EXPECT_NEAR(gradients[t][i], Difference(parameters[tensors[t]][i], function), kTolerance);
        }
      }
    }
  }
}

TEST(Mlp, BackwardThroughTheModelIsTheFiniteDifferenceOfTheLoss) {
  for (const MlpCase& c : kCases) {
    const auto problem = MakeProblem(c.widths, c.bias, c.batch);
    size_t widest = 0;
    for (const auto& boundary : problem->boundaries) widest = std::max(widest, boundary.size());
    std::vector<float> out_gradient(widest), in_gradient(widest);
    problem->compute->Loss(problem->micro_batch, problem->boundaries.back().data(),
                           out_gradient.data());
    std::vector<Values> parameters = InDouble(problem->parameters);
    const auto function = [&] { return ModelLossInDouble(*problem, parameters); };
    for (int32_t stage = static_cast<int32_t>(problem->run.model.stages.size()) - 1; stage >= 0;
         --stage) {
      SCOPED_TRACE(stage);
      const std::vector<int32_t>& tensors = problem->run.model.stages[stage].tensors;
      std::vector<std::vector<float>> gradients;
      std::vector<float*> pointers;
      for (const int32_t tensor : tensors) gradients.emplace_back(parameters[tensor].size());
      for (std::vector<float>& gradient : gradients) pointers.push_back(gradient.data());
      problem->compute->Backward(problem->micro_batch, stage, problem->StageParameters(stage),
                                 problem->boundaries[stage].data(),
                                 problem->boundaries[stage + 1].data(), out_gradient.data(),
                                 stage == 0 ? nullptr : in_gradient.data(), pointers);
      for (size_t t = 0; t < tensors.size(); ++t) {
        for (size_t i = 0; i < gradients[t].size(); ++i) {
          EXPECT_NEAR(gradients[t][i], Difference(parameters[tensors[t]][i], function), kTolerance);
        }
      }
      std::swap(out_gradient, in_gradient);
    }
  }
}

TEST(Mlp, EveryRankMicroBatchAndStepHasItsOwnInputAndTarget) {
  RunDescription run = MlpRun({5, 4}, false, 2);
  run.data.num_micro_batches = 2;
  const auto compute = *MakeMlp(run);
  std::vector<std::vector<float>> seen;
  for (const MicroBatch& micro_batch :
       {MicroBatch{0, Rank{0}, 0}, {0, Rank{1}, 0}, {0, Rank{0}, 1}, {1, Rank{0}, 0}}) {
    std::vector<float> input(10), output(8), gradient(8);
    compute->LoadInput(micro_batch, input.data());
    compute->Loss(micro_batch, output.data(), gradient.data());
    for (const std::vector<float>* values : {&input, &gradient}) {
      EXPECT_EQ(std::count(seen.begin(), seen.end(), *values), 0);
      seen.push_back(*values);
    }
  }
}

TEST(Mlp, FrozenTensorsAndUnneededInputsMayHaveNullGradients) {
  const auto problem = MakeProblem({3, 5, 2}, true, 4);
  std::vector<float> out_gradient(problem->boundaries[1].size(), 1.0f), bias(5);
  std::vector<float*> gradients = {nullptr, bias.data()};
  problem->compute->Backward(problem->micro_batch, 0, problem->StageParameters(0),
                             problem->boundaries[0].data(), problem->boundaries[1].data(),
                             out_gradient.data(), nullptr, gradients);
  EXPECT_NE(bias, std::vector<float>(5));
}

TEST(Mlp, ShapesThatDoNotFitAreNamed) {
  RunDescription run = MlpRun({3, 5, 2}, true, 4);
  run.model.tensors[2].shape = {2, 6};
  EXPECT_EQ(MakeMlp(run).status().message(),
            "mlp stage 'layers.1': tensor 'layers.1.weight' has shape [2, 6]; accepted is "
            "[out, 5]");
  run.model.tensors[2].shape = {10};
  EXPECT_EQ(MakeMlp(run).status().message(),
            "mlp stage 'layers.1': tensor 'layers.1.weight' has shape [10]; accepted is a weight "
            "[out, in]");
  run.model.tensors[2].shape = {2, 5};
  run.model.tensors[3].shape = {3};
  EXPECT_EQ(MakeMlp(run).status().message(),
            "mlp stage 'layers.1': tensor 'layers.1.bias' has shape [3]; accepted is a bias [2]");
  run.model.stages[0].tensors = {0, 1, 2};
  EXPECT_EQ(MakeMlp(run).status().message(),
            "mlp stage 'layers.0' has 3 tensors; accepted is a weight, or a weight and a bias");
}

}  // namespace
}  // namespace shardproof
