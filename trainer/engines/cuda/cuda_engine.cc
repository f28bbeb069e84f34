#include "trainer/engines/cuda/cuda_engine.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/ledger.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/engines/cuda/rank_executor.h"
#include "trainer/engines/cuda/rank_worker.h"
#include "trainer/engines/plan_observer.h"
#include "trainer/engines/step_report.h"
#include "trainer/plan/planner.h"

namespace shardproof {
namespace {

class CudaEngineImpl : public CudaEngine {
 public:
  static absl::StatusOr<std::unique_ptr<CudaEngine>> Create(const RunDescription& run,
                                                            EngineParts parts, DeviceWorld& world,
                                                            const CudaOptions& options) {
    std::unique_ptr<CudaEngineImpl> engine(
        new CudaEngineImpl(run, std::move(parts), world, options));
    SHARDPROOF_RETURN_IF_ERROR(engine->MakeRanks());
    return engine;
  }

  // What the GPU still does is waited for when the executors go, on their threads.
  ~CudaEngineImpl() override {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      workers_[i]->Start([this, i] { ranks_[i].reset(); });
    }
    for (const std::unique_ptr<RankWorker>& worker : workers_) worker->Join();
  }

  absl::StatusOr<const StepObservation*> Step() override {
    SHARDPROOF_RETURN_IF_ERROR(RunStep());
    SHARDPROOF_RETURN_IF_ERROR(
        OnEveryRank([](RankExecutor& rank, size_t) { return rank.CopyState(); }));
    Observe();
    return &observation_;
  }

  absl::StatusOr<std::vector<double>> TimedStep() override {
    SHARDPROOF_RETURN_IF_ERROR(RunStep());
    std::vector<double> milliseconds;
    for (const auto& rank : ranks_) milliseconds.push_back(rank->milliseconds());
    return milliseconds;
  }

  std::vector<DeviceMemoryFigures> memory() const override {
    std::vector<DeviceMemoryFigures> figures;
    for (const auto& rank : ranks_) figures.push_back(rank->memory());
    return figures;
  }

 private:
  CudaEngineImpl(const RunDescription& run, EngineParts parts, DeviceWorld& world,
                 const CudaOptions& options)
      : run_(run),
        parts_(std::move(parts)),
        world_(world),
        options_(options),
        bytes_(BytesOfRanks(parts_.placement, run.sharding.world_size.value)),
        ledger_(run.sharding.world_size),
        context_{run_, parts_, world_, options_, ledger_} {}

  absl::Status MakeRanks() {
    const std::vector<Rank> local = world_.local_ranks();
    std::vector<StepPlan> steady;
    for (const Rank rank : local) {
      const auto shares = std::count_if(local.begin(), local.end(), [&](Rank other) {
        return world_.device(other) == world_.device(rank);
      });
      ranks_.push_back(std::make_unique<RankExecutor>(context_, rank, /*alone=*/shares == 1));
      workers_.push_back(std::make_unique<RankWorker>());
      steady.push_back(PlanOf(rank, /*step=*/1));
    }
    // Memory first: who has none must not leave the others to wait for it in a group.
    SHARDPROOF_RETURN_IF_ERROR(OnEveryRank([&](RankExecutor& rank, size_t i) -> absl::Status {
      SHARDPROOF_CUDA_OK(cudaSetDevice(world_.device(rank.rank())));
      return rank.Prepare(PlanOf(rank.rank(), /*step=*/0), steady[i]);
    }));
    meets_ = true;
    SHARDPROOF_RETURN_IF_ERROR(
        OnEveryRank([&](RankExecutor& rank, size_t i) { return rank.Connect(steady[i]); }));
    for (const auto& rank : ranks_) any_order_ = any_order_ || !rank->adds_in_rank_order();
    any_order_ =
        any_order_ && run_.sharding.world_size.value > 1 && run_.model.kind != ModelKind::kProbe;
    return absl::OkStatus();
  }

