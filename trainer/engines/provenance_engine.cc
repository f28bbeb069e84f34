#include "trainer/engines/provenance_engine.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/plan_bounds.h"
#include "trainer/engines/plan_observer.h"
#include "trainer/engines/provenance_arithmetic.h"
#include "trainer/engines/provenance_meeting.h"
#include "trainer/engines/provenance_memory.h"
#include "trainer/engines/provenance_stages.h"
#include "trainer/plan/planner.h"

namespace shardproof {
namespace {

constexpr StateClass kStateClasses[] = {StateClass::kParameter, StateClass::kReducedGradient,
                                        StateClass::kExpAvg, StateClass::kExpAvgSq};

OriginUse HeldUse(StateClass state) {
  switch (state) {
    case StateClass::kParameter:
      return OriginUse::kHeldParameter;
    case StateClass::kReducedGradient:
      return OriginUse::kHeldGradient;
    case StateClass::kExpAvg:
      return OriginUse::kHeldExpAvg;
    case StateClass::kExpAvgSq:
      return OriginUse::kHeldExpAvgSq;
  }
  return OriginUse::kHeldParameter;
}

Origin InertOrigin(OriginKind kind, Rank rank, int32_t buffer) {
  Origin origin;
  origin.kind = kind;
  origin.rank = rank.value;
  origin.buffer = buffer;
  return origin;
}

struct RankRuntime {
  Rank rank;
  StepPlan plan = {};
  std::vector<OriginBuffer> buffers = {};
  size_t next = 0;                     // operation
  bool arrived = false;                // at a collective, whose memory is allocated
  std::vector<int64_t> counters = {};  // by tensor: update counts
  // By buffer of gradients: the places that no gradient belongs to.
  std::vector<std::vector<ElementRange>> padding = {};
};

class ProvenanceEngine : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const RunDescription& run,
                                                        EngineParts parts) {
    auto engine = std::unique_ptr<ProvenanceEngine>(new ProvenanceEngine(run, std::move(parts)));
    SHARDPROOF_ASSIGN_OR_RETURN(
        engine->stages_, StageOrigins::Create(run, engine->parts_.placement, &engine->arithmetic_,
                                              &engine->observation_.origins));
    // The placement lies within the model: Create has looked.
    engine->bytes_ = BytesOfRanks(engine->parts_.placement, run.sharding.world_size.value);
    for (int32_t rank = 0; rank < run.sharding.world_size.value; ++rank) {
      SHARDPROOF_RETURN_IF_ERROR(engine->AddRank(Rank{rank}));
    }
    return engine;
  }

  absl::StatusOr<const StepObservation*> Step() override {
    if (step_ == 1 || (step_ > 1 && parts_.plan_varies_by_step)) {
      for (RankRuntime& rank : ranks_) SHARDPROOF_RETURN_IF_ERROR(Plan(rank));
    }
    BeginStep();
    SHARDPROOF_RETURN_IF_ERROR(RunSchedule());
    for (size_t rank = 0; rank < ranks_.size(); ++rank) Conclude(ranks_[rank]);
    observation_.step = step_++;
    return &observation_;
  }

 private:
  ProvenanceEngine(const RunDescription& run, EngineParts parts)
      : run_(run), parts_(std::move(parts)), arithmetic_(&observation_.origins) {}

  StepOrigins& origins() { return observation_.origins; }

  absl::Status AddRank(Rank id) {
    ranks_.push_back({.rank = id});
    observation_.events.emplace_back();
    RankRuntime& rank = ranks_.back();
    SHARDPROOF_RETURN_IF_ERROR(Plan(rank));
    for (size_t buffer = 0; buffer < rank.plan.buffers.size(); ++buffer) {
      rank.buffers.emplace_back(rank.plan.buffers[buffer].elements,
                                InertOrigin(OriginKind::kFreed, id, static_cast<int32_t>(buffer)));
    }
    rank.counters.assign(run_.model.tensors.size(), 0);
    FindPadding(rank);
    SHARDPROOF_RETURN_IF_ERROR(CheckHomes(rank));
    InitializeState(rank);
    observation_.states.push_back(StateOf(rank));
    return absl::OkStatus();
  }

