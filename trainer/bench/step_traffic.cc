#include "trainer/bench/step_traffic.h"

#include <algorithm>
#include <cstddef>

#include "collectives/traffic_model.h"

namespace shardproof {
namespace {

constexpr int64_t kFloat = 4;

struct LayerShape {
  int64_t in = 0, out = 0;
};

LayerShape ShapeOf(const ModelDescription& model, int32_t stage) {
  const TensorSpec& weight = model.tensors[model.stages[stage].tensors[0]];
  return {weight.shape[1], weight.shape[0]};
}

bool HasBias(const Stage& stage) { return stage.tensors.size() > 1; }

// The stages of a backward operation that gradients reach, last first.
std::vector<int32_t> BackwardStages(const StepPlan& plan, const Op& op) {
  std::vector<int32_t> stages;
  for (int32_t stage = op.stage + op.stage_count - 1; stage >= op.stage; --stage) {
    if (plan.activation_gradients[stage + 1] < 0) break;
    stages.push_back(stage);
  }
  return stages;
}

const SetUse* GradientUse(const StepPlan& plan, const Op& op, int32_t set) {
  if (set < 0) return nullptr;
  for (const SetUse& use : plan.GradientUsesOf(op)) {
    if (use.set == set) return &use;
  }
  return nullptr;
}

// One pass over the plan, which sums up what its operations move.
class Traffic {
 public:
  Traffic(const RunDescription& run, const Placement& placement, const StepPlan& plan)
      : run_(run),
        placement_(placement),
        plan_(plan),
        batch_(run.data.micro_batch_size),
        used_in_(run.model.tensors.size(), -1) {}

  StepTraffic Sum() {
    for (const Op& op : plan_.ops) Add(op);
    return sum_;
  }

 private:
  void Add(const Op& op) {
    switch (op.kind) {
      case OpKind::kForward:
        return Forward(op);
      case OpKind::kBackward:
        return Backward(op);
      case OpKind::kCollective:
        return Collective(op);
      case OpKind::kScale:
      case OpKind::kScaleBy:
        sum_.scale += 2 * kFloat * op.recv.range.count;
        return;
      case OpKind::kAccumulate:
        sum_.accumulate += 3 * kFloat * op.recv.range.count;
        return;
      case OpKind::kCopy:
        sum_.local_copy += 2 * kFloat * op.recv.range.count;
        return;
      case OpKind::kNorm:
        for (const UpdateRange& range : plan_.UpdatesOf(op)) sum_.norm += kFloat * range.count;
        return;
      case OpKind::kOptimizerUpdate:
        return Update(op);
      case OpKind::kLoss:
        return Loss();
      case OpKind::kReshard:
      case OpKind::kRelease:
      case OpKind::kClipCoefficient:
        return;
    }
  }

  bool HasLayers() const { return run_.model.kind == ModelKind::kMlp; }
  int32_t stages() const { return static_cast<int32_t>(run_.model.stages.size()); }
  bool HasRelu(int32_t stage) const { return stage + 1 < stages(); }
  int64_t OutputBytes(int32_t stage) const {
    return kFloat * batch_ * ShapeOf(run_.model, stage).out;
  }

  void Forward(const Op& op) {
    if (!HasLayers()) return;
    if (op.stage == 0) sum_.input += kFloat * batch_ * ShapeOf(run_.model, 0).in;
    for (int32_t stage = op.stage; stage < op.stage + op.stage_count; ++stage) {
      if (HasBias(run_.model.stages[stage])) sum_.bias += 2 * OutputBytes(stage);
      if (HasRelu(stage)) sum_.relu += 2 * OutputBytes(stage);
    }
  }

  void Loss() {
    if (!HasLayers()) return;
    sum_.input += OutputBytes(stages() - 1);
    sum_.loss += 3 * OutputBytes(stages() - 1);
  }

  void Backward(const Op& op) {
    if (op.stage + op.stage_count == stages()) Loss();
    for (int32_t stage : HasLayers() ? BackwardStages(plan_, op) : AllStages(op)) {
      if (HasLayers() && HasRelu(stage)) sum_.relu += 3 * OutputBytes(stage);
      const std::vector<int32_t>& tensors = run_.model.stages[stage].tensors;
      for (size_t i = 0; i < tensors.size(); ++i) Gradient(op, stage, tensors[i], /*bias=*/i > 0);
    }
  }

  static std::vector<int32_t> AllStages(const Op& op) {
    std::vector<int32_t> stages;
    for (int32_t stage = op.stage + op.stage_count - 1; stage >= op.stage; --stage) {
      stages.push_back(stage);
    }
    return stages;
  }

