#include "trainer/engines/cpu_engine.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collectives/ledger.h"
#include "collectives/simulated/simulated_world.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/plan_bounds.h"
#include "trainer/engines/plan_observer.h"
#include "trainer/engines/rank_memory.h"
#include "trainer/engines/stage_runner.h"
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
  std::vector<int32_t> sent_versions = {};  // by this rank's calls of the step in the group
};

struct RankRuntime {
  Program program;
  RankMemory memory;
  std::vector<GroupEnd> groups = {};
  StreamCursor streams[kStreams] = {};
  std::vector<bool> done = {};                 // by operation, this step
  std::vector<int64_t> updates = {};           // by tensor: updates so far
  int32_t calls = 0;                           // collectives started in this step
  std::vector<int32_t> collective_of_op = {};  // by operation: its place among them
  std::vector<int32_t> place_in_group = {};    // by operation: its place in its group's calls
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

bool HoldsParameters(const BufferSpec& spec) {
  return spec.role == BufferRole::kParameter || spec.role == BufferRole::kUnshardedParameter;
}

bool ComputesLoss(const StepPlan& plan) {
  return std::any_of(plan.ops.begin(), plan.ops.end(), [](const Op& op) {
    return op.kind == OpKind::kBackward || op.kind == OpKind::kLoss;
  });
}

// Whether both plans fit one RankMemory, which is made once and for the first of them.
bool SameMemory(const StepPlan& a, const StepPlan& b) {
  return std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    [](const BufferSpec& x, const BufferSpec& y) {
                      return x.dtype == y.dtype && x.elements == y.elements;
                    });
}

