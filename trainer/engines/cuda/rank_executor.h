// RankExecutor: one rank of the cuda engine: its device, streams, memory and communicators.
//
// All functions are called on the rank's own thread, whose current device is the rank's, unless
// they say otherwise. Errors name the rank, and the operation where there is one.
#ifndef TRAINER_ENGINES_CUDA_RANK_EXECUTOR_H_
#define TRAINER_ENGINES_CUDA_RANK_EXECUTOR_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/device_world.h"
#include "collectives/ledger.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"
#include "trainer/engines/cuda/cuda_engine.h"
#include "trainer/engines/cuda/cuda_model.h"
#include "trainer/engines/cuda/cuda_stages.h"
#include "trainer/engines/cuda/device_streams.h"
#include "trainer/engines/cuda/launch_window.h"
#include "trainer/engines/cuda/rank_arena.h"
#include "trainer/engines/engine_parts.h"
#include "trainer/engines/stage_runner.h"
#include "trainer/plan/step_plan.h"

namespace shardproof {

// What the ranks of an engine share. All outlive the executors.
struct EngineContext {
  const RunDescription& run;
  const EngineParts& parts;
  DeviceWorld& world;
  const CudaOptions& options;
  Ledger& ledger;
};

class RankExecutor {
 public:
  // `alone`: no other local rank uses the rank's device.
  RankExecutor(const EngineContext& context, Rank rank, bool alone);

  // Takes all memory and fills in the initial state. `first` is the plan of the first step,
  // `steady` that of later ones; the first is installed.
  absl::Status Prepare(StepPlan first, const StepPlan& steady);
  // Connects the groups that either plan talks in. With all members at about the same time.
  absl::Status Connect(const StepPlan& steady);
  // The plan of the next steps. With all members at about the same time: its groups may be new.
  absl::Status Install(StepPlan plan);

  // Enqueues a step and waits until it has ended, or `stop` is set: Cancelled then. Looks at `stop`
  // and at the timeout before each operation and while it waits, which it does outside of CUDA
  // and of the world as long as no operation alone fills CUDA's launch queue.
  absl::Status RunStep(int64_t data_step, const std::atomic<bool>& stop);
  // Copies what is kept between steps to the host.
  absl::Status CopyState();

  // The groups that a plan talks in, once for each stream: as many meetings a rank connects in.
  static size_t CountGroups(const StepPlan& plan);

  // "rank 0, at operation 12 (...), whose oldest collective not seen to end is operation 3 (...)".
  // Any thread, also within a step: it waits for nothing and asks no device.
  std::string Whereabouts() const;

  // Any thread, between steps.
  Rank rank() const { return rank_; }
  const StepPlan& plan() const { return plan_; }
  // Of a kept buffer, what CopyState copied; valid from the first CopyState on.
  const float* host_values(int32_t buffer) const { return host_[buffer].get(); }
  double loss_sum() const { return results_->loss; }
  ClipObservation clip() const;
  double milliseconds() const { return milliseconds_; }
  int64_t updates(int32_t tensor) const { return updates_[tensor]; }
  absl::Span<const int32_t> place_of_op() const { return place_of_op_; }
  bool adds_in_rank_order() const;
  DeviceMemoryFigures memory() const;

 private:
  // One rank's end of one group on one stream: the world's communicator, what is put around it,
  // and the ledger.
  struct GroupEnd {
    Group group;
    StreamId stream = StreamId::kCompute;
    std::unique_ptr<Communicator> connected;
    std::unique_ptr<Communicator> decorated;  // may be null
    std::unique_ptr<Communicator> recorded;
  };
  struct StartedCollective {
    int32_t op = -1;
    Communicator* communicator = nullptr;
    CollectiveHandle handle;
  };
  // What a step leaves on the device for the host.
  struct Results {
    double loss = 0;
    double squares = 0;
    float coefficient = 1;
  };

  // In front of an error, who met it and where.
  absl::Status At(int32_t op, const absl::Status& status) const;
  absl::Status MemoryError(const DeviceNeed& need, const absl::Status& status) const;
  absl::Status AllocateMemory(const StepPlan& first, const StepPlan& steady);
  absl::Status UploadInitialState();
  absl::Status ConnectGroups(absl::Span<const StepPlan* const> plans);
  GroupEnd* EndOf(Group group, StreamId stream);

  absl::Status EnqueueStep(int64_t data_step, absl::Time deadline, const std::atomic<bool>& stop);
  absl::Status AwaitRoom(absl::Time deadline, const std::atomic<bool>& stop);
  absl::Status MayGoOn(absl::Time deadline, const std::atomic<bool>& stop);
  absl::Status NoteLaunches(const Op& op);
  absl::Status BeginStep();
  absl::Status EndStep();
  absl::Status Issue(int32_t index, int64_t data_step);
  absl::Status IssueBody(const Op& op, int32_t index, int64_t data_step, cudaStream_t stream);
  absl::Status StartCollective(const Op& op, int32_t index);
  absl::Status RunStages(const Op& op, int64_t data_step, cudaStream_t stream);
  absl::Status SumSquares(const Op& op, cudaStream_t stream);
  absl::Status FindCoefficient(const Op& op, cudaStream_t stream);
  absl::Status Update(const Op& op, cudaStream_t stream);
  absl::Status UpdateRangeOf(const UpdateRange& update, cudaStream_t stream);

  absl::Status AwaitStep(absl::Time deadline, const std::atomic<bool>& stop);
  absl::StatusOr<bool> HasEnded();
  absl::StatusOr<bool> CollectivesHaveEnded();
  absl::Status TimedOut() const;

  const EngineContext& context_;
  const RunDescription& run_;
  const Rank rank_;
  const bool alone_;
  StepPlan plan_;
  KeptRegion kept_;

  // Destroyed in reverse: communicators before streams, memory after both.
  std::unique_ptr<CudaModel> model_;
  RankArena arena_;
  DeviceMemory device_results_;
  PinnedValue<Results> results_;
  std::unique_ptr<CudaStages> arithmetic_;
  std::unique_ptr<StageRunner> stages_;
  DeviceStreams streams_;
  OperationEvents events_;  // of operations that other streams wait for
  LaunchWindow window_;
  MarkEvents marks_;
  std::vector<std::unique_ptr<GroupEnd>> groups_;

  std::vector<std::unique_ptr<float[]>> host_;  // by buffer; null unless kept
  std::vector<int64_t> updates_;                // by tensor: updates so far
  // Of the step at hand.
  std::vector<StartedCollective> started_;  // in issue order
  size_t ended_ = 0;                        // of those, from the first on, seen done
  std::vector<int32_t> place_of_op_;        // by operation: its place in started_
  bool clipped_ = false;
  double milliseconds_ = 0;
  // For Whereabouts, -1: none. The operation that is enqueued, and the first in started_ that is
  // not seen done.
  std::atomic<int32_t> at_op_ = -1;
  std::atomic<int32_t> oldest_ = -1;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_CUDA_RANK_EXECUTOR_H_