  // The rank's plan of this step, over the buffers of its first.
  absl::Status Plan(RankRuntime& rank) {
    StepPlan plan = parts_.plan(run_, parts_.placement, rank.rank, step_);
    bool same = rank.buffers.empty() || plan.buffers.size() == rank.buffers.size();
    for (size_t buffer = 0; same && buffer < rank.buffers.size(); ++buffer) {
      same = plan.buffers[buffer].elements == rank.buffers[buffer].elements();
    }
    for (const BufferSpec& buffer : plan.buffers) same = same && buffer.elements >= 0;
    if (!same) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the plan of rank ", rank.rank.value, " for step ", step_, " has ", plan.buffers.size(),
          " buffers; accepted: ", rank.buffers.size(), " of the sizes of step 0"));
    }
    SHARDPROOF_RETURN_IF_ERROR(CheckPlan(run_, parts_.placement, plan));
    observation_.events[rank.rank.value] = EventsOfPlan(plan, {rank.rank.value, 1, 1});
    rank.plan = std::move(plan);
    return absl::OkStatus();
  }

  // That what the placement keeps lies in the buffers that the plan keeps it in.
  absl::Status CheckHomes(const RankRuntime& rank) const {
    absl::Status status = absl::OkStatus();
    for (StateClass state : kStateClasses) {
      for (const SetHome& home : rank.plan.homes) {
        const int32_t buffer = BufferOf(state, home);
        if (buffer < static_cast<int32_t>(rank.buffers.size())) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", rank.rank.value, " keeps ", Name(state), " in buffer ", buffer,
                         "; accepted: buffers below ", rank.buffers.size()));
      }
      ForEachStateSegment(
          parts_.placement, rank.plan.homes, rank.rank, state,
          [&](int32_t buffer, int64_t offset, const Segment& segment) {
            const int64_t elements = rank.buffers[buffer].elements();
            if (offset >= 0 && segment.count >= 0 && segment.count <= elements - offset) return;
            status = absl::InvalidArgumentError(absl::StrCat(
                "rank ", rank.rank.value, " keeps ", segment.count, " elements of ", Name(state),
                " at ", offset, " of buffer ", buffer, "; accepted: within its ", elements));
          });
    }
    return status;
  }

  // Gradients are allocated anew all the time; what is between them is padding even so.
  void FindPadding(RankRuntime& rank) const {
    const Placement& placement = parts_.placement;
    rank.padding.resize(rank.buffers.size());
    for (size_t buffer = 0; buffer < rank.buffers.size(); ++buffer) {
      const BufferSpec& spec = rank.plan.buffers[buffer];
      const bool gradient =
          spec.role == BufferRole::kGradient || spec.role == BufferRole::kUnreducedGradient;
      const bool of_set = spec.set >= 0 && static_cast<size_t>(spec.set) < placement.sets.size();
      if (!gradient || !of_set) continue;
      const TensorSet& set = placement.sets[spec.set];
      const bool whole = spec.elements == set.layout.padded_elements();
      if (!whole && spec.elements != set.layout.shard_elements) continue;
      const int32_t own = ShardOf(set, rank.rank);
      for (const Segment& segment : set.layout.segments) {
        const bool counts = segment.tensor >= 0 && placement.gradient_set[segment.tensor] >= 0;
        if (counts || (!whole && segment.rank != own)) continue;
        rank.padding[buffer].push_back(
            {whole ? set.layout.offset(segment) : segment.shard_offset, segment.count});
      }
    }
  }

  void InitializeState(RankRuntime& rank) {
    for (int32_t buffer : rank.plan.live_before) Allocate(rank, buffer);
    for (StateClass state : kStateClasses) {
      // Gradients get their first values from backward.
      if (state == StateClass::kReducedGradient) continue;
      ForEachStateSegment(
          parts_.placement, rank.plan.homes, rank.rank, state,
          [&](int32_t buffer, int64_t offset, const Segment& segment) {
            const OriginRun run = {segment.count, InitialOrigin(rank.rank, state, buffer, segment)};
            rank.buffers[buffer].Write(offset, {&run, 1});
          });
    }
  }

  static Origin InitialOrigin(Rank rank, StateClass state, int32_t buffer, const Segment& segment) {
    if (segment.tensor < 0) return InertOrigin(OriginKind::kPadding, rank, buffer);
    Origin origin;
    origin.kind =
        state == StateClass::kParameter
            ? OriginKind::kParameter
            : (state == StateClass::kExpAvg ? OriginKind::kExpAvg : OriginKind::kExpAvgSq);
    origin.tensor = segment.tensor;
    origin.element = segment.first;
    return origin;
  }

  RankState StateOf(const RankRuntime& rank) const {
    RankState state;
    state.ranks = {rank.rank.value, 1, 1};
    state.bytes = bytes_[rank.rank.value];
    for (StateClass cls : kStateClasses) {
      ForEachStateSegment(
          parts_.placement, rank.plan.homes, rank.rank, cls,
          [&](int32_t buffer, int64_t offset, const Segment& segment) {
            state.segments.push_back(
                {cls, segment.tensor, {segment.first, segment.count}, buffer, offset, nullptr});
          });
    }
    return state;
  }

  void BeginStep() {
    origins().records.clear();
    origins().runs.clear();
    arithmetic_.Compact([&](auto keep) {
      for (RankRuntime& rank : ranks_) {
        for (OriginBuffer& buffer : rank.buffers) buffer.ForEachOrigin(keep);
      }
    });
    for (RankRuntime& rank : ranks_) {
      rank.next = 0;
      rank.arrived = false;
    }
  }

  absl::Status RunSchedule() {
    bool advanced = true;
    while (advanced) {
      advanced = false;
      for (RankRuntime& rank : ranks_) advanced = RunUntilCollective(rank) || advanced;
      for (RankRuntime& rank : ranks_) {
        SHARDPROOF_ASSIGN_OR_RETURN(const bool met, MeetAt(rank));
        advanced = met || advanced;
      }
    }
    std::vector<Standing> standing;
    bool ended = true;
    for (const RankRuntime& rank : ranks_) {
      standing.push_back(StandingOf(rank));
      ended = ended && standing.back().op == nullptr;
    }
    return ended ? absl::OkStatus() : StuckError(step_, standing);
  }

  static const Op* NextOp(const RankRuntime& rank) {
    return rank.next < rank.plan.ops.size() ? &rank.plan.ops[rank.next] : nullptr;
  }

  // A wait of the next operation that will never be over; -1: none. In issue order all earlier
  // operations have ended.
  static int32_t EndlessWait(const RankRuntime& rank) {
    for (int32_t wait : rank.plan.WaitsOf(rank.plan.ops[rank.next])) {
      if (wait >= static_cast<int32_t>(rank.next)) return wait;
    }
    return -1;
  }

  static Standing StandingOf(const RankRuntime& rank) {
    Standing standing = {rank.rank, static_cast<int32_t>(rank.next), NextOp(rank), -1};
    if (standing.op != nullptr) standing.never_ends = EndlessWait(rank);
    return standing;
  }

  // Returns whether anything ran, or a collective was reached.
  bool RunUntilCollective(RankRuntime& rank) {
    bool advanced = false;
    while (!rank.arrived && NextOp(rank) != nullptr && EndlessWait(rank) < 0) {
      const Op& op = *NextOp(rank);
      advanced = true;
      Touch(rank, op, AccessKind::kAllocate);
      if (op.kind == OpKind::kCollective) {
        rank.arrived = true;
        break;
      }
      RunLocal(rank, op);
      Touch(rank, op, AccessKind::kFree);
      ++rank.next;
    }
    return advanced;
  }

  // Runs the collective that `rank` is in if all its members have arrived.
  absl::StatusOr<bool> MeetAt(const RankRuntime& rank) {
    if (!rank.arrived) return false;
    const Group group = NextOp(rank)->group;
    if (!group.Contains(rank.rank)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank.rank.value, " calls ",
          CollectiveText(*NextOp(rank), static_cast<int32_t>(rank.next)), ", a group without it"));
    }
    std::vector<Participant> members;
    for (int32_t i = 0; i < group.count; ++i) {
      RankRuntime& member = ranks_[group.member(i).value];
      if (!member.arrived || !(NextOp(member)->group == group)) return false;
      members.push_back(
          {member.rank, static_cast<int32_t>(member.next), NextOp(member), &member.buffers});
    }
    SHARDPROOF_RETURN_IF_ERROR(Meet(members, arithmetic_));
    for (const Participant& end : members) {
      RankRuntime& member = ranks_[end.rank.value];
      Touch(member, *end.op, AccessKind::kFree);
      member.arrived = false;
      ++member.next;
    }
    return true;
  }

  static void Allocate(RankRuntime& rank, int32_t buffer) {
    rank.buffers[buffer].Fill(InertOrigin(OriginKind::kNeverWritten, rank.rank, buffer));
    for (const ElementRange& range : rank.padding[buffer]) {
      const OriginRun run = {range.count, InertOrigin(OriginKind::kPadding, rank.rank, buffer)};
      rank.buffers[buffer].Write(range.first, {&run, 1});
    }
  }

  // The operation's allocations, before it runs, or its frees, after.
  static void Touch(RankRuntime& rank, const Op& op, AccessKind kind) {
    for (const PlanAccess& access : rank.plan.AccessesOf(op)) {
      if (access.kind != kind) continue;
      if (kind == AccessKind::kAllocate) {
        Allocate(rank, access.buffer);
      } else {
        rank.buffers[access.buffer].Fill(InertOrigin(OriginKind::kFreed, rank.rank, access.buffer));
      }
    }
  }

  void RunLocal(RankRuntime& rank, const Op& op) {
    const OriginOp at = {step_,      rank.rank, static_cast<int32_t>(rank.next),
                         &rank.plan, &op,       &rank.buffers};
    switch (op.kind) {
      case OpKind::kForward:
        stages_->Forward(at);
        break;
      case OpKind::kBackward:
        stages_->Backward(at);
        break;
      case OpKind::kScale:
        Rewrite(rank, op.recv, [&](const Origin& value) {
          return arithmetic_.Scaled(value, static_cast<double>(op.scale));
        });
        break;
      case OpKind::kScaleBy:
        ScaleBy(rank, op);
        break;
      case OpKind::kAccumulate: {
        const std::vector<OriginRun> sum = arithmetic_.Sum(
            ReadRuns(rank, op.recv),
            ReadRuns(rank, {op.send.buffer, {op.send.range.first, op.recv.range.count}}));
        rank.buffers[op.recv.buffer].Write(op.recv.range.first, sum);
        break;
      }
      case OpKind::kCopy:
        rank.buffers[op.recv.buffer].Write(
            op.recv.range.first,
            ReadRuns(rank, {op.send.buffer, {op.send.range.first, op.recv.range.count}}));
        break;
      case OpKind::kNorm:
        Norm(rank, op);
        break;
      case OpKind::kClipCoefficient: {
        const OriginRun run = {1, arithmetic_.CoefficientOf(FirstOf(rank, op.send))};
        rank.buffers[op.recv.buffer].Write(op.recv.range.first, {&run, 1});
        break;
      }
      case OpKind::kOptimizerUpdate:
        for (const UpdateRange& update : rank.plan.UpdatesOf(op)) Update(rank, update);
        break;
      case OpKind::kCollective:
      case OpKind::kLoss:
      case OpKind::kReshard:
      case OpKind::kRelease:
        break;
    }
  }

  static std::vector<OriginRun> ReadRuns(const RankRuntime& rank, const BufferRange& from) {
    std::vector<OriginRun> runs;
    rank.buffers[from.buffer].Read(from.range, 0, runs);
    return runs;
  }

  static Origin FirstOf(const RankRuntime& rank, const BufferRange& from) {
    return ReadRuns(rank, {from.buffer, {from.range.first, 1}})[0].origin;
  }

  template <typename Fn>
  static void Rewrite(RankRuntime& rank, const BufferRange& range, Fn fn) {
    std::vector<OriginRun> runs = ReadRuns(rank, range);
    for (OriginRun& run : runs) run.origin = fn(run.origin);
    rank.buffers[range.buffer].Write(range.range.first, runs);
  }

  // A record of what this operation reads at `from`; its tensor and range are left to the caller.
  OriginRecord RecordRead(const RankRuntime& rank, OriginUse use, const BufferRange& from) {
    OriginRecord record;
    record.use = use;
    record.rank = rank.rank.value;
    record.event = static_cast<int32_t>(rank.next);
    record.buffer = from.buffer;
    record.range = {0, from.range.count};
    record.first_run = static_cast<uint32_t>(origins().runs.size());
    rank.buffers[from.buffer].Read(from.range, record.first_run, origins().runs);
    record.run_count = static_cast<uint32_t>(origins().runs.size()) - record.first_run;
    return record;
  }

  void ScaleBy(RankRuntime& rank, const Op& op) {
    const BufferRange factor = {op.send.buffer, {op.send.range.first, 1}};
    origins().records.push_back(RecordRead(rank, OriginUse::kClipCoefficient, factor));
    const Origin origin = FirstOf(rank, factor);
    Rewrite(rank, op.recv,
            [&](const Origin& value) { return arithmetic_.ScaledBy(value, origin); });
  }

  void Norm(RankRuntime& rank, const Op& op) {
    for (const UpdateRange& range : rank.plan.UpdatesOf(op)) {
      OriginRecord record = RecordRead(rank, OriginUse::kNormGradient, range.gradient);
      record.tensor = range.tensor;
      origins().records.push_back(record);
    }
    OriginTerm term;
    term.step = step_;
    term.rank = rank.rank.value;
    Origin norm;
    norm.kind = OriginKind::kNorm;
    norm.terms = arithmetic_.OneTerm(term);
    const OriginRun run = {1, norm};
    rank.buffers[op.recv.buffer].Write(op.recv.range.first, {&run, 1});
  }

  // Run by run of what its parameter range holds, so that each record is of one tensor.
  void Update(RankRuntime& rank, const UpdateRange& update) {
    int64_t& counter = rank.counters[update.counter_of];
    counter += update.advance;
    int64_t done = 0;
    for (const OriginRun& run : ReadRuns(rank, update.parameter)) {
      RecordUpdate(rank, update, {done, run.count}, run.origin, counter);
      done += run.count;
    }
    for (const BufferRange* range : {&update.parameter, &update.exp_avg, &update.exp_avg_sq}) {
      if (range->buffer < 0) continue;
      Rewrite(rank, *range, [](const Origin& value) { return OriginArithmetic::Updated(value); });
    }
  }

  // `part` of the update meets the parameter `origin`.
  void RecordUpdate(const RankRuntime& rank, const UpdateRange& update, ElementRange part,
                    const Origin& origin, int64_t counter) {
    const bool known = origin.kind == OriginKind::kParameter;
    const auto record = [&](OriginUse use, const BufferRange& range) {
      if (range.buffer < 0) return;
      OriginRecord read =
          RecordRead(rank, use, {range.buffer, {range.range.first + part.first, part.count}});
      if (known) {
        read.tensor = origin.tensor;
        read.range.first = origin.element;
      }
      if (use == OriginUse::kUpdateParameter) {
        read.named_tensor = update.tensor;
        read.hyper_parameters_of = update.hyper_parameters_of;
        read.step_count = counter;
      }
      origins().records.push_back(read);
    };
    record(OriginUse::kUpdateParameter, update.parameter);
    record(OriginUse::kUpdateGradient, update.gradient);
    record(OriginUse::kUpdateExpAvg, update.exp_avg);
    record(OriginUse::kUpdateExpAvgSq, update.exp_avg_sq);
  }

  void Conclude(const RankRuntime& rank) {
    RankState& state = observation_.states[rank.rank.value];
    state.steps.clear();
    int32_t counted = -1;
    for (const StateSegment& segment : state.segments) {
      OriginRecord record;
      record.use = HeldUse(segment.state);
      record.rank = rank.rank.value;
      record.buffer = segment.buffer;
      record.tensor = segment.tensor;
      record.range = segment.range;
      record.first_run = static_cast<uint32_t>(origins().runs.size());
      rank.buffers[segment.buffer].Read({segment.buffer_offset, segment.range.count},
                                        record.first_run, origins().runs);
      record.run_count = static_cast<uint32_t>(origins().runs.size()) - record.first_run;
      origins().records.push_back(record);
      // A tensor's segments are neighbours.
      if (segment.state != StateClass::kExpAvg || segment.tensor < 0) continue;
      if (segment.tensor == counted) continue;
      counted = segment.tensor;
      state.steps.push_back({counted, rank.counters[counted]});
    }
  }

  const RunDescription& run_;
  const EngineParts parts_;
  std::vector<StateBytes> bytes_;  // by rank
  StepObservation observation_;
  OriginArithmetic arithmetic_;
  std::unique_ptr<StageOrigins> stages_;
  std::vector<RankRuntime> ranks_;
  int64_t step_ = 0;
};

