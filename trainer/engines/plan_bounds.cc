#include "trainer/engines/plan_bounds.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

class Checker {
 public:
  Checker(const RunDescription& run, const Placement& placement, const StepPlan& plan)
      : run_(run), placement_(placement), plan_(plan) {}

  absl::Status Check() {
    if (plan_.homes.size() != placement_.sets.size()) return Bad("homes of other sets");
    for (int32_t buffer : plan_.live_before) {
      if (!IsBuffer(buffer)) return Bad(absl::StrCat("live buffer ", buffer));
    }
    SHARDPROOF_RETURN_IF_ERROR(CheckHomes());
    for (op_ = 0; op_ < plan_.ops.size(); ++op_) SHARDPROOF_RETURN_IF_ERROR(CheckOp());
    return absl::OkStatus();
  }

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan of rank ", plan_.rank.value, ", operation ", op_, " of ", plan_.ops.size(), ": ",
        what, " is outside the plan; accepted: what its buffers and pools hold"));
  }

  // What engines look up without an operation: -1 means none.
  absl::Status CheckHomes() const {
    const auto known = [this](int32_t buffer) { return buffer == -1 || IsBuffer(buffer); };
    for (const SetHome& home : plan_.homes) {
      if (!known(home.parameter) || !known(home.gradient) || !known(home.exp_avg) ||
          !known(home.exp_avg_sq)) {
        return Bad("the home of a set");
      }
    }
    const size_t boundaries = run_.model.stages.size() + 1;
    for (const std::vector<int32_t>* activations :
         {&plan_.activations, &plan_.activation_gradients}) {
      if (activations->size() != boundaries ||
          !std::all_of(activations->begin(), activations->end(), known)) {
        return Bad("an activation");
      }
    }
    if (!known(plan_.scalar_buffer) || !known(plan_.norm_buffer) ||
        !known(plan_.coefficient_buffer)) {
      return Bad("a buffer of one value");
    }
    return absl::OkStatus();
  }

  bool IsBuffer(int32_t buffer) const {
    return buffer >= 0 && static_cast<size_t>(buffer) < plan_.buffers.size();
  }

  bool Holds(const BufferRange& range) const {
    if (!IsBuffer(range.buffer) || range.range.first < 0 || range.range.count < 0) return false;
    // Not first + count, which an edit may take beyond int64.
    const int64_t elements = plan_.buffers[range.buffer].elements;
    return range.range.count <= elements && range.range.first <= elements - range.range.count;
  }

  template <typename T>
  static bool IsSlice(int32_t first, int32_t count, const std::vector<T>& pool) {
    return first >= 0 && count >= 0 && static_cast<size_t>(first) + count <= pool.size();
  }

  const Op& op() const { return plan_.ops[op_]; }

  absl::Status CheckOp() const {
    const Op& o = op();
    const bool slices =
        IsSlice(o.first_wait, o.wait_count, plan_.waits) &&
        IsSlice(o.first_access, o.access_count, plan_.accesses) &&
        IsSlice(o.first_update, o.update_count, plan_.updates) &&
        IsSlice(o.first_parameter_use, o.parameter_use_count, plan_.parameter_uses) &&
        IsSlice(o.first_gradient_use, o.gradient_use_count, plan_.gradient_uses);
    if (!slices) return Bad("a slice of a pool");
    for (int32_t wait : plan_.WaitsOf(o)) {
      if (wait < 0 || static_cast<size_t>(wait) >= plan_.ops.size()) {
        return Bad(absl::StrCat("wait ", wait));
      }
    }
    for (const PlanAccess& access : plan_.AccessesOf(o)) {
      if (!Holds({access.buffer, access.range})) {
        return Bad(absl::StrCat("an access of buffer ", access.buffer));
      }
    }
    switch (o.kind) {
      case OpKind::kCollective:
        return CheckCollective();
      case OpKind::kForward:
      case OpKind::kBackward:
        return CheckCompute();
      case OpKind::kScale:
        return Holds(o.recv) ? absl::OkStatus() : Bad("what it scales");
      case OpKind::kScaleBy:
        return Holds(o.recv) && HoldsOne(o.send, Dtype::kFloat32) ? absl::OkStatus()
                                                                  : Bad("what it scales");
      case OpKind::kLoss:
        return absl::OkStatus();
      case OpKind::kAccumulate:
      case OpKind::kCopy:
        return Holds(o.recv) && Holds(o.send) && o.send.range.count >= o.recv.range.count
                   ? absl::OkStatus()
                   : Bad("what it adds or copies");
      case OpKind::kNorm:
        return HoldsOne(o.recv, Dtype::kFloat64) ? CheckUpdates() : Bad("the norm's buffer");
      case OpKind::kClipCoefficient:
        return HoldsOne(o.send, Dtype::kFloat64) && HoldsOne(o.recv, Dtype::kFloat32)
                   ? absl::OkStatus()
                   : Bad("the coefficient's buffers");
      case OpKind::kOptimizerUpdate:
        return CheckUpdates();
      case OpKind::kReshard:
      case OpKind::kRelease:
        return absl::OkStatus();
    }
    return Bad("its kind");
  }

  bool HoldsOne(const BufferRange& range, Dtype dtype) const {
    return Holds(range) && range.range.count >= 1 && plan_.buffers[range.buffer].dtype == dtype;
  }

  // What the communicator will read and write: a fraction of the elements on one side.
  absl::Status CheckCollective() const {
    const Op& o = op();
    const int32_t world = run_.sharding.world_size.value;
    const bool group = o.group.count >= 1 && o.group.stride >= 1 && o.group.first >= 0 &&
                       o.group.member(o.group.count - 1).value < world;
    if (!group) return Bad("its group");
    if (o.collective == CollectiveKind::kBarrier) return absl::OkStatus();
    if (o.elements < 0) return Bad("its count of elements");
    int64_t send = o.elements;
    int64_t recv = o.elements;
    if (o.collective == CollectiveKind::kAllGather) send /= o.group.count;
    if (o.collective == CollectiveKind::kReduceScatter) recv /= o.group.count;
    const auto fits = [&](const BufferRange& range, int64_t needed) {
      return Holds({range.buffer, {range.range.first, needed}}) &&
             plan_.buffers[range.buffer].dtype == o.dtype;
    };
    if (!fits(o.send, send)) return Bad("what it sends");
    if (!fits(o.recv, recv)) return Bad("where it receives");
    return absl::OkStatus();
  }

  absl::Status CheckUses(absl::Span<const SetUse> uses) const {
    for (const SetUse& use : uses) {
      if (use.set < 0 || static_cast<size_t>(use.set) >= placement_.sets.size()) {
        return Bad(absl::StrCat("set ", use.set));
      }
      if (use.buffer < 0) continue;  // a set without elements
      const int64_t elements = placement_.sets[use.set].layout.padded_elements();
      if (!Holds({use.buffer, {0, elements}})) {
        return Bad(absl::StrCat("set ", use.set, " in buffer ", use.buffer));
      }
    }
    return absl::OkStatus();
  }

  // Every tensor of its stages must be found in a buffer.
  absl::Status CheckCompute() const {
    const Op& o = op();
    const std::vector<Stage>& stages = run_.model.stages;
    const bool known = o.stage >= 0 && o.stage_count >= 0 &&
                       static_cast<size_t>(o.stage) + o.stage_count <= stages.size();
    if (!known) return Bad("its stages");
    SHARDPROOF_RETURN_IF_ERROR(CheckUses(plan_.ParameterUsesOf(o)));
    SHARDPROOF_RETURN_IF_ERROR(CheckUses(plan_.GradientUsesOf(o)));
    for (int32_t stage = o.stage; stage < o.stage + o.stage_count; ++stage) {
      for (int32_t tensor : stages[stage].tensors) {
        if (Elements(run_.model.tensors[tensor]) == 0) continue;
        const absl::Span<const SetUse> uses = plan_.ParameterUsesOf(o);
        const bool found = std::any_of(uses.begin(), uses.end(), [&](const SetUse& use) {
          return use.set == placement_.parameter_set[tensor] && use.buffer >= 0;
        });
        if (!found) return Bad(absl::StrCat("the parameter of tensor ", tensor));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckUpdates() const {
    const int32_t tensors = static_cast<int32_t>(run_.model.tensors.size());
    const auto is_tensor = [tensors](int32_t tensor) { return tensor >= 0 && tensor < tensors; };
    const bool updates = op().kind == OpKind::kOptimizerUpdate;
    const bool adamw = run_.optimizer.kind == OptimizerKind::kAdamW;
    const auto holds = [&](const BufferRange& range, int64_t count, bool needed) {
      if (range.buffer < 0) return !needed;
      return range.range.count == count && Holds(range);
    };
    for (const UpdateRange& update : plan_.UpdatesOf(op())) {
      if (!is_tensor(update.tensor) || !holds(update.gradient, update.count, true)) {
        return Bad("the gradient of an update");
      }
      if (!updates) continue;
      if (!is_tensor(update.counter_of) || !is_tensor(update.hyper_parameters_of)) {
        return Bad("the tensor of an update's operand");
      }
      const bool momentum = adamw || run_.optimizer.momentum != 0;
      if (!holds(update.parameter, update.count, true) ||
          !holds(update.exp_avg, update.count, momentum) ||
          !holds(update.exp_avg_sq, update.count, adamw)) {
        return Bad("the state of an update");
      }
    }
    return absl::OkStatus();
  }

  const RunDescription& run_;
  const Placement& placement_;
  const StepPlan& plan_;
  size_t op_ = 0;
};

}  // namespace

absl::Status CheckPlan(const RunDescription& run, const Placement& placement,
                       const StepPlan& plan) {
  return Checker(run, placement, plan).Check();
}

}  // namespace shardproof
