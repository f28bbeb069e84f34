#include "trainer/engines/cpu_engine.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/ledger.h"
#include "collectives/simulated/simulated_world.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/host_stages.h"
#include "trainer/engines/parameter_versions.h"
#include "trainer/engines/plan_bounds.h"
#include "trainer/engines/plan_observer.h"
#include "trainer/engines/rank_memory.h"
#include "trainer/engines/stage_runner.h"
#include "trainer/engines/step_report.h"
#include "trainer/model/model_compute.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/plan/planner.h"

namespace shardproof {
namespace {

// A plan with its operations by stream.
struct Program {
  Program() = default;
  explicit Program(StepPlan step_plan) : plan(std::move(step_plan)) {
    for (size_t op = 0; op < plan.ops.size(); ++op) {
      ops_of_stream[static_cast<int>(plan.ops[op].stream)].push_back(static_cast<int32_t>(op));
    }
  }
  StepPlan plan;
  std::vector<int32_t> ops_of_stream[kStreams];
};

// How far one stream of one rank is in the current step.
struct StreamCursor {
  size_t next = 0;             // into Program::ops_of_stream
  CollectiveHandle in_flight;  // id < 0: nothing started
};

// One rank's end of one group: the world's communicator, what is put around it, and the ledger.
struct GroupEnd {
  Group group;
  std::unique_ptr<Communicator> decorated;  // may be null
  std::unique_ptr<Communicator> recorded;
};

struct RankRuntime {
  Program program;
  RankMemory memory;
  ParameterVersions versions;
  std::vector<GroupEnd> groups = {};
  StreamCursor streams[kStreams] = {};
  std::vector<bool> done = {};                 // by operation, this step
  std::vector<int64_t> updates = {};           // by tensor: updates so far
  int32_t calls = 0;                           // collectives started in this step
  std::vector<int32_t> collective_of_op = {};  // by operation: its place among them
  double loss_sum = 0;
  ClipObservation clip = {};
};

// splitmix64 (Steele, Lea and Flood 2014): the schedule needs no more.
class ScheduleRandom {
 public:
  explicit ScheduleRandom(uint64_t seed) : state_(seed ^ 0x5ced01e5ced01e5cULL) {}
  uint32_t Below(uint32_t bound) {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<uint32_t>(((z ^ (z >> 31)) >> 32) * bound >> 32);
  }

 private:
  uint64_t state_;
};

// Whether both plans fit one RankMemory, which is made once and for the first of them.
bool SameMemory(const StepPlan& a, const StepPlan& b) {
  return std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    [](const BufferSpec& x, const BufferSpec& y) {
                      return x.dtype == y.dtype && x.elements == y.elements;
                    });
}

class CpuEngine : public CpuExecutor {
 public:
  // `world` null: one of the engine's own, with all ranks.
  static absl::StatusOr<std::unique_ptr<CpuExecutor>> Create(const RunDescription& run,
                                                             EngineParts parts,
                                                             const MemoryBudget& budget,
                                                             World* world) {
    auto engine = std::unique_ptr<CpuEngine>(new CpuEngine(run, std::move(parts)));
    SHARDPROOF_ASSIGN_OR_RETURN(engine->compute_, MakeModelCompute(run));
    engine->arithmetic_ = std::make_unique<HostStages>(run, *engine->compute_);
    engine->stages_ =
        std::make_unique<StageRunner>(run, engine->parts_.placement, *engine->arithmetic_);
    SHARDPROOF_RETURN_IF_ERROR(engine->EnterWorld(world));
    std::vector<StepPlan> plans;
    double bytes = static_cast<double>(budget.others_bytes);  // may be beyond int64
    for (const Rank rank : engine->world_->local_ranks()) {
      plans.push_back(engine->PlanOf(rank, /*step=*/0));
      bytes += RankMemory::Bytes(plans.back());
      if (bytes > static_cast<double>(budget.limit_bytes)) return engine->TooLarge(budget);
    }
    engine->ranks_.reserve(plans.size());
    for (StepPlan& plan : plans) {
      RankMemory memory(plan);
      if (!memory.ok()) return engine->TooLarge(budget);
      SHARDPROOF_RETURN_IF_ERROR(CheckPlan(run, engine->parts_.placement, plan));
      engine->AddRank(std::move(plan), std::move(memory));
    }
    return engine;
  }

  absl::StatusOr<const StepObservation*> Step() override {
    if (step_ == 1 || (step_ > 1 && parts_.plan_varies_by_step)) {
      SHARDPROOF_RETURN_IF_ERROR(PlanAgain(parts_.plan, step_));
    }
    return ExecutePlans(step_, /*trains=*/true);
  }