// Plans, runs and records for each piece of a tensor and each operation on a rank: rounded up
// from what plans and records of a step hold.
double EstimatedBytes(const RunDescription& run, const Placement& placement) {
  double segments = 0;
  for (const TensorSet& set : placement.sets) {
    segments += static_cast<double>(set.layout.segments.size()) + set.layout.shards;
  }
  const double ranks = run.sharding.world_size.value;
  const double micro_batches = static_cast<double>(run.data.num_micro_batches);
  const double pieces = segments + static_cast<double>(run.model.tensors.size());
  // Every stage of every rank's micro-batch is a term of several sums.
  const double terms = ranks * micro_batches * static_cast<double>(run.model.stages.size()) * ranks;
  return 1000 * ranks * pieces * (4 + micro_batches) + 200 * terms;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeProvenanceEngine(const RunDescription& run,
                                                             EngineParts parts,
                                                             int64_t memory_limit_bytes) {
  SHARDPROOF_RETURN_IF_ERROR(CanPlan(run));
  const double bytes = EstimatedBytes(run, parts.placement);
  if (bytes > static_cast<double>(memory_limit_bytes)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the provenance engine may need %.0f bytes for the origins of %s on %d ranks and may use "
        "%d: use the accounting engine, fewer ranks or a smaller model",
        bytes, ModeRowName(run.sharding), run.sharding.world_size.value, memory_limit_bytes));
  }
  return ProvenanceEngine::Create(run, std::move(parts));
}

}  // namespace shardproof