  StepPlan PlanOf(Rank rank, int64_t step) const {
    return parts_.plan(run_, parts_.placement, rank, step);
  }

  // Does something on the thread of every local rank. The first to fail ends the others' waits,
  // and its error is returned.
  absl::Status OnEveryRank(const std::function<absl::Status(RankExecutor&, size_t)>& work) {
    if (failed_.load()) return Cause();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      workers_[i]->Start([this, &work, i] {
        const absl::Status status = work(*ranks_[i], i);
        if (!status.ok()) Fail(status);
      });
    }
    for (const std::unique_ptr<RankWorker>& worker : workers_) worker->Join();
    return Cause();
  }

  absl::Status Cause() {
    std::lock_guard<std::mutex> lock(mutex_);
    return cause_;
  }

  void Fail(const absl::Status& status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!cause_.ok()) return;
      cause_ = status;
    }
    failed_.store(true);
    if (meets_) world_.Abort(status);
  }

  absl::Status RunStep() {
    if (step_ == 1 || (step_ > 1 && parts_.plan_varies_by_step)) {
      SHARDPROOF_RETURN_IF_ERROR(OnEveryRank(
          [this](RankExecutor& rank, size_t) { return rank.Install(PlanOf(rank.rank(), step_)); }));
    }
    ledger_.Clear();
    SHARDPROOF_RETURN_IF_ERROR(
        OnEveryRank([this](RankExecutor& rank, size_t) { return rank.RunStep(step_, failed_); }));
    ++step_;
    return absl::OkStatus();
  }

  void Observe() {
    observation_.step = step_ - 1;
    observation_.any_order = any_order_;
    observation_.events.clear();
    observation_.losses.clear();
    observation_.clips.clear();
    const bool first = observation_.states.empty();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const RankExecutor& rank = *ranks_[i];
      observation_.events.push_back(EventsOfPlan(rank.plan(), {rank.rank().value, 1, 1}));
      ShowCalls(ledger_.entries(rank.rank()), rank.place_of_op(), observation_.events.back());
      if (ComputesLoss(rank.plan())) {
        observation_.losses.push_back(rank.loss_sum() /
                                      static_cast<double>(run_.data.num_micro_batches));
      }
      if (run_.clip_grad_norm > 0) observation_.clips.push_back(rank.clip());
      if (first) observation_.states.push_back(StateOf(rank));
      for (TensorStep& steps : observation_.states[i].steps) {
        steps.updates = rank.updates(steps.tensor);
      }
    }
  }

  RankState StateOf(const RankExecutor& rank) const {
    return StateOfRank(run_, parts_.placement, rank.plan().homes, rank.rank(),
                       bytes_[rank.rank().value],
                       [&](int32_t buffer) { return rank.host_values(buffer); });
  }

  const RunDescription& run_;
  const EngineParts parts_;
  DeviceWorld& world_;
  const CudaOptions options_;
  const std::vector<StateBytes> bytes_;  // by rank
  Ledger ledger_;
  const EngineContext context_;
  // By local rank; a worker's work uses its executor.
  std::vector<std::unique_ptr<RankExecutor>> ranks_;
  std::vector<std::unique_ptr<RankWorker>> workers_;
  bool meets_ = false;  // ranks may wait for each other now
  bool any_order_ = false;
  int64_t step_ = 0;  // training steps done
  StepObservation observation_;

  std::mutex mutex_;
  absl::Status cause_;  // why the engine failed
  std::atomic<bool> failed_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaEngine>> MakeCudaEngine(const RunDescription& run,
                                                           EngineParts parts, DeviceWorld& world,
                                                           const CudaOptions& options) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  if (world.size().value != run.sharding.world_size.value) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the run has ", run.sharding.world_size.value, " ranks and the world it is to run in ",
        world.size().value, "; accepted is a run of as many"));
  }
  return CudaEngineImpl::Create(run, std::move(parts), world, options);
}

}  // namespace shardproof
