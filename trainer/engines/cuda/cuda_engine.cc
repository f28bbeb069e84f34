#include "trainer/engines/cuda/cuda_engine.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/ledger.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/engines/cuda/rank_executor.h"
#include "trainer/engines/cuda/rank_team.h"
#include "trainer/engines/plan_observer.h"
#include "trainer/engines/step_report.h"
#include "trainer/plan/planner.h"

namespace shardproof {
namespace {

// Beyond the timeout: how long threads may take to notice it, and to return once the world is
// aborted.
constexpr absl::Duration kGrace = absl::Seconds(4);
// How long freeing everything may take.
constexpr absl::Duration kEnd = absl::Seconds(30);

class CudaEngineImpl {
 public:
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
    for (const Rank rank : local) {
      const auto shares = std::count_if(local.begin(), local.end(), [&](Rank other) {
        return world_.device(other) == world_.device(rank);
      });
      ranks_.push_back(std::make_unique<RankExecutor>(context_, rank, /*alone=*/shares == 1));
      steady_.push_back(PlanOf(rank, /*step=*/1));
    }
    MakeTeam();
    // Memory first: who has none must not leave the others to wait for it in a group.
    SHARDPROOF_RETURN_IF_ERROR(OnEveryRank(
        [this](RankExecutor& rank, size_t i) -> absl::Status {
          SHARDPROOF_CUDA_OK(cudaSetDevice(world_.device(rank.rank())));
          return rank.Prepare(PlanOf(rank.rank(), /*step=*/0), steady_[i]);
        },
        absl::InfiniteDuration()));
    meets_ = true;
    SHARDPROOF_RETURN_IF_ERROR(OnEveryRank(
        [this](RankExecutor& rank, size_t i) { return rank.Connect(steady_[i]); }, Connecting()));
    for (const auto& rank : ranks_) any_order_ = any_order_ || !rank->adds_in_rank_order();
    any_order_ =
        any_order_ && run_.sharding.world_size.value > 1 && run_.model.kind != ModelKind::kProbe;
    return absl::OkStatus();
  }

  // Before the destructor: what the GPU still does is waited for when the executors go, on their
  // threads. False if one of them does not return: then this must never be destroyed.
  bool End() {
    return team_ == nullptr || team_->Finish([this](size_t i) { ranks_[i].reset(); }, kEnd);
  }

  absl::StatusOr<const StepObservation*> Step() {
    SHARDPROOF_RETURN_IF_ERROR(RunStep());
    SHARDPROOF_RETURN_IF_ERROR(OnEveryRank(
        [](RankExecutor& rank, size_t) { return rank.CopyState(); }, options_.timeout + kGrace));
    Observe();
    return &observation_;
  }

  absl::StatusOr<std::vector<double>> TimedStep() {
    SHARDPROOF_RETURN_IF_ERROR(RunStep());
    std::vector<double> milliseconds;
    for (const auto& rank : ranks_) milliseconds.push_back(rank->milliseconds());
    return milliseconds;
  }

  std::vector<DeviceMemoryFigures> memory() const {
    std::vector<DeviceMemoryFigures> figures;
    for (const auto& rank : ranks_) figures.push_back(rank->memory());
    return figures;
  }

 private:
  void MakeTeam() {
    RankTeam::Options options;
    options.grace = kGrace;
    options.describe = [this](size_t i) { return ranks_[i]->Whereabouts(); };
    options.abort = [this](const absl::Status& why) {
      if (meets_) world_.Abort(why);
    };
    team_ = std::make_unique<RankTeam>(ranks_.size(), std::move(options));
  }

  // Each group's meeting has the timeout for itself; the first and the later plans may differ.
  absl::Duration Connecting() const {
    size_t groups = 1;
    for (const StepPlan& plan : steady_) {
      groups = std::max(groups, RankExecutor::CountGroups(plan));
    }
    return static_cast<double>(2 * groups) * options_.timeout + kGrace;
  }

  StepPlan PlanOf(Rank rank, int64_t step) const {
    return parts_.plan(run_, parts_.placement, rank, step);
  }

  // Does something on the thread of every local rank, as RankTeam::OnEvery. A thread that does not
  // return keeps using this object, so `work` refers to nothing else.
  absl::Status OnEveryRank(std::function<absl::Status(RankExecutor&, size_t)> work,
                           absl::Duration bound) {
    return team_->OnEvery([this, work = std::move(work)](size_t i) { return work(*ranks_[i], i); },
                          bound);
  }

  absl::Status RunStep() {
    if (step_ == 1 || (step_ > 1 && parts_.plan_varies_by_step)) {
      SHARDPROOF_RETURN_IF_ERROR(OnEveryRank(
          [this](RankExecutor& rank, size_t) { return rank.Install(PlanOf(rank.rank(), step_)); },
          Connecting()));
    }
    ledger_.Clear();
    SHARDPROOF_RETURN_IF_ERROR(OnEveryRank(
        [this](RankExecutor& rank, size_t) { return rank.RunStep(step_, team_->failed()); },
        options_.timeout + kGrace));
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
      // "Completed" says of a call that it was started and that the step has ended, which is when
      // all streams have: nobody has looked at when each call ended.
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
  // By local rank; a member of the team uses its executor.
  std::vector<StepPlan> steady_;  // of the second step
  std::vector<std::unique_ptr<RankExecutor>> ranks_;
  bool meets_ = false;  // ranks may wait for each other now
  bool any_order_ = false;
  int64_t step_ = 0;  // training steps done
  StepObservation observation_;
  std::unique_ptr<RankTeam> team_;  // last: its threads use the others
};

// A CudaEngineImpl that is destroyed once its threads have returned, and never if one does not.
class EndingEngine : public CudaEngine {
 public:
  EndingEngine(const RunDescription& run, EngineParts parts, DeviceWorld& world,
               const CudaOptions& options)
      : engine_(std::make_unique<CudaEngineImpl>(run, std::move(parts), world, options)) {}
  ~EndingEngine() override {
    if (!engine_->End()) static_cast<void>(engine_.release());
  }

  absl::Status MakeRanks() { return engine_->MakeRanks(); }

  absl::StatusOr<const StepObservation*> Step() override { return engine_->Step(); }
  absl::StatusOr<std::vector<double>> TimedStep() override { return engine_->TimedStep(); }
  std::vector<DeviceMemoryFigures> memory() const override { return engine_->memory(); }

 private:
  std::unique_ptr<CudaEngineImpl> engine_;
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
  auto engine = std::make_unique<EndingEngine>(run, std::move(parts), world, options);
  SHARDPROOF_RETURN_IF_ERROR(engine->MakeRanks());
  return engine;
}

}  // namespace shardproof
