// LiveTrainer: a cpu trainer as a program holds one, between and beside its steps.
//
// Whoever uses a sharded trainer evaluates, runs forward passes that no backward follows, catches
// an exception in the middle of a step and tries again, drops gradients, and looks at whole
// parameters. Each command leaves the trainer idle: every unit sharded, no transient buffer
// allocated. Training goes on as if nothing had been between, but for parameters that were
// edited.
//
// Commands are plans like any other (trainer/plan/planner.h). `LivePlans` holds their sources, so
// that a test can seed a fault in one of them.
#ifndef TRAINER_ENGINES_LIVE_TRAINER_H_
#define TRAINER_ENGINES_LIVE_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/cpu_engine.h"
#include "trainer/engines/engine_parts.h"

namespace shardproof {

// By command; `gradients_live` says whether reduced gradients of a step are still there.
struct LivePlans {
  std::function<StepPlan(const RunDescription&, const Placement&, Rank, int64_t step,
                         bool gradients_live)>
      step;
  std::function<StepPlan(const RunDescription&, const Placement&, Rank, bool gradients_live)>
      forward;
  std::function<StepPlan(StepPlan step, size_t ops)> cut_short;
  std::function<StepPlan(const RunDescription&, const Placement&, Rank, bool gradients_live)>
      drop_gradients;
  std::function<StepPlan(const RunDescription&, const Placement&, Rank, bool gradients_live)>
      open_view;
  std::function<StepPlan(const RunDescription&, const Placement&, Rank, bool gradients_live,
                         bool write_back)>
      close_view;
};
// The planners'.
LivePlans PlannedCommands();

class LiveTrainer {
 public:
  // Errors as MakeCpuEngine. `run` must be valid and outlive the trainer.
  static absl::StatusOr<std::unique_ptr<LiveTrainer>> Create(const RunDescription& run,
                                                             const MemoryBudget& budget,
                                                             LivePlans plans = PlannedCommands());

  // All observations are valid until the next command. After an error the trainer is of no use.

  // The next training step.
  absl::StatusOr<const StepObservation*> Train();
  // A step that fails after some of its operations, on every rank: `progress` in [0, 1) of those
  // before the first update. What it computed is gone; Train repeats the step.
  // InvalidArgument for another progress.
  absl::StatusOr<const StepObservation*> FailInTheMiddle(double progress);
  // Forward and loss of the micro-batches of a step: of the next one, or of any other as an
  // evaluation. No gradients.
  absl::StatusOr<const StepObservation*> Forward(int64_t data_step);
  absl::StatusOr<const StepObservation*> DropGradients();

  // Whole parameters. Between OpenView and CloseView no other command may be given:
  // FailedPrecondition. Closing with `write_back` makes edits the parameters of all ranks, if
  // every rank made the same; without it they are gone. Unimplemented: closing without write_back
  // after an edit in a mode whose parameters are whole, where an edit cannot be undone.
  absl::StatusOr<const StepObservation*> OpenView();
  // Elements(tensor) values. Without an open view: FailedPrecondition, for both. InvalidArgument: a
  // rank or tensor that the run does not have, or another number of values.
  absl::StatusOr<std::vector<float>> Read(Rank rank, int32_t tensor) const;
  absl::Status Write(Rank rank, int32_t tensor, const std::vector<float>& values);
  absl::StatusOr<const StepObservation*> CloseView(bool write_back);

  int64_t steps_done() const { return steps_done_; }
  bool gradients_live() const { return gradients_live_; }

 private:
  LiveTrainer(const RunDescription& run, LivePlans plans, Placement placement,
              std::unique_ptr<CpuExecutor> executor);
  absl::Status CheckIdle() const;
  absl::Status CheckView(Rank rank, int32_t tensor) const;
  // Calls fn(values in the tensor, values in the rank's memory, count) for each piece.
  template <typename Fn>
  void ForEachPiece(Rank rank, int32_t tensor, Fn fn) const;

  const RunDescription& run_;
  const LivePlans plans_;
  const Placement placement_;
  const std::unique_ptr<CpuExecutor> executor_;
  std::vector<std::vector<int32_t>> view_buffers_;  // [rank][set], of the last view
  int64_t steps_done_ = 0;
  bool gradients_live_ = false;
  bool view_open_ = false;
  bool edited_ = false;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_LIVE_TRAINER_H_