  // A gradient is added where an earlier micro-batch, or a later stage of this one, left one.
  void Gradient(const Op& op, int32_t stage, int32_t tensor, bool bias) {
    const SetUse* const use = GradientUse(plan_, op, placement_.gradient_set[tensor]);
    if (use == nullptr) return;
    if (bias && HasLayers()) sum_.bias += OutputBytes(stage);
    if (use->accumulate || used_in_[tensor] == op.micro_batch) {
      sum_.accumulate += 3 * kFloat * Elements(run_.model.tensors[tensor]);
    }
    used_in_[tensor] = op.micro_batch;
  }

  void Collective(const Op& op) {
    const int64_t payload = PayloadBytes(op.collective, op.dtype, op.elements);
    sum_.bus += BusBytes(op.collective, payload, op.group.count);
    if (op.group.count > 1 || op.send.buffer == op.recv.buffer) return;
    sum_.local_copy += 2 * payload;
  }

  void Update(const Op& op) {
    for (const UpdateRange& update : plan_.UpdatesOf(op)) {
      const int64_t states = (update.exp_avg.buffer >= 0) + (update.exp_avg_sq.buffer >= 0);
      sum_.optimizer += (3 + 2 * states) * kFloat * update.count;
    }
  }

  const RunDescription& run_;
  const Placement& placement_;
  const StepPlan& plan_;
  const int64_t batch_;
  std::vector<int32_t> used_in_;  // by tensor, the micro-batch that has its gradient last
  StepTraffic sum_;
};

}  // namespace

std::vector<Gemm> StepGemms(const RunDescription& run, const Placement& placement,
                            const StepPlan& plan) {
  std::vector<Gemm> gemms;
  if (run.model.kind != ModelKind::kMlp) return gemms;
  const int64_t batch = run.data.micro_batch_size;
  const auto add = [&](const Gemm& gemm) {
    if (gemm.m > 0 && gemm.n > 0 && gemm.k > 0) gemms.push_back(gemm);
  };
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::kForward) {
      for (int32_t stage = op.stage; stage < op.stage + op.stage_count; ++stage) {
        const auto [in, out] = ShapeOf(run.model, stage);
        add({GemmKind::kForward, stage, batch, out, in});
      }
    }
    if (op.kind != OpKind::kBackward) continue;
    for (int32_t stage : BackwardStages(plan, op)) {
      const auto [in, out] = ShapeOf(run.model, stage);
      const int32_t weight = run.model.stages[stage].tensors[0];
      if (GradientUse(plan, op, placement.gradient_set[weight]) != nullptr) {
        add({GemmKind::kWeightGradient, stage, out, in, batch});
      }
      if (plan.activation_gradients[stage] >= 0) {
        add({GemmKind::kInputGradient, stage, batch, in, out});
      }
    }
  }
  return gemms;
}

double Flops(const std::vector<Gemm>& gemms) {
  double flops = 0;
  for (const Gemm& gemm : gemms) {
    flops += 2.0 * static_cast<double>(gemm.m) * static_cast<double>(gemm.n) *
             static_cast<double>(gemm.k);
  }
  return flops;
}

StepTraffic TrafficOf(const RunDescription& run, const Placement& placement, const StepPlan& plan) {
  return Traffic(run, placement, plan).Sum();
}

std::optional<TypicalCollective> TypicalOf(const StepPlan& plan) {
  struct Candidate {
    TypicalCollective collective;
    int64_t bus_bytes = 0;
  };
  std::vector<Candidate> candidates;
  for (const Op& op : plan.ops) {
    if (op.kind != OpKind::kCollective) continue;
    const TypicalCollective call = {op.collective, op.dtype, op.elements, op.group};
    const int64_t bus =
        BusBytes(op.collective, PayloadBytes(op.collective, op.dtype, op.elements), op.group.count);
    if (bus == 0) continue;
    const auto same =
        std::find_if(candidates.begin(), candidates.end(),
                     [&](const Candidate& candidate) { return candidate.collective == call; });
    if (same == candidates.end()) {
      candidates.push_back({call, bus});
    } else {
      same->bus_bytes += bus;
    }
  }
  if (candidates.empty()) return std::nullopt;
  return std::max_element(
             candidates.begin(), candidates.end(),
             [](const Candidate& a, const Candidate& b) { return a.bus_bytes < b.bus_bytes; })
      ->collective;
}

int64_t CollectiveKernels(const StepPlan& plan) {
  return std::count_if(plan.ops.begin(), plan.ops.end(), [](const Op& op) {
    return op.kind == OpKind::kCollective && op.group.count > 1 && op.elements > 0;
  });
}

double UnavoidableMs(const StepTraffic& traffic, double copy_gb_per_s, double bus_gb_per_s) {
  const auto ms = [](int64_t bytes, double gb_per_s) {
    return bytes == 0 ? 0.0 : static_cast<double>(bytes) / (gb_per_s * 1e6);
  };
  return ms(traffic.device(), copy_gb_per_s) + ms(traffic.bus, bus_gb_per_s);
}

}  // namespace shardproof