class CpuEngine : public CpuExecutor {
 public:
  static absl::StatusOr<std::unique_ptr<CpuExecutor>> Create(const RunDescription& run,
                                                             EngineParts parts,
                                                             const MemoryBudget& budget) {
    auto engine = std::unique_ptr<CpuEngine>(new CpuEngine(run, std::move(parts)));
    SHARDPROOF_ASSIGN_OR_RETURN(engine->compute_, MakeModelCompute(run));
    engine->stages_ =
        std::make_unique<StageRunner>(run, engine->parts_.placement, *engine->compute_);
    SHARDPROOF_ASSIGN_OR_RETURN(engine->world_, SimulatedWorld::Create(run.sharding.world_size));
    const int32_t ranks = run.sharding.world_size.value;
    std::vector<StepPlan> plans;
    double bytes = static_cast<double>(budget.others_bytes);  // may be beyond int64
    for (int32_t rank = 0; rank < ranks; ++rank) {
      plans.push_back(engine->PlanOf(Rank{rank}, /*step=*/0));
      bytes += RankMemory::Bytes(plans.back());
      if (bytes > static_cast<double>(budget.limit_bytes)) return engine->TooLarge(budget);
    }
    engine->ranks_.reserve(plans.size());
    for (StepPlan& plan : plans) {
      RankMemory memory(plan, engine->parts_.placement);
      if (!memory.ok()) return engine->TooLarge(budget);
      const Rank rank = plan.rank;
      SHARDPROOF_RETURN_IF_ERROR(CheckPlan(run, engine->parts_.placement, plan));
      engine->observation_.events.push_back(EventsOfPlan(plan, {rank.value, 1, 1}));
      engine->ranks_.push_back({Program(std::move(plan)), std::move(memory)});
      engine->ranks_.back().updates.assign(run.model.tensors.size(), 0);
      engine->InitializeState(engine->ranks_.back());
      engine->observation_.states.push_back(engine->StateOf(engine->ranks_.back(), rank));
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

  RankMemory& memory(Rank rank) override { return ranks_[rank.value].memory; }

 private:
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
    double bytes = 0;
    for (int32_t rank = 0; rank < run_.sharding.world_size.value; ++rank) {
      bytes += RankMemory::Bytes(PlanOf(Rank{rank}, /*step=*/0));
    }
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the cpu engine needs %.0f bytes for %s on %d ranks, beside %d for others, and may use %d "
        "in all: use the accounting engine, fewer ranks or a smaller model",
        bytes, ModeRowName(run_.sharding), run_.sharding.world_size.value, budget.others_bytes,
        budget.limit_bytes));
  }

  // The plans of this step, over the same buffers.
  absl::Status PlanAgain(const PlanSource& plans, int64_t step) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Rank id = {static_cast<int32_t>(rank)};
      StepPlan plan = plans(run_, parts_.placement, id, step);
      if (!SameMemory(plan, ranks_[rank].program.plan)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the plan of rank ", rank, " has other buffers in step ", step,
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
    for (StateClass state : kStateClasses) {
      // Gradients get their first values from backward.
      if (state == StateClass::kReducedGradient) continue;
      ForEachStateSegment(
          parts_.placement, rank.program.plan.homes, rank.program.plan.rank, state,
          [&](int32_t buffer, int64_t offset, const Segment& segment) {
            float* values = rank.memory.data(buffer) + offset;
            if (segment.tensor < 0) {
              rank.memory.Fill(buffer, {offset, segment.count}, Poison::kPadding);
            } else if (state == StateClass::kParameter) {
              FillInitialValues(run_, segment.tensor, {segment.first, segment.count}, values);
            } else {
              std::fill(values, values + segment.count, 0.0f);
            }
          });
    }
  }

  RankState StateOf(RankRuntime& rank, Rank id) {
    RankState state;
    state.ranks = {id.value, 1, 1};
    state.bytes = bytes_[id.value];
    std::vector<bool> has_state(run_.model.tensors.size(), false);
    for (StateClass cls : kStateClasses) {
      ForEachStateSegment(parts_.placement, rank.program.plan.homes, id, cls,
                          [&](int32_t buffer, int64_t offset, const Segment& segment) {
                            state.segments.push_back({cls,
                                                      segment.tensor,
                                                      {segment.first, segment.count},
                                                      buffer,
                                                      offset,
                                                      rank.memory.data(buffer) + offset});
                          });
    }
    ForEachOwnTensor(id, [&](int32_t tensor) {
      if (!has_state[tensor]) state.steps.push_back({tensor, 0});
      has_state[tensor] = true;
    });
    return state;
  }

  // Calls fn(tensor) for every run of elements whose updates are this rank's.
  template <typename Fn>
  void ForEachOwnTensor(Rank rank, Fn fn) const {
    const Placement& placement = parts_.placement;
    for (size_t index = 0; index < placement.sets.size(); ++index) {
      const TensorSet& set = placement.sets[index];
      if (set.owner >= 0 && set.owner != rank.value) continue;
      for (const Segment& segment : set.layout.shard(ShardOf(set, rank))) {
        if (segment.tensor < 0) continue;
        if (placement.moment_set[segment.tensor] == static_cast<int32_t>(index)) fn(segment.tensor);
      }
    }
  }

  void BeginStep(RankRuntime& rank, RankEvents& events) {
    for (StreamCursor& stream : rank.streams) stream = {};
    rank.done.assign(rank.program.plan.ops.size(), false);
    for (GroupEnd& end : rank.groups) end.sent_versions.clear();
    rank.calls = 0;
    rank.collective_of_op.assign(rank.program.plan.ops.size(), -1);
    rank.place_in_group.assign(rank.program.plan.ops.size(), -1);
    rank.loss_sum = 0;
    rank.clip = {};
    for (Access& access : events.accesses) access.version = -1;
  }

  absl::Status RunSchedule() {
    const uint32_t cursors = static_cast<uint32_t>(ranks_.size()) * kStreams;
    int64_t left = 0;
    for (RankRuntime& rank : ranks_) left += static_cast<int64_t>(rank.done.size());
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
      if (!advanced) return Stuck();
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
      Touch(rank, current.plan, op, events, /*before=*/true);
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
      ReceiveVersions(rank, op, index);
    }
    Touch(rank, current.plan, op, events, /*before=*/false);
    rank.done[index] = true;
    ++cursor.next;
    return 2;
  }

  // Before: memory of allocations, versions that reads meet. After: versions that writes
  // leave, poison of what is freed.
  void Touch(RankRuntime& rank, const StepPlan& plan, const Op& op, RankEvents& events,
             bool before) {
    for (int32_t i = op.first_access; i < op.first_access + op.access_count; ++i) {
      Access& access = events.accesses[i];
      const bool versioned = HoldsParameters(plan.buffers[access.buffer]);
      switch (access.kind) {
        case AccessKind::kAllocate:
          if (before) rank.memory.Allocate(access.buffer);
          break;
        case AccessKind::kRead:
          if (before && versioned) {
            access.version = rank.memory.Version(access.buffer, access.range);
          }
          break;
        case AccessKind::kWrite:
          if (!before && versioned) {
            access.version = rank.memory.Version(access.buffer, access.range);
          }
          break;
        case AccessKind::kFree:
          if (!before) rank.memory.Free(access.buffer);
          break;
      }
    }
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
    rank.place_in_group[index] = static_cast<int32_t>(end->sent_versions.size());
    end->sent_versions.push_back(rank.memory.Version(op.send.buffer, op.send.range));
    SHARDPROOF_ASSIGN_OR_RETURN(cursor.in_flight, end->recorded->Start(call));
    return absl::OkStatus();
  }

  // The version with which a member sent its `place`th call of the group; -1: it made none.
  int32_t SentVersion(Rank member, Group group, int32_t place) const {
    for (const GroupEnd& end : ranks_[member.value].groups) {
      if (!(end.group == group)) continue;
      const size_t at = static_cast<size_t>(place);
      return at < end.sent_versions.size() ? end.sent_versions[at] : -1;
    }
    return -1;
  }

  // What arrives carries the version that its sender had when it sent.
  void ReceiveVersions(RankRuntime& rank, const Op& op, int32_t index) {
    const int32_t place = rank.place_in_group[index];
    if (op.collective == CollectiveKind::kAllGather) {
      const int64_t shard = op.elements / op.group.count;
      for (int32_t member = 0; member < op.group.count; ++member) {
        rank.memory.SetVersion(op.recv.buffer, {op.recv.range.first + member * shard, shard},
                               SentVersion(op.group.member(member), op.group, place));
      }
    } else if (op.collective == CollectiveKind::kBroadcast) {
      rank.memory.SetVersion(op.recv.buffer, op.recv.range,
                             SentVersion(Rank{op.root}, op.group, place));
    }
  }

  void RunLocal(RankRuntime& rank, const StepPlan& plan, const Op& op) {
    const MicroBatch micro_batch = {data_step_, plan.rank, op.micro_batch};
    switch (op.kind) {
      case OpKind::kForward:
        stages_->Forward(plan, op, micro_batch, rank.memory);
        break;
      case OpKind::kBackward:
        rank.loss_sum += stages_->Backward(plan, op, micro_batch, rank.memory);
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
        rank.memory.SetVersion(op.recv.buffer, op.recv.range,
                               rank.memory.Version(op.send.buffer, op.send.range));
        break;
      case OpKind::kLoss:
        rank.loss_sum += stages_->Loss(plan, micro_batch, rank.memory);
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
      rank.memory.SetVersion(update.parameter.buffer, update.parameter.range,
                             static_cast<int32_t>(step_) + 1);
    }
    if (op.set < 0) {
      AgeUnused(rank, plan);
      return;
    }
    // A shard that is cut inside a part, or all padding, is up to date too, and so is one whose
    // tensors nobody used.
    const TensorSet& set = parts_.placement.sets[op.set];
    const int64_t shard = set.layout.shard_elements;
    const int64_t own = set.parameter == Keeps::kWhole ? ShardOf(set, plan.rank) * shard : 0;
    rank.memory.SetVersion(plan.homes[op.set].parameter, {own, shard},
                           static_cast<int32_t>(step_) + 1);
  }

  // An owner's tensors that nobody used in this step carry it all the same.
  void AgeUnused(RankRuntime& rank, const StepPlan& plan) {
    if (run_.usage.empty()) return;
    for (size_t index = 0; index < parts_.placement.sets.size(); ++index) {
      const TensorSet& set = parts_.placement.sets[index];
      if (set.owner != plan.rank.value) continue;
      for (const Segment& segment : set.layout.segments) {
        if (segment.tensor < 0 || IsUsedInStep(run_, segment.tensor, data_step_)) continue;
        rank.memory.SetVersion(plan.homes[index].parameter,
                               {set.layout.offset(segment), segment.count},
                               static_cast<int32_t>(step_) + 1);
      }
    }
  }

  void Conclude() {
    StepObservation& observation = observation_;
    observation.step = data_step_;
    observation.losses.clear();
    observation.clips.clear();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ShowCalls(ranks_[rank], Rank{static_cast<int32_t>(rank)}, observation.events[rank]);
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

  // What a collective event shows is what the communicator was asked for, not what was planned.
  void ShowCalls(const RankRuntime& rank, Rank id, RankEvents& events) {
    const absl::Span<const LedgerEntry> calls = ledger_.entries(id);
    for (size_t op = 0; op < events.events.size(); ++op) {
      Event& event = events.events[op];
      if (event.kind != EventKind::kCollective) continue;
      const int32_t position = rank.collective_of_op[op];
      event.completed = position >= 0 && static_cast<size_t>(position) < calls.size();
      if (!event.completed) continue;
      const LedgerEntry& call = calls[position];
      event.collective = call.kind;
      event.dtype = call.dtype;
      event.elements = call.elements;
      event.group = call.group;
      if (call.kind == CollectiveKind::kBroadcast) event.root = call.root.value;
    }
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
  std::unique_ptr<StageRunner> stages_;
  std::unique_ptr<SimulatedWorld> world_;
  Ledger ledger_;
  std::vector<RankRuntime> ranks_;
  ScheduleRandom random_;
  int64_t step_ = 0;       // training steps done
  int64_t data_step_ = 0;  // whose data the plans at hand are fed with
  StepObservation observation_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const RunDescription& run, EngineParts parts,
                                                      const MemoryBudget& budget) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  return MakeCpuExecutor(run, std::move(parts), budget);
}

absl::StatusOr<std::unique_ptr<CpuExecutor>> MakeCpuExecutor(const RunDescription& run,
                                                             EngineParts parts,
                                                             const MemoryBudget& budget) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  return CpuEngine::Create(run, std::move(parts), budget);
}

absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const RunDescription& run,
                                                      const MemoryBudget& budget) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  return MakeCpuEngine(run, PlannedParts(run), budget);
}

}  // namespace shardproof
