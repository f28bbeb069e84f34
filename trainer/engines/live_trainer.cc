#include "trainer/engines/live_trainer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/rank_memory.h"
#include "trainer/plan/planner.h"

namespace shardproof {
namespace {

// Operations before the first that an update of parameters follows from: the optimizer's phase.
size_t RepeatableOps(const StepPlan& plan) {
  const auto first_update = std::find_if(
      plan.ops.begin(), plan.ops.end(), [](const Op& op) { return op.phase == Phase::kOptimizer; });
  return static_cast<size_t>(first_update - plan.ops.begin());
}

}  // namespace

LivePlans PlannedCommands() {
  return {.step = PlanStepAfter,
          .forward = PlanForwardOnly,
          .cut_short = CutShort,
          .drop_gradients = PlanDropGradients,
          .open_view = PlanOpenView,
          .close_view = PlanCloseView};
}

absl::StatusOr<std::unique_ptr<LiveTrainer>> LiveTrainer::Create(const RunDescription& run,
                                                                 const MemoryBudget& budget,
                                                                 LivePlans plans) {
  SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<CpuExecutor> executor,
                              MakeCpuExecutor(run, PlannedParts(run), budget));
  return std::unique_ptr<LiveTrainer>(
      new LiveTrainer(run, std::move(plans), MakePlacement(run), std::move(executor)));
}

LiveTrainer::LiveTrainer(const RunDescription& run, LivePlans plans, Placement placement,
                         std::unique_ptr<CpuExecutor> executor)
    : run_(run),
      plans_(std::move(plans)),
      placement_(std::move(placement)),
      executor_(std::move(executor)),
      view_buffers_(run.sharding.world_size.value) {}

absl::Status LiveTrainer::CheckIdle() const {
  if (!view_open_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a view of the parameters is open; accepted: CloseView before the next command");
}

absl::StatusOr<const StepObservation*> LiveTrainer::Train() {
  SHARDPROOF_RETURN_IF_ERROR(CheckIdle());
  const auto plan = [this](const RunDescription& run, const Placement& placement, Rank rank,
                           int64_t step) {
    return plans_.step(run, placement, rank, step, gradients_live_);
  };
  SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed,
                              executor_->Execute(plan, steps_done_, /*trains=*/true));
  ++steps_done_;
  gradients_live_ = true;
  return observed;
}

absl::StatusOr<const StepObservation*> LiveTrainer::FailInTheMiddle(double progress) {
  SHARDPROOF_RETURN_IF_ERROR(CheckIdle());
  if (!(progress >= 0 && progress < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("progress is ", progress, "; accepted: a number from 0 to below 1"));
  }
  const auto plan = [this, progress](const RunDescription& run, const Placement& placement,
                                     Rank rank, int64_t step) {
    StepPlan whole = plans_.step(run, placement, rank, step, gradients_live_);
    const size_t ops = static_cast<size_t>(progress * static_cast<double>(RepeatableOps(whole)));
    return plans_.cut_short(std::move(whole), ops);
  };
  SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed,
                              executor_->Execute(plan, steps_done_, /*trains=*/false));
  gradients_live_ = false;
  return observed;
}

absl::StatusOr<const StepObservation*> LiveTrainer::Forward(int64_t data_step) {
  SHARDPROOF_RETURN_IF_ERROR(CheckIdle());
  const auto plan = [this](const RunDescription& run, const Placement& placement, Rank rank,
                           int64_t) {
    return plans_.forward(run, placement, rank, gradients_live_);
  };
  return executor_->Execute(plan, data_step, /*trains=*/false);
}

absl::StatusOr<const StepObservation*> LiveTrainer::DropGradients() {
  SHARDPROOF_RETURN_IF_ERROR(CheckIdle());
  const auto plan = [this](const RunDescription& run, const Placement& placement, Rank rank,
                           int64_t) {
    return plans_.drop_gradients(run, placement, rank, gradients_live_);
  };
  SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed,
                              executor_->Execute(plan, steps_done_, /*trains=*/false));
  gradients_live_ = false;
  return observed;
}