  absl::StatusOr<const StepObservation*> Execute(const PlanSource& plans, int64_t step,
                                                 bool trains) override {
    SHARDPROOF_RETURN_IF_ERROR(PlanAgain(plans, step));
    return ExecutePlans(step, trains);
  }

  RankMemory& memory(Rank rank) override {
    return std::find_if(ranks_.begin(), ranks_.end(),
                        [&](const RankRuntime& local) { return local.program.plan.rank == rank; })
        ->memory;
  }

 private:
  absl::Status EnterWorld(World* world) {
    if (world == nullptr) {
      SHARDPROOF_ASSIGN_OR_RETURN(own_world_, SimulatedWorld::Create(run_.sharding.world_size));
      world = own_world_.get();
    }
    if (world->size().value != run_.sharding.world_size.value) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the run has ", run_.sharding.world_size.value, " ranks and the world it is to run in ",
          world->size().value, "; accepted is a run of as many"));
    }
    world_ = world;
    versions_.assign(static_cast<size_t>(world->size().value), nullptr);
    return absl::OkStatus();
  }

  void AddRank(StepPlan plan, RankMemory memory) {
    const Rank rank = plan.rank;
    ParameterVersions versions(plan, parts_.placement);
    observation_.events.push_back(EventsOfPlan(plan, {rank.value, 1, 1}));
    ranks_.push_back({Program(std::move(plan)), std::move(memory), std::move(versions)});
    RankRuntime& added = ranks_.back();
    versions_[rank.value] = &added.versions;
    added.updates.assign(run_.model.tensors.size(), 0);
    InitializeState(added);
    observation_.states.push_back(StateOf(added, rank));
  }

  absl::StatusOr<const StepObservation*> ExecutePlans(int64_t data_step, bool trains) {
    ledger_.Clear();
    data_step_ = data_step;
    stages_->BeginStep();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      BeginStep(ranks_[rank], observation_.events[rank]);
    }
    SHARDPROOF_RETURN_IF_ERROR(RunSchedule());
    Conclude();
    if (trains) ++step_;
    return &observation_;
  }

  CpuEngine(const RunDescription& run, EngineParts parts)
      : run_(run),
        parts_(std::move(parts)),
        bytes_(BytesOfRanks(parts_.placement, run.sharding.world_size.value)),
        ledger_(run.sharding.world_size),
        random_(run.data.seed) {}

  StepPlan PlanOf(Rank rank, int64_t step) const {
    return parts_.plan(run_, parts_.placement, rank, step);
  }

  absl::Status TooLarge(const MemoryBudget& budget) const {
    const std::vector<Rank> local = world_->local_ranks();
    double bytes = 0;
    for (const Rank rank : local) bytes += RankMemory::Bytes(PlanOf(rank, /*step=*/0));
    const int32_t ranks = run_.sharding.world_size.value;
    const bool all = static_cast<int32_t>(local.size()) == ranks;
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the cpu engine needs %.0f bytes for %s on %s%d ranks, beside %d for others, and may use "
        "%d in all: use the accounting engine, fewer ranks or a smaller model",
        bytes, ModeRowName(run_.sharding), all ? "" : absl::StrCat(local.size(), " of "), ranks,
        budget.others_bytes, budget.limit_bytes));
  }

  // The plans of this step, over the same buffers.
  absl::Status PlanAgain(const PlanSource& plans, int64_t step) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Rank id = ranks_[rank].program.plan.rank;
      StepPlan plan = plans(run_, parts_.placement, id, step);
      if (!SameMemory(plan, ranks_[rank].program.plan)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the plan of rank ", id.value, " has other buffers in step ", step,
            " than before; accepted: the same number, each of the same dtype and elements"));
      }
      SHARDPROOF_RETURN_IF_ERROR(CheckPlan(run_, parts_.placement, plan));
      observation_.events[rank] = EventsOfPlan(plan, {id.value, 1, 1});
      ranks_[rank].program = Program(std::move(plan));
    }
    return absl::OkStatus();
  }

  // Parameters get their initial values element by element, so that no rank ever holds more
  // than it keeps; moments and counters start at zero, padding as poison.
  void InitializeState(RankRuntime& rank) {
    for (int32_t buffer : rank.program.plan.live_before) rank.memory.Allocate(buffer);
    FillInitialState(run_, parts_.placement, rank.program.plan,
                     [&](int32_t buffer) { return rank.memory.data(buffer); });
  }

  RankState StateOf(RankRuntime& rank, Rank id) {
    return StateOfRank(run_, parts_.placement, rank.program.plan.homes, id, bytes_[id.value],
                       [&](int32_t buffer) { return rank.memory.data(buffer); });
  }

  void BeginStep(RankRuntime& rank, RankEvents& events) {
    for (StreamCursor& stream : rank.streams) stream = {};
    rank.done.assign(rank.program.plan.ops.size(), false);
    rank.versions.BeginStep(rank.program.plan, events);
    rank.calls = 0;
    rank.collective_of_op.assign(rank.program.plan.ops.size(), -1);
    rank.loss_sum = 0;
    rank.clip = {};
  }

  absl::Status RunSchedule() {
    const uint32_t cursors = static_cast<uint32_t>(ranks_.size()) * kStreams;
    int64_t left = 0;
    for (RankRuntime& rank : ranks_) left += static_cast<int64_t>(rank.done.size());
    idle_ = {};
    while (left > 0) {
      const uint32_t start = random_.Below(cursors);
      bool advanced = false;
      for (uint32_t i = 0; i < cursors && !advanced; ++i) {
        const uint32_t cursor = (start + i) % cursors;
        RankRuntime& rank = ranks_[cursor / kStreams];
        SHARDPROOF_ASSIGN_OR_RETURN(
            const int32_t progress,
            Advance(rank, cursor % kStreams, observation_.events[cursor / kStreams]));
        advanced = progress > 0;
        left -= progress == 2;
      }
      if (advanced) {
        idle_.rounds = 0;
      } else {
        SHARDPROOF_RETURN_IF_ERROR(WaitForOthers());
      }
    }
    return absl::OkStatus();
  }

  // 0: this stream cannot go on now; 1: it started a collective; 2: it ended an operation.
  absl::StatusOr<int32_t> Advance(RankRuntime& rank, int32_t stream, RankEvents& events) {
    const Program& current = rank.program;
    StreamCursor& cursor = rank.streams[stream];
    if (cursor.next == current.ops_of_stream[stream].size()) return 0;
    const int32_t index = current.ops_of_stream[stream][cursor.next];
    const Op& op = current.plan.ops[index];
    if (cursor.in_flight.id < 0) {
      for (int32_t wait : current.plan.WaitsOf(op)) {
        if (!rank.done[wait]) return 0;
      }
      for (const PlanAccess& access : current.plan.AccessesOf(op)) {
        if (access.kind == AccessKind::kAllocate) rank.memory.Allocate(access.buffer);
      }
      rank.versions.BeforeOp(current.plan, op, events);
      if (op.kind == OpKind::kCollective) {
        SHARDPROOF_RETURN_IF_ERROR(StartCollective(rank, op, index, cursor));
        return 1;
      }
      RunLocal(rank, current.plan, op);
    } else {
      SHARDPROOF_ASSIGN_OR_RETURN(GroupEnd* const end, EndOf(rank, op.group));
      SHARDPROOF_ASSIGN_OR_RETURN(const bool arrived, end->recorded->Poll(cursor.in_flight));
      if (!arrived) return 0;
      cursor.in_flight = {};
      rank.versions.Receive(op, index, versions_);
    }
    rank.versions.AfterOp(current.plan, op, events);
    for (const PlanAccess& access : current.plan.AccessesOf(op)) {
      if (access.kind == AccessKind::kFree) rank.memory.Free(access.buffer);
    }
    rank.done[index] = true;
    ++cursor.next;
    return 2;
  }

  // This rank's end of a group, made when it first talks in it.
  absl::StatusOr<GroupEnd*> EndOf(RankRuntime& rank, Group group) {
    for (GroupEnd& end : rank.groups) {
      if (end.group == group) return &end;
    }
    const Rank id = rank.program.plan.rank;
    SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const inner, world_->communicator(id, group));
    GroupEnd end = {.group = group, .decorated = nullptr, .recorded = nullptr};
    if (parts_.decorate) end.decorated = parts_.decorate(id, inner);
    end.recorded = ledger_.Record(end.decorated ? end.decorated.get() : inner);
    rank.groups.push_back(std::move(end));
    return &rank.groups.back();
  }

  absl::Status StartCollective(RankRuntime& rank, const Op& op, int32_t index,
                               StreamCursor& cursor) {
    CollectiveCall call;
    call.kind = op.collective;
    call.dtype = op.dtype;
    call.elements = op.elements;
    call.send = rank.memory.data(op.send);
    call.recv = rank.memory.data(op.recv);
    call.root = Rank{op.root};
    call.label = op.unit >= 0 ? op.unit : op.bucket;
    SHARDPROOF_ASSIGN_OR_RETURN(GroupEnd* const end, EndOf(rank, op.group));
    rank.collective_of_op[index] = rank.calls++;
    rank.versions.Send(op, index);
    SHARDPROOF_ASSIGN_OR_RETURN(cursor.in_flight, end->recorded->Start(call));
    return absl::OkStatus();
  }

  void RunLocal(RankRuntime& rank, const StepPlan& plan, const Op& op) {
    const MicroBatch micro_batch = {data_step_, plan.rank, op.micro_batch};
    switch (op.kind) {
      case OpKind::kForward:
        stages_->Forward(plan, op, micro_batch, rank.memory.buffers());
        break;
      case OpKind::kBackward:
        rank.loss_sum += stages_->Backward(plan, op, micro_batch, rank.memory.buffers());
        break;
      case OpKind::kScale:
        ScaleValues(rank, op, op.scale);
        break;
      case OpKind::kAccumulate: {
        const float* from = rank.memory.data(op.send);
        float* to = rank.memory.data(op.recv);
        for (int64_t i = 0; i < op.recv.range.count; ++i) to[i] += from[i];
        break;
      }
      case OpKind::kScaleBy:
        ScaleValues(rank, op, *rank.memory.data(op.send));
        break;
      case OpKind::kNorm:
        SumSquares(rank, plan, op);
        break;
      case OpKind::kClipCoefficient:
        FindCoefficient(rank, op);
        break;
      case OpKind::kCopy:
        std::copy_n(rank.memory.data(op.send), op.recv.range.count, rank.memory.data(op.recv));
        rank.versions.Copy(op);
        break;
      case OpKind::kLoss:
        rank.loss_sum += stages_->Loss(plan, micro_batch, rank.memory.buffers());
        break;
      case OpKind::kOptimizerUpdate:
        Update(rank, plan, op);
        break;
      case OpKind::kCollective:
      case OpKind::kReshard:
      case OpKind::kRelease:
        break;
    }
  }

  static void ScaleValues(RankRuntime& rank, const Op& op, float factor) {
    float* const values = rank.memory.data(op.recv);
    for (int64_t i = 0; i < op.recv.range.count; ++i) values[i] *= factor;
  }

  static void FindCoefficient(RankRuntime& rank, const Op& op) {
    const double norm = std::sqrt(*rank.memory.doubles(op.send.buffer));
    const double coefficient = static_cast<double>(op.scale) / (norm + 1e-6);
    rank.clip = {norm, static_cast<float>(std::min(coefficient, 1.0))};
    *rank.memory.data(op.recv) = rank.clip.coefficient;
  }

  void SumSquares(RankRuntime& rank, const StepPlan& plan, const Op& op) {
    double sum = 0;
    for (const UpdateRange& range : plan.UpdatesOf(op)) {
      const float* gradient = rank.memory.data(range.gradient);
      for (int64_t i = 0; i < range.count; ++i) {
        sum += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
      }
    }
    *rank.memory.doubles(op.recv.buffer) = sum;
  }

  void Update(RankRuntime& rank, const StepPlan& plan, const Op& op) {
    const auto range_data = [&](const BufferRange& range) {
      return range.buffer < 0 ? nullptr : rank.memory.data(range);
    };
    for (const UpdateRange& update : plan.UpdatesOf(op)) {
      int64_t& counter = rank.updates[update.counter_of];
      counter += update.advance;
      ApplyUpdate(HyperParametersOf(run_.optimizer, update.hyper_parameters_of), counter,
                  update.count, range_data(update.gradient), range_data(update.parameter),
                  range_data(update.exp_avg), range_data(update.exp_avg_sq));
    }
    rank.versions.Update(run_, parts_.placement, plan, op, data_step_,
                         static_cast<int32_t>(step_) + 1);
  }

  void Conclude() {
    StepObservation& observation = observation_;
    observation.step = data_step_;
    observation.losses.clear();
    observation.clips.clear();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ShowCalls(ledger_.entries(ranks_[rank].program.plan.rank), ranks_[rank].collective_of_op,
                observation.events[rank]);
      // The loss is part of backward: where nothing is trainable, nobody computes it.
      if (ComputesLoss(ranks_[rank].program.plan)) {
        observation.losses.push_back(ranks_[rank].loss_sum /
                                     static_cast<double>(run_.data.num_micro_batches));
      }
      if (run_.clip_grad_norm > 0) observation.clips.push_back(ranks_[rank].clip);
      for (TensorStep& steps : observation.states[rank].steps) {
        steps.updates = ranks_[rank].updates[steps.tensor];
      }
    }
  }

  // No stream of any local rank can go on. Ranks elsewhere may end a collective in which one is.
  absl::Status WaitForOthers() {
    const absl::Duration patience = world_->patience();
    if (patience == absl::ZeroDuration()) return Stuck();
    const auto [rank, end, handle] = FirstInFlight();
    if (end == nullptr) return Stuck();
    if (idle_.rounds++ == 0) idle_.since = absl::Now();
    if (absl::Now() - idle_.since < patience) {
      // At first what is missing is a matter of microseconds; then others need the cores more.
      constexpr int64_t kRoundsAtFullSpeed = 1000;
      if (idle_.rounds < kRoundsAtFullSpeed) {
        std::this_thread::yield();
      } else {
        absl::SleepFor(absl::Microseconds(50));
      }
      return absl::OkStatus();
    }
    const absl::Status status = end->recorded->Wait(handle, absl::ZeroDuration());
    if (status.ok()) return status;
    return absl::Status(
        status.code(),
        absl::StrCat("rank ", rank.value, " in step ", step_, ", without progress for ",
                     absl::FormatDuration(patience), ": ", status.message()));
  }

  struct InFlight {
    Rank rank;
    GroupEnd* end = nullptr;
    CollectiveHandle handle;
  };
  InFlight FirstInFlight() {
    for (RankRuntime& rank : ranks_) {
      for (int stream = 0; stream < kStreams; ++stream) {
        const StreamCursor& cursor = rank.streams[stream];
        if (cursor.in_flight.id < 0) continue;
        const StepPlan& plan = rank.program.plan;
        const Op& op = plan.ops[rank.program.ops_of_stream[stream][cursor.next]];
        const absl::StatusOr<GroupEnd*> end = EndOf(rank, op.group);
        if (end.ok()) return {plan.rank, *end, cursor.in_flight};
      }
    }
    return {};
  }

  // No stream of any rank can go on: says for each where it stands.
  absl::Status Stuck() {
    std::string message = absl::StrCat("deadlock in step ", step_, ": ");
    for (RankRuntime& rank : ranks_) {
      const Program& current = rank.program;
      for (int stream = 0; stream < kStreams; ++stream) {
        const StreamCursor& cursor = rank.streams[stream];
        if (cursor.next == current.ops_of_stream[stream].size()) continue;
        const int32_t index = current.ops_of_stream[stream][cursor.next];
        absl::StrAppend(&message, "rank ", current.plan.rank.value, " ",
                        Name(static_cast<StreamId>(stream)), " stream at operation ", index,
                        cursor.in_flight.id >= 0 ? " (in a collective)" : " (waits)", "; ");
      }
    }
    return absl::DeadlineExceededError(absl::StrCat(message, world_->DescribePending()));
  }

  const RunDescription& run_;
  const EngineParts parts_;
  const std::vector<StateBytes> bytes_;  // by rank
  std::unique_ptr<ModelCompute> compute_;
  std::unique_ptr<HostStages> arithmetic_;
  std::unique_ptr<StageRunner> stages_;
  std::unique_ptr<SimulatedWorld> own_world_;  // null: somebody else's is used
  World* world_ = nullptr;
  Ledger ledger_;
  std::vector<RankRuntime> ranks_;                  // the local ones, ascending; never resized
  std::vector<const ParameterVersions*> versions_;  // by rank of the world; null: not local
  // Rounds in which no local rank advanced, and since when; after progress, none.
  struct Idle {
    int64_t rounds = 0;
    absl::Time since;
  } idle_;
  ScheduleRandom random_;
  int64_t step_ = 0;       // training steps done
  int64_t data_step_ = 0;  // whose data the plans at hand are fed with
  StepObservation observation_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const RunDescription& run, EngineParts parts,
                                                      const MemoryBudget& budget, World* world) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  return CpuEngine::Create(run, std::move(parts), budget, world);
}

absl::StatusOr<std::unique_ptr<CpuExecutor>> MakeCpuExecutor(const RunDescription& run,
                                                             EngineParts parts,
                                                             const MemoryBudget& budget) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  return CpuEngine::Create(run, std::move(parts), budget, /*world=*/nullptr);
}

absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const RunDescription& run,
                                                      const MemoryBudget& budget) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  return MakeCpuEngine(run, PlannedParts(run), budget);
}

}  // namespace shardproof
