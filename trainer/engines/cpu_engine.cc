#include "trainer/engines/cpu_engine.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collectives/ledger.h"
#include "collectives/simulated/simulated_world.h"
#include "invariants/run_description/status_macros.h"
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

struct RankRuntime {
  Program first;
  Program steady;
  RankMemory memory;
  std::unique_ptr<Communicator> communicator;
  StreamCursor streams[kStreams] = {};
  std::vector<bool> done = {};                 // by operation, this step
  std::vector<int64_t> updates = {};           // by tensor: updates so far
  std::vector<int32_t> sent_versions = {};     // by this rank's collectives of the step, in order
  std::vector<int32_t> collective_of_op = {};  // by operation: its place in sent_versions
  double loss_sum = 0;
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

bool HasBackward(const StepPlan& plan) {
  return std::any_of(plan.ops.begin(), plan.ops.end(),
                     [](const Op& op) { return op.kind == OpKind::kBackward; });
}

class CpuEngine : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const RunDescription& run,
                                                        const MemoryBudget& budget) {
    auto engine = std::unique_ptr<CpuEngine>(new CpuEngine(run));
    SHARDPROOF_ASSIGN_OR_RETURN(engine->compute_, MakeModelCompute(run));
    engine->stages_ = std::make_unique<StageRunner>(run, engine->placement_, *engine->compute_);
    SHARDPROOF_ASSIGN_OR_RETURN(engine->world_, SimulatedWorld::Create(run.sharding.world_size));
    const int32_t ranks = run.sharding.world_size.value;
    std::vector<StepPlan> plans;
    double bytes = static_cast<double>(budget.others_bytes);  // may be beyond int64
    for (int32_t rank = 0; rank < ranks; ++rank) {
      plans.push_back(PlanStep(run, engine->placement_, Rank{rank}, /*first_step=*/true));
      bytes += RankMemory::Bytes(plans.back());
      if (bytes > static_cast<double>(budget.limit_bytes)) return TooLarge(run, budget);
    }
    engine->ranks_.reserve(plans.size());
    for (int32_t rank = 0; rank < ranks; ++rank) {
      SHARDPROOF_ASSIGN_OR_RETURN(Communicator* const communicator,
                                  engine->world_->communicator(Rank{rank}, Group{0, 1, ranks}));
      engine->AddRank(std::move(plans[rank]), engine->ledger_.Record(communicator));
      if (!engine->ranks_.back().memory.ok()) return TooLarge(run, budget);
      engine->InitializeState(engine->ranks_.back());
      engine->first_.states.push_back(engine->StateOf(engine->ranks_.back(), Rank{rank}));
    }
    return engine;
  }

  absl::StatusOr<const StepObservation*> Step() override {
    const bool first = step_ == 0;
    ledger_.Clear();
    StepObservation& observation = first ? first_ : steady_;
    if (step_ == 1) std::swap(first_.states, steady_.states);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      BeginStep(ranks_[rank], program(ranks_[rank]), observation.events[rank]);
    }
    SHARDPROOF_RETURN_IF_ERROR(RunSchedule(observation));
    Conclude(observation);
    ++step_;
    return &observation;
  }

 private:
  explicit CpuEngine(const RunDescription& run)
      : run_(run),
        placement_(MakePlacement(run)),
        bytes_(BytesOfRanks(placement_, run.sharding.world_size.value)),
        ledger_(run.sharding.world_size),
        random_(run.data.seed) {}

  Program& program(RankRuntime& rank) { return step_ == 0 ? rank.first : rank.steady; }

  static absl::Status TooLarge(const RunDescription& run, const MemoryBudget& budget) {
    const Placement placement = MakePlacement(run);
    double bytes = 0;
    for (int32_t rank = 0; rank < run.sharding.world_size.value; ++rank) {
      bytes += RankMemory::Bytes(PlanStep(run, placement, Rank{rank}, /*first_step=*/true));
    }
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the cpu engine needs %.0f bytes for %s on %d ranks, beside %d for others, and may use %d "
        "in all: use the accounting engine, fewer ranks or a smaller model",
        bytes, ModeRowName(run.sharding), run.sharding.world_size.value, budget.others_bytes,
        budget.limit_bytes));
  }

  void AddRank(StepPlan first, std::unique_ptr<Communicator> communicator) {
    const Rank rank = first.rank;
    StepPlan steady = PlanStep(run_, placement_, rank, /*first_step=*/false);
    first_.events.push_back(EventsOfPlan(first, {rank.value, 1, 1}));
    steady_.events.push_back(EventsOfPlan(steady, {rank.value, 1, 1}));
    RankMemory memory(steady, placement_);
    ranks_.push_back({Program(std::move(first)), Program(std::move(steady)), std::move(memory),
                      std::move(communicator)});
    ranks_.back().updates.assign(run_.model.tensors.size(), 0);
  }

  // Parameters get their initial values element by element, so that no rank ever holds more
  // than it keeps; moments and counters start at zero, padding as poison.
  void InitializeState(RankRuntime& rank) {
    for (int32_t buffer : rank.first.plan.live_before) rank.memory.Allocate(buffer);
    for (StateClass state : kStateClasses) {
      // Gradients get their first values from backward.
      if (state == StateClass::kReducedGradient) continue;
      ForEachStateSegment(
          placement_, rank.first.plan.homes, rank.first.plan.rank, state,
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
      ForEachStateSegment(placement_, rank.steady.plan.homes, id, cls,
                          [&](int32_t buffer, int64_t offset, const Segment& segment) {
                            state.segments.push_back({cls,
                                                      segment.tensor,
                                                      {segment.first, segment.count},
                                                      buffer,
                                                      offset,
                                                      rank.memory.data(buffer) + offset});
                          });
    }
    for (const UpdateRange& update : rank.steady.plan.updates) {
      if (has_state[update.tensor]) continue;
      has_state[update.tensor] = true;
      state.steps.push_back({update.tensor, 0});
    }
    return state;
  }

  void BeginStep(RankRuntime& rank, const Program& program, RankEvents& events) {
    for (StreamCursor& stream : rank.streams) stream = {};
    rank.done.assign(program.plan.ops.size(), false);
    rank.sent_versions.clear();
    rank.collective_of_op.assign(program.plan.ops.size(), -1);
    rank.loss_sum = 0;
    for (Access& access : events.accesses) access.version = -1;
  }

  absl::Status RunSchedule(StepObservation& observation) {
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
            Advance(rank, cursor % kStreams, observation.events[cursor / kStreams]));
        advanced = progress > 0;
        left -= progress == 2;
      }
      if (!advanced) return Stuck();
    }
    return absl::OkStatus();
  }

  // 0: this stream cannot go on now; 1: it started a collective; 2: it ended an operation.
  absl::StatusOr<int32_t> Advance(RankRuntime& rank, int32_t stream, RankEvents& events) {
    Program& current = program(rank);
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
      SHARDPROOF_ASSIGN_OR_RETURN(const bool arrived, rank.communicator->Poll(cursor.in_flight));
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
    rank.collective_of_op[index] = static_cast<int32_t>(rank.sent_versions.size());
    rank.sent_versions.push_back(rank.memory.Version(op.send.buffer, op.send.range));
    SHARDPROOF_ASSIGN_OR_RETURN(cursor.in_flight, rank.communicator->Start(call));
    return absl::OkStatus();
  }

  // What arrives carries the version that its sender had when it sent.
  void ReceiveVersions(RankRuntime& rank, const Op& op, int32_t index) {
    const size_t position = static_cast<size_t>(rank.collective_of_op[index]);
    if (op.collective == CollectiveKind::kAllGather) {
      const int64_t shard = op.elements / op.group.count;
      for (int32_t member = 0; member < op.group.count; ++member) {
        rank.memory.SetVersion(op.recv.buffer, {op.recv.range.first + member * shard, shard},
                               ranks_[op.group.member(member).value].sent_versions[position]);
      }
    } else if (op.collective == CollectiveKind::kBroadcast) {
      rank.memory.SetVersion(op.recv.buffer, op.recv.range,
                             ranks_[op.root].sent_versions[position]);
    }
  }

  void RunLocal(RankRuntime& rank, const StepPlan& plan, const Op& op) {
    const MicroBatch micro_batch = {step_, plan.rank, op.micro_batch};
    switch (op.kind) {
      case OpKind::kForward:
        stages_->Forward(plan, op, micro_batch, rank.memory);
        break;
      case OpKind::kBackward:
        rank.loss_sum += stages_->Backward(plan, op, micro_batch, rank.memory);
        break;
      case OpKind::kScale: {
        float* values = rank.memory.data(op.recv);
        for (int64_t i = 0; i < op.recv.range.count; ++i) values[i] *= op.scale;
        break;
      }
      case OpKind::kAccumulate: {
        const float* from = rank.memory.data(op.send);
        float* to = rank.memory.data(op.recv);
        for (int64_t i = 0; i < op.recv.range.count; ++i) to[i] += from[i];
        break;
      }
      case OpKind::kOptimizerUpdate:
        Update(rank, plan, op);
        break;
      case OpKind::kCollective:
      case OpKind::kReshard:
      case OpKind::kRelease:
        break;
    }
  }

  void Update(RankRuntime& rank, const StepPlan& plan, const Op& op) {
    const auto range_data = [&](const BufferRange& range) {
      return range.buffer < 0 ? nullptr : rank.memory.data(range);
    };
    int32_t counted = -1;
    for (const UpdateRange& update : plan.UpdatesOf(op)) {
      // A tensor's runs are neighbours, and its counter moves once.
      if (update.tensor != counted) ++rank.updates[update.tensor];
      counted = update.tensor;
      ApplyUpdate(run_.optimizer, rank.updates[update.tensor], update.count,
                  range_data(update.gradient), range_data(update.parameter),
                  range_data(update.exp_avg), range_data(update.exp_avg_sq));
      rank.memory.SetVersion(update.parameter.buffer, update.parameter.range,
                             static_cast<int32_t>(step_) + 1);
    }
    // A shard that is cut inside a part, or all padding, is up to date too.
    if (op.set < 0) return;
    const TensorSet& set = placement_.sets[op.set];
    const int64_t shard = set.layout.shard_elements;
    const int64_t own = set.parameter == Keeps::kWhole ? ShardOf(set, plan.rank) * shard : 0;
    rank.memory.SetVersion(plan.homes[op.set].parameter, {own, shard},
                           static_cast<int32_t>(step_) + 1);
  }

  void Conclude(StepObservation& observation) {
    observation.step = step_;
    observation.losses.clear();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ShowCalls(ranks_[rank], Rank{static_cast<int32_t>(rank)}, observation.events[rank]);
      // The loss is part of backward: where nothing is trainable, nobody computes it.
      if (HasBackward(program(ranks_[rank]).plan)) {
        observation.losses.push_back(ranks_[rank].loss_sum /
                                     static_cast<double>(run_.data.num_micro_batches));
      }
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
      const Program& current = program(rank);
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
  const Placement placement_;
  const std::vector<StateBytes> bytes_;  // by rank
  std::unique_ptr<ModelCompute> compute_;
  std::unique_ptr<StageRunner> stages_;
  std::unique_ptr<SimulatedWorld> world_;
  Ledger ledger_;
  std::vector<RankRuntime> ranks_;
  ScheduleRandom random_;
  int64_t step_ = 0;
  StepObservation first_;   // of the first step
  StepObservation steady_;  // of every later one
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const RunDescription& run,
                                                      const MemoryBudget& budget) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  return CpuEngine::Create(run, budget);
}

}  // namespace shardproof