absl::StatusOr<const StepObservation*> LiveTrainer::OpenView() {
  SHARDPROOF_RETURN_IF_ERROR(CheckIdle());
  const auto plan = [this](const RunDescription& run, const Placement& placement, Rank rank,
                           int64_t) {
    StepPlan opening = plans_.open_view(run, placement, rank, gradients_live_);
    std::vector<int32_t>& buffers = view_buffers_[rank.value];
    buffers.clear();
    for (const SetHome& home : opening.homes) buffers.push_back(home.parameter);
    for (const Op& op : opening.ops) {
      if (op.purpose == Purpose::kUnshardParameters) buffers[op.set] = op.recv.buffer;
    }
    return opening;
  };
  SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed,
                              executor_->Execute(plan, steps_done_, /*trains=*/false));
  view_open_ = true;
  edited_ = false;
  return observed;
}

template <typename Fn>
void LiveTrainer::ForEachPiece(Rank rank, int32_t tensor, Fn fn) const {
  const int32_t set = placement_.parameter_set[tensor];
  if (set < 0) return;  // without elements
  float* const full = executor_->memory(rank).data(view_buffers_[rank.value][set]);
  for (const Segment& segment : placement_.sets[set].layout.segments) {
    if (segment.tensor != tensor) continue;
    fn(segment.first, full + placement_.sets[set].layout.offset(segment), segment.count);
  }
}

absl::Status LiveTrainer::CheckView(Rank rank, int32_t tensor) const {
  if (!view_open_) {
    return absl::FailedPreconditionError(
        "no view of the parameters is open; accepted: OpenView before they are read or written");
  }
  const int32_t ranks = run_.sharding.world_size.value;
  const int32_t tensors = static_cast<int32_t>(run_.model.tensors.size());
  if (rank.value < 0 || rank.value >= ranks || tensor < 0 || tensor >= tensors) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor, " on rank ", rank.value,
                                                   "; accepted: tensors below ", tensors,
                                                   ", ranks below ", ranks));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> LiveTrainer::Read(Rank rank, int32_t tensor) const {
  SHARDPROOF_RETURN_IF_ERROR(CheckView(rank, tensor));
  std::vector<float> values(static_cast<size_t>(Elements(run_.model.tensors[tensor])));
  ForEachPiece(rank, tensor, [&](int64_t first, const float* from, int64_t count) {
    std::copy_n(from, count, values.data() + first);
  });
  return values;
}

absl::Status LiveTrainer::Write(Rank rank, int32_t tensor, const std::vector<float>& values) {
  SHARDPROOF_RETURN_IF_ERROR(CheckView(rank, tensor));
  const int64_t elements = Elements(run_.model.tensors[tensor]);
  if (static_cast<int64_t>(values.size()) != elements) {
    return absl::InvalidArgumentError(
        absl::StrCat(values.size(), " values for tensor ", tensor, "; accepted: ", elements));
  }
  edited_ = true;
  ForEachPiece(rank, tensor, [&](int64_t first, float* to, int64_t count) {
    std::copy_n(values.data() + first, count, to);
  });
  return absl::OkStatus();
}

absl::StatusOr<const StepObservation*> LiveTrainer::CloseView(bool write_back) {
  if (!view_open_) {
    return absl::FailedPreconditionError("no view is open; accepted: OpenView before CloseView");
  }
  if (edited_ && !write_back && !ShardsUnits(run_.sharding.mode)) {
    return absl::UnimplementedError(absl::StrCat(
        "the parameters of ", Name(run_.sharding.mode),
        " are whole and were edited in place, so the edit stays; accepted: write_back, or a mode "
        "that shards units"));
  }
  const auto plan = [this, write_back](const RunDescription& run, const Placement& placement,
                                       Rank rank, int64_t) {
    return plans_.close_view(run, placement, rank, gradients_live_, write_back);
  };
  SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed,
                              executor_->Execute(plan, steps_done_, /*trains=*/false));
  view_open_ = false;
  return observed;
}

}  // namespace shardproof
