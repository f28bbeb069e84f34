// Every check must be able to fail on a whole run.
//
// Small runs of the cpu engine are written as observation files and read back, as a trainer
// behind a file would show them. Unedited, they pass all nine checks. Then one fault each is
// edited into what was observed, and the checks must fail that claim to see it, and name where.
// An edit may break other checks too: a missing all-gather is also a read of memory that nobody
// filled.
#include "invariants/checks/check.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/all_checks.h"
#include "invariants/checks/float_bits.h"
#include "invariants/closed_forms/example_runs.h"
#include "invariants/observation/observation_io.h"
#include "invariants/suite/judge_file.h"
#include "trainer/engines/cpu_engine.h"

namespace shardproof {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr int64_t kNoLimit = int64_t{1} << 40;
constexpr int32_t kRanks = 3;

// Odd widths. Elements of a unit, weight + bias, and of its shard:
//   layers.0  30 + 6   12: the weight is cut at 12 and 24
//   layers.1  42 + 7   17: the weight is cut at 17 and 34; rank 2 ends in 2 elements of padding
//   layers.2  21 + 3    8: the weight is cut at 8 and 16
RunDescription RunOf(const ShardingDescription& sharding) {
  RunDescription run = MlpRun({5, 6, 7, 3}, /*bias=*/true, sharding);
  run.data.micro_batch_size = 4;
  run.data.num_micro_batches = 2;
  return run;
}

RunDescription FullShard() { return RunOf(Sharding(Mode::kFullShard, kRanks)); }

// Three buckets.
RunDescription Zero2() {
  ShardingDescription sharding = Sharding(Mode::kZero2, kRanks);
  sharding.bucket_cap_bytes = 100;
  return RunOf(sharding);
}

RunDescription Zero1Broadcast() { return RunOf(Sharding(Mode::kZero1Broadcast, kRanks)); }

// A run as it was shown, open for edits.
struct Recording {
  RunDescription run;
  std::vector<StoredStep> steps;
};

void Record(const RunDescription& run, std::string* file) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = MakeCpuEngine(run, kNoLimit);
  ASSERT_TRUE(engine.ok()) << engine.status();
  *file = PrintObservationHeader(run) + "\n";
  for (int64_t step = 0; step < run.data.steps; ++step) {
    const absl::StatusOr<const StepObservation*> observed = (*engine)->Step();
    ASSERT_TRUE(observed.ok()) << observed.status();
    absl::StrAppend(file, PrintObservationStep(**observed), "\n");
  }
}

void Read(const std::string& file, Recording* recording) {
  const ModelImporter none = [](absl::string_view) {
    return absl::UnimplementedError("the model is written out");
  };
  std::istringstream input(file);
  absl::StatusOr<ObservationReader> reader = ObservationReader::Open(&input, none);
  ASSERT_TRUE(reader.ok()) << reader.status();
  recording->run = reader->run();
  while (true) {
    absl::StatusOr<std::optional<StoredStep>> step = reader->Next();
    ASSERT_TRUE(step.ok()) << step.status();
    if (!step->has_value()) return;
    recording->steps.push_back(**std::move(step));
  }
}

using Results = std::map<std::string, CheckResult>;

void Judge(const Recording& recording, Results* results) {
  const absl::StatusOr<Oracle> oracle =
      OracleFor(recording.run, recording.steps[0].observation, kNoLimit);
  ASSERT_TRUE(oracle.ok()) << oracle.status();
  size_t next = 0;
  const StepSource source = [&]() -> absl::StatusOr<const StepObservation*> {
    return next < recording.steps.size() ? &recording.steps[next++].observation : nullptr;
  };
  const absl::StatusOr<CaseResult> judged = JudgeSteps(recording.run, source, *oracle, {});
  ASSERT_TRUE(judged.ok()) << judged.status();
  for (const CheckResult& check : judged->checks) (*results)[check.name] = check;
}

// --- Edits of values.

// The reader stored them, and not as constants.
float* Floats(const StateSegment& segment) { return const_cast<float*>(segment.values); }

RankState& State(Recording& recording, int64_t step, int32_t rank) {
  return recording.steps[step].observation.states[rank];
}

// Calls edit(values, count) for each segment of a class; tensor -1: of every tensor.
template <typename Edit>
void EditSegments(RankState& state, StateClass wanted, int32_t tensor, Edit edit) {
  for (StateSegment& segment : state.segments) {
    if (segment.state != wanted || segment.tensor < 0) continue;
    if (tensor >= 0 && segment.tensor != tensor) continue;
    edit(segment);
  }
}

void Scale(RankState& state, StateClass wanted, float factor) {
  EditSegments(state, wanted, -1, [&](StateSegment& segment) {
    for (int64_t i = 0; i < segment.range.count; ++i) Floats(segment)[i] *= factor;
  });
}

// The value of one logical element that the rank holds.
float* Element(RankState& state, StateClass wanted, int32_t tensor, int64_t element) {
  float* found = nullptr;
  EditSegments(state, wanted, tensor, [&](StateSegment& segment) {
    if (element < segment.range.first || element >= segment.range.end()) return;
    found = Floats(segment) + (element - segment.range.first);
  });
  return found;
}

void NextFloat(float* value) { *value = FloatFromBits(FloatBits(*value) + 1); }

StateSegment* FindPadding(RankState& state, StateClass wanted) {
  for (StateSegment& segment : state.segments) {
    if (segment.state == wanted && segment.tensor < 0 && segment.range.count > 0) return &segment;
  }
  return nullptr;
}

// --- Edits of events.

RankEvents& Events(Recording& recording, int64_t step, int32_t rank) {
  return recording.steps[step].observation.events[rank];
}

// The nth event that fits, -1 if there is none.
int32_t Find(const RankEvents& events, const std::function<bool(const Event&)>& fits, int nth = 0) {
  for (size_t i = 0; i < events.events.size(); ++i) {
    if (fits(events.events[i]) && nth-- == 0) return static_cast<int32_t>(i);
  }
  return -1;
}

int32_t FindCollective(const RankEvents& events, CollectiveKind kind, Phase phase, int32_t set,
                       int nth = 0) {
  return Find(
      events,
      [&](const Event& event) {
        return event.kind == EventKind::kCollective && event.collective == kind &&
               event.phase == phase && std::max(event.unit, event.bucket) == set;
      },
      nth);
}

int32_t FindEvent(const RankEvents& events, EventKind kind, Phase phase, int32_t unit) {
  return Find(events, [&](const Event& event) {
    return event.kind == kind && event.phase == phase && event.unit == unit;
  });
}

// The rank issues its old events in this order. Waits follow their events; a wait on an event
// that is not issued any more goes with it.
void Reorder(RankEvents& events, const std::vector<int32_t>& order) {
  std::vector<int32_t> place(events.events.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int32_t>(i);
  RankEvents result = events;
  result.events.clear();
  result.waits.clear();
  for (const int32_t old : order) {
    Event event = events.events[old];
    const uint32_t first = event.first_wait;
    event.first_wait = static_cast<uint32_t>(result.waits.size());
    for (uint32_t w = first; w < first + event.wait_count; ++w) {
      if (place[events.waits[w]] >= 0) result.waits.push_back(place[events.waits[w]]);
    }
    event.wait_count = static_cast<uint32_t>(result.waits.size()) - event.first_wait;
    result.events.push_back(event);
  }
  events = result;
}

std::vector<int32_t> IssueOrderOf(const RankEvents& events) {
  std::vector<int32_t> order(events.events.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  return order;
}

void EraseEvent(RankEvents& events, int32_t event) {
  std::vector<int32_t> order = IssueOrderOf(events);
  order.erase(order.begin() + event);
  Reorder(events, order);
}

void SwapEvents(RankEvents& events, int32_t a, int32_t b) {
  std::vector<int32_t> order = IssueOrderOf(events);
  std::swap(order[a], order[b]);
  Reorder(events, order);
}

// Adds an access at the end of an event's.
void AddAccess(RankEvents& events, int32_t event, const Access& access) {
  Event& edited = events.events[event];
  std::vector<Access> all(events.accesses.begin() + edited.first_access,
                          events.accesses.begin() + edited.first_access + edited.access_count);
  all.push_back(access);
  edited.first_access = static_cast<uint32_t>(events.accesses.size());
  edited.access_count = static_cast<uint32_t>(all.size());
  events.accesses.insert(events.accesses.end(), all.begin(), all.end());
}

// Removes the accesses of an event that fit.
void EraseAccesses(RankEvents& events, int32_t event,
                   const std::function<bool(const Access&)>& fits) {
  Event& edited = events.events[event];
  const auto begin = events.accesses.begin() + edited.first_access;
  const auto end = std::remove_if(begin, begin + edited.access_count, fits);
  edited.access_count = static_cast<uint32_t>(end - begin);
}

Access* FindAccess(RankEvents& events, int32_t event, AccessKind kind, BufferRole role) {
  Event& edited = events.events[event];
  for (uint32_t i = 0; i < edited.access_count; ++i) {
    Access& access = events.accesses[edited.first_access + i];
    if (access.kind == kind && events.buffers[access.buffer].role == role) return &access;
  }
  return nullptr;
}

// --- The canaries.

// A violation that must be among those of a check, in the last step.
struct Sighting {
  std::string check;
  int32_t rank = -1;  // -1, here and below: any
  std::string unit = {};
  std::string tensor = {};
  int64_t element = -1;
  std::vector<std::string> says = {};  // in the sentence that people read
};

Sighting InTensor(const std::string& check, int32_t rank, const std::string& tensor,
                  int64_t element, const std::vector<std::string>& says) {
  return {.check = check, .rank = rank, .tensor = tensor, .element = element, .says = says};
}

// Of a unit or bucket; "" where any will do.
Sighting InUnit(const std::string& check, int32_t rank, const std::string& unit,
                const std::vector<std::string>& says) {
  return {.check = check, .rank = rank, .unit = unit, .says = says};
}

struct Canary {
  std::string name;
  RunDescription (*run)();
  std::function<void(Recording&)> edit;
  std::set<std::string> must_fail;
  std::vector<Sighting> sightings;
  std::set<std::string> must_pass = {};  // where it matters that a check does not see this
};

// For messages of gtest.
std::ostream& operator<<(std::ostream& out, const Canary& canary) { return out << canary.name; }

constexpr int64_t kLast = 2;                   // the last step: nothing follows from the fault
constexpr int32_t kWeight0 = 0, kWeight1 = 2;  // tensors

std::vector<Canary> ValueCanaries() {
  return {
      {.name = "AGradientOfOneRankIsSummedAndNotAveraged",
       .run = FullShard,
       .edit =
           [](Recording& r) { Scale(State(r, kLast, 1), StateClass::kReducedGradient, kRanks); },
       .must_fail = {"numeric_equivalence"},
       .sightings = {InTensor(
           "numeric_equivalence", 1, "layers.0.weight", 12,
           {"every reduced gradient", "(ratio 3)", "the ratio is N ", "never divided by N"})},
       .must_pass = {"collective_ledger", "aggregate_factors", "padding", "liveness"}},
      // Both micro-batches count alike here: what a run shows that dropped one of two like ones.
      {.name = "OneMicroBatchIsMissingFromEveryGradient",
       .run = Zero2,
       .edit =
           [](Recording& r) {
             for (int32_t rank = 0; rank < kRanks; ++rank) {
               Scale(State(r, kLast, rank), StateClass::kReducedGradient, 0.5f);
             }
           },
       .must_fail = {"numeric_equivalence"},
       .sightings = {InUnit("numeric_equivalence", 0, "",
                            {"every reduced gradient", "(ratio 0.5)", "the ratio is 1/K "}),
                     InUnit("numeric_equivalence", 2, "", {"the ratio is 1/K "})}},
      {.name = "TheParametersOfOneRankAreThoseOfTheStepBefore",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             EditSegments(State(r, kLast, 2), StateClass::kParameter, -1, [&](StateSegment& s) {
               for (int64_t i = 0; i < s.range.count; ++i) {
                 Floats(s)[i] = *Element(State(r, kLast - 1, 2), StateClass::kParameter, s.tensor,
                                         s.range.first + i);
               }
             });
           },
       .must_fail = {"numeric_equivalence", "liveness"},
       .sightings = {InTensor("numeric_equivalence", 2, "layers.0.weight", 24,
                              {"every update", "never reached this rank's parameter"}),
                     InTensor("liveness", 2, "layers.1.weight", 34,
                              {"never updated in this step: 8 of the 8 elements"})}},
      {.name = "ASecondMomentIsWrongByOneUlp",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             NextFloat(Element(State(r, kLast, 1), StateClass::kExpAvgSq, kWeight1, 20));
           },
       .must_fail = {"numeric_equivalence"},
       .sightings = {InTensor("numeric_equivalence", 1, "layers.1.weight", 20,
                              {"every second moment", " 1 ulp apart", "optimizer's arithmetic"})},
       .must_pass = {"liveness", "padding"}},
      {.name = "AStepCounterRunsTwice",
       .run = FullShard,
       .edit = [](Recording& r) { ++State(r, kLast, 0).steps[0].updates; },
       .must_fail = {"numeric_equivalence"},
       .sightings = {InTensor("numeric_equivalence", 0, "layers.0.weight", -1,
                              {"Expected 3 updates, found 4 updates", "bias correction"})}},
      {.name = "AnElementStaysThatShouldMove",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             *Element(State(r, kLast, 0), StateClass::kParameter, kWeight1, 4) =
                 *Element(State(r, kLast - 1, 0), StateClass::kParameter, kWeight1, 4);
           },
       .must_fail = {"liveness", "numeric_equivalence"},
       .sightings = {InTensor("liveness", 0, "layers.1.weight", 4,
                              {"never updated in this step: 1 of the 17 elements"}),
                     InTensor("numeric_equivalence", 0, "layers.1.weight", 4, {"see liveness"})}},
      {.name = "AReplicaDiffers",
       .run = Zero1Broadcast,
       .edit =
           [](Recording& r) {
             NextFloat(Element(State(r, kLast, 2), StateClass::kParameter, kWeight0, 7));
           },
       .must_fail = {"liveness", "numeric_equivalence"},
       .sightings = {InTensor("liveness", 2, "layers.0.weight", 7,
                              {"copies of a parameter on different ranks are bit-equal",
                               "as on rank 0"}),
                     InTensor("numeric_equivalence", 2, "layers.0.weight", 7, {})}},
      {.name = "ANumberIsInThePadding",
       .run = FullShard,
       .edit =
           [](Recording& r) { *Floats(*FindPadding(State(r, kLast, 2), StateClass::kExpAvg)) = 0; },
       .must_fail = {"padding"},
       .sightings = {InUnit("padding", 2, "layers.1",
                            {"Expected NaN", "found 0 (0x00000000)", "set to zero"})},
       .must_pass = {"numeric_equivalence", "aggregate_factors"}},
      {.name = "APoisonReachedALogicalElement",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             *Element(State(r, kLast, 0), StateClass::kExpAvg, kWeight0, 3) =
                 PoisonValue({PoisonKind::kFreed, 0});
           },
       .must_fail = {"padding", "numeric_equivalence"},
       .sightings = {InTensor("padding", 0, "layers.0.weight", 3,
                              {"the poison of freed memory", "read after its release"}),
                     InTensor("numeric_equivalence", 0, "layers.0.weight", 3,
                              {"poison of freed memory"})}},
  };
}

// Rank 1 holds every gradient whole, in buffers that it does not show.
void HoldGradientsWhole(Recording& r) {
  RankState& state = State(r, kLast, 1);
  std::erase_if(state.segments, [](const StateSegment& segment) {
    return segment.state == StateClass::kReducedGradient;
  });
  state.bytes.gradient = 0;
  for (size_t tensor = 0; tensor < r.run.model.tensors.size(); ++tensor) {
    StateSegment whole;
    whole.state = StateClass::kReducedGradient;
    whole.tensor = static_cast<int32_t>(tensor);
    whole.range = {0, Elements(r.run.model.tensors[tensor])};
    state.segments.push_back(whole);
    state.bytes.gradient += 4 * whole.range.count;
  }
}

std::vector<Canary> StateCanaries() {
  return {
      {.name = "GradientsAreWholeWhereTheModeShardsThem",
       .run = Zero2,
       .edit = HoldGradientsWhole,
       .must_fail = {"aggregate_factors", "padding", "peak_memory"},
       .sightings = {InUnit("aggregate_factors", 1, "",
                            {"gradient bytes on each rank", "gradient is not sharded"}),
                     InUnit("padding", 1, "", {"and again on rank 1"}),
                     InUnit("peak_memory", 1, "", {"what the rank's inventory states"})}},
      {.name = "TwoRanksOwnTheSameElements",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             EditSegments(State(r, kLast, 1), StateClass::kExpAvg, kWeight0,
                          [](StateSegment& segment) { segment.range.first = 0; });
           },
       .must_fail = {"padding"},
       .sightings = {InTensor(
           "padding", 1, "layers.0.weight", 0,
           {"held exactly once over the ranks", "on rank 0 and again on rank 1"})},
       .must_pass = {"aggregate_factors"}},
  };
}

// The all-gathers of two neighbouring buckets after the update.
void SwapGathers(RankEvents& events) {
  SwapEvents(events, FindCollective(events, CollectiveKind::kAllGather, Phase::kOptimizer, 0),
             FindCollective(events, CollectiveKind::kAllGather, Phase::kOptimizer, 1));
}

std::vector<Canary> CommunicationCanaries() {
  return {
      {.name = "OneRankLeavesOutAnAllGather",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             RankEvents& events = Events(r, kLast, 1);
             EraseEvent(events,
                        FindCollective(events, CollectiveKind::kAllGather, Phase::kForward, 1));
           },
       .must_fail = {"collective_ledger", "issue_order", "unshard_lifecycle", "ordering",
                     "peak_memory"},
       .sightings = {InUnit("collective_ledger", 1, "layers.1",
                            {"all-gather of layers.1 in forward", "is missing", "found nothing"}),
                     InUnit("issue_order", 1, "layers.1", {"is never issued in this step"}),
                     InUnit("unshard_lifecycle", 1, "layers.1",
                            {"only while their unit is unsharded", "a gather left out"}),
                     InUnit("ordering", 1, "", {"ranks issue the collectives of a group"})}},
      {.name = "AnAllReduceTooMany",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             for (int32_t rank = 0; rank < kRanks; ++rank) {
               RankEvents& events = Events(r, kLast, rank);
               Event extra = events.events[FindCollective(events, CollectiveKind::kReduceScatter,
                                                          Phase::kBackward, 1)];
               extra.collective = CollectiveKind::kAllReduce;
               extra.wait_count = extra.access_count = 0;
               events.events.push_back(extra);
             }
           },
       .must_fail = {"collective_ledger", "issue_order"},
       .sightings = {InUnit("collective_ledger", 0, "layers.1",
                            {"all-reduce of layers.1", "is extra", "Expected nothing"}),
                     InUnit("issue_order", 2, "", {"the mode has no all-reduce"})}},
      {.name = "AReduceScatterRunsInAnotherGroup",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             RankEvents& events = Events(r, kLast, 0);
             events
                 .events[FindCollective(events, CollectiveKind::kReduceScatter, Phase::kBackward,
                                        1)]
                 .group.count = 2;
           },
       .must_fail = {"collective_ledger"},
       .sightings = {InUnit("collective_ledger", 0, "layers.1",
                            {"among 3 ranks", "among 2 ranks", "within another group of ranks"})},
       .must_pass = {"issue_order", "unshard_lifecycle"}},
      {.name = "APayloadIsCountedWithoutItsPadding",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             for (int32_t rank = 0; rank < kRanks; ++rank) {
               RankEvents& events = Events(r, kLast, rank);
               events
                   .events[FindCollective(events, CollectiveKind::kReduceScatter, Phase::kBackward,
                                          1)]
                   .elements = 49;
             }
           },
       .must_fail = {"collective_ledger"},
       .sightings = {InUnit("collective_ledger", 2, "layers.1",
                            {"of 51 float32", "of 49 float32", "another layout or padding"})},
       .must_pass = {"issue_order", "ordering"}},
      {.name = "ABroadcastComesFromAnotherRank",
       .run = Zero1Broadcast,
       .edit =
           [](Recording& r) {
             for (int32_t rank = 0; rank < kRanks; ++rank) {
               RankEvents& events = Events(r, kLast, rank);
               Event& event = events.events[Find(events, [](const Event& e) {
                 return e.kind == EventKind::kCollective && e.tensor == kWeight1;
               })];
               event.root = (event.root + 1) % kRanks;
             }
           },
       .must_fail = {"collective_ledger"},
       .sightings = {InTensor("collective_ledger", 0, "layers.1.weight", -1, {"is missing"})}},
      {.name = "EveryRankSwapsTwoCollectives",
       .run = Zero2,
       .edit =
           [](Recording& r) {
             for (int32_t rank = 0; rank < kRanks; ++rank) SwapGathers(Events(r, kLast, rank));
           },
       .must_fail = {"issue_order"},
       .sightings = {InUnit("issue_order", 0, "bucket 0",
                            {"a step is issued in the order of zero2", "all-gather of bucket 1"}),
                     InUnit("issue_order", 2, "bucket 0", {})},
       .must_pass = {"collective_ledger", "numeric_equivalence"}},
      {.name = "OneRankSwapsTwoCollectives",
       .run = Zero2,
       .edit = [](Recording& r) { SwapGathers(Events(r, kLast, 2)); },
       .must_fail = {"collective_ledger", "issue_order", "ordering"},
       .sightings = {InUnit("collective_ledger", 2, "bucket 1",
                            {"in the same order", "rank 0 issues all-gather of bucket 0",
                             "rank 2 issues all-gather of bucket 1"}),
                     InUnit("ordering", -1, "", {"hangs or mixes data"})}},
  };
}

// What computes layers.2 in forward reads the full parameters of layers.0 instead.
void ReadFreedParameters(Recording& r) {
  RankEvents& events = Events(r, kLast, 1);
  const Access* freed =
      FindAccess(events, FindEvent(events, EventKind::kReshard, Phase::kForward, 0),
                 AccessKind::kFree, BufferRole::kUnshardedParameter);
  FindAccess(events, FindEvent(events, EventKind::kCompute, Phase::kForward, 2), AccessKind::kRead,
             BufferRole::kUnshardedParameter)
      ->buffer = freed->buffer;
}

// The reshard of layers.1 frees layers.0 once more.
void FreeTwice(Recording& r) {
  RankEvents& events = Events(r, kLast, 0);
  const Access freed =
      *FindAccess(events, FindEvent(events, EventKind::kReshard, Phase::kForward, 0),
                  AccessKind::kFree, BufferRole::kUnshardedParameter);
  AddAccess(events, FindEvent(events, EventKind::kReshard, Phase::kForward, 1), freed);
}

// The full parameters of layers.2 outlive their backward, into the peak of the step.
void LeaveOutAFree(Recording& r) {
  RankEvents& events = Events(r, kLast, 2);
  const int32_t last_micro_batch = static_cast<int32_t>(r.run.data.num_micro_batches) - 1;
  const int32_t reshard = Find(events, [&](const Event& event) {
    return event.kind == EventKind::kReshard && event.phase == Phase::kBackward &&
           event.micro_batch == last_micro_batch && event.unit == 2;
  });
  EraseAccesses(events, reshard,
                [](const Access& access) { return access.kind == AccessKind::kFree; });
}

std::vector<Canary> LifetimeCanaries() {
  return {
      {.name = "AReshardAfterForwardIsMissing",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             RankEvents& events = Events(r, kLast, 1);
             EraseEvent(events, FindEvent(events, EventKind::kReshard, Phase::kForward, 1));
           },
       .must_fail = {"unshard_lifecycle", "peak_memory"},
       .sightings = {InUnit("unshard_lifecycle", 1, "layers.1",
                            {"gathered only while it is sharded", "a reshard that was left out"}),
                     InUnit("peak_memory", 1, "", {"unsharded_parameter", "resharded"})},
       .must_pass = {"collective_ledger", "issue_order"}},
      {.name = "ComputationReadsAFreedBuffer",
       .run = FullShard,
       .edit = ReadFreedParameters,
       .must_fail = {"unshard_lifecycle"},
       .sightings = {InUnit(
           "unshard_lifecycle", 1, "layers.0",
           {"used only between allocation and release", "forward of layers.2", "freed by"})},
       .must_pass = {"collective_ledger", "issue_order", "peak_memory"}},
      {.name = "ComputationReadsParametersOfTheStepBefore",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             RankEvents& events = Events(r, kLast, 2);
             FindAccess(events, FindEvent(events, EventKind::kCompute, Phase::kForward, 1),
                        AccessKind::kRead, BufferRole::kUnshardedParameter)
                 ->version = kLast - 1;
           },
       .must_fail = {"unshard_lifecycle"},
       .sightings = {InUnit("unshard_lifecycle", 2, "layers.1",
                            {"Expected version 2, found version 1", "gathered before it"})},
       .must_pass = {"collective_ledger", "ordering", "numeric_equivalence"}},
      {.name = "ABufferIsFreedTwice",
       .run = FullShard,
       .edit = FreeTwice,
       .must_fail = {"unshard_lifecycle", "peak_memory"},
       .sightings = {InUnit("unshard_lifecycle", 0, "layers.0", {"free by event"}),
                     InUnit(
                         "peak_memory", 0, "",
                         {"a buffer is freed only when it is alive", "layers.0", "freed twice"})}},
      {.name = "AFreeIsLeftOut",
       .run = FullShard,
       .edit = LeaveOutAFree,
       .must_fail = {"peak_memory", "unshard_lifecycle"},
       .sightings = {InUnit("peak_memory", 2, "layers.1", {"the peak of live bytes", "overlap"}),
                     InUnit("peak_memory", 2, "layers.2", {"alive at its end"}),
                     InUnit("unshard_lifecycle", 2, "layers.2",
                            {"a reshard frees the unit's full parameters"})},
       .must_pass = {"collective_ledger", "issue_order"}},
      {.name = "ComputationDoesNotWaitForItsGather",
       .run = FullShard,
       .edit =
           [](Recording& r) {
             RankEvents& events = Events(r, kLast, 1);
             events.events[FindEvent(events, EventKind::kCompute, Phase::kForward, 1)].wait_count =
                 0;
           },
       .must_fail = {"ordering"},
       .sightings = {InUnit("ordering", 1, "layers.1",
                            {"forward of layers.1", "needs a wait on", "all_gather of layers.1"})},
       .must_pass = {"unshard_lifecycle", "collective_ledger", "issue_order", "peak_memory",
                     "numeric_equivalence"}},
  };
}

std::vector<Canary> AllCanaries() {
  std::vector<Canary> all;
  for (const auto& group :
       {ValueCanaries(), StateCanaries(), CommunicationCanaries(), LifetimeCanaries()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

// --- The tests.

std::string Text(const CheckResult& result) {
  std::string text = absl::StrCat(result.name, " ", Name(result.verdict), " ", result.reason, "\n");
  for (const Violation& violation : result.violations) {
    absl::StrAppend(&text, Describe(result, violation), "\n");
  }
  return text;
}

bool Shows(const CheckResult& result, const Violation& violation, const Sighting& wanted) {
  if (wanted.rank >= 0 && violation.rank != wanted.rank) return false;
  if (violation.step != kLast) return false;
  if (!wanted.unit.empty() && violation.unit != wanted.unit) return false;
  if (!wanted.tensor.empty() && violation.tensor != wanted.tensor) return false;
  if (wanted.element >= 0 && violation.element != wanted.element) return false;
  const std::string sentence = Describe(result, violation);
  return std::all_of(wanted.says.begin(), wanted.says.end(), [&](const std::string& words) {
    return sentence.find(words) != std::string::npos;
  });
}

class Canaries : public testing::TestWithParam<Canary> {};

TEST_P(Canaries, TheFaultIsSeenAndItsPlaceNamed) {
  const Canary& canary = GetParam();
  std::string file;
  ASSERT_NO_FATAL_FAILURE(Record(canary.run(), &file));
  Recording recording;
  ASSERT_NO_FATAL_FAILURE(Read(file, &recording));
  canary.edit(recording);
  Results results;
  ASSERT_NO_FATAL_FAILURE(Judge(recording, &results));
  for (const std::string& name : canary.must_fail) {
    EXPECT_EQ(results[name].verdict, Verdict::kFail) << Text(results[name]);
  }
  for (const std::string& name : canary.must_pass) {
    EXPECT_EQ(results[name].verdict, Verdict::kPass) << Text(results[name]);
  }
  for (const Sighting& wanted : canary.sightings) {
    const CheckResult& result = results[wanted.check];
    ASSERT_FALSE(result.violations.empty()) << Text(result);
    EXPECT_EQ(result.violations[0].step, kLast) << "the earliest is not the fault";
    EXPECT_TRUE(std::any_of(result.violations.begin(), result.violations.end(),
                            [&](const Violation& v) { return Shows(result, v, wanted); }))
        << "rank " << wanted.rank << ", " << wanted.unit << wanted.tensor << " "
        << testing::PrintToString(wanted.says) << " is not in\n"
        << Text(result);
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, Canaries, testing::ValuesIn(AllCanaries()),
                         [](const testing::TestParamInfo<Canary>& canary) {
                           return canary.param.name;
                         });

TEST(CheckTest, AnUneditedRunPassesAllNine) {
  for (RunDescription (*run)() : {FullShard, Zero2, Zero1Broadcast}) {
    std::string file;
    ASSERT_NO_FATAL_FAILURE(Record(run(), &file));
    std::istringstream input(file);
    const absl::StatusOr<JudgedFile> judged = JudgeFile(&input, nullptr, kNoLimit, {});
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_EQ(judged->result.verdict, Verdict::kPass);
    ASSERT_EQ(judged->result.checks.size(), 9u);
    for (const CheckResult& check : judged->result.checks) {
      EXPECT_EQ(check.verdict, Verdict::kPass) << Text(check);
    }
    EXPECT_TRUE(judged->result.numeric.observed);
    EXPECT_EQ(judged->result.figures.ranks.size(), 3u);
  }
}

TEST(CheckTest, EveryCheckHasACanary) {
  std::set<std::string> seen;
  for (const Canary& canary : AllCanaries()) {
    seen.insert(canary.must_fail.begin(), canary.must_fail.end());
  }
  for (const std::string& name : AllCheckNames()) EXPECT_THAT(seen, Contains(name));
}

// What the oracle is missing, by the reason that the checks of values give.
std::string ReasonOfValues(const std::string& file) {
  std::istringstream input(file);
  const absl::StatusOr<JudgedFile> judged = JudgeFile(&input, nullptr, kNoLimit, {});
  if (!judged.ok()) return std::string(judged.status().message());
  EXPECT_EQ(judged->result.verdict, Verdict::kPass);
  std::string reasons;
  for (const CheckResult& check : judged->result.checks) {
    const bool of_values = check.name == "numeric_equivalence" || check.name == "liveness";
    EXPECT_EQ(check.verdict, of_values ? Verdict::kNotObserved : Verdict::kPass) << Text(check);
    if (of_values) absl::StrAppend(&reasons, check.reason, "\n");
  }
  return reasons;
}

TEST(CheckTest, WithoutAnOracleTheChecksOfValuesSayWhy) {
  std::string file;
  ASSERT_NO_FATAL_FAILURE(Record(FullShard(), &file));

  Recording recording;
  ASSERT_NO_FATAL_FAILURE(Read(file, &recording));
  std::string without_values = PrintObservationHeader(recording.run) + "\n";
  for (const StoredStep& step : recording.steps) {
    absl::StrAppend(&without_values, PrintObservationStep(step.observation, Values::kOmit), "\n");
  }
  EXPECT_THAT(ReasonOfValues(without_values), HasSubstr("shows no values"));

  recording.run.model.kind = ModelKind::kOpaque;
  std::string opaque = PrintObservationHeader(recording.run) + "\n";
  for (const StoredStep& step : recording.steps) {
    absl::StrAppend(&opaque, PrintObservationStep(step.observation), "\n");
  }
  EXPECT_THAT(ReasonOfValues(opaque), HasSubstr("replicated training lacks"));
}

TEST(CheckTest, AnOracleThatDoesNotFitIsMissing) {
  RunDescription run = RunOf(Sharding(Mode::kZero2, kRanks));
  run.model.tensors[0].shape = {1 << 20, 1 << 20};
  StoredStep first;
  first.storage.push_back({0});
  RankState state;
  StateSegment segment;
  segment.values = first.storage[0].data();
  state.segments.push_back(segment);
  first.observation.states.push_back(state);
  const absl::StatusOr<Oracle> oracle = OracleFor(run, first.observation, 1000);
  ASSERT_TRUE(oracle.ok()) << oracle.status();
  EXPECT_EQ(oracle->trainer, nullptr);
  EXPECT_THAT(oracle->missing, HasSubstr("bytes of memory, and 1000 are free"));
}

TEST(CheckTest, ARunWithoutMeasureIsAnError) {
  RunDescription run = Zero2();
  run.data.num_micro_batches = std::numeric_limits<int32_t>::max();
  std::istringstream input(PrintObservationHeader(run) + "\n{\"step\":0}\n");
  const absl::StatusOr<JudgedFile> judged = JudgeFile(&input, nullptr, 1 << 30, {});
  EXPECT_EQ(judged.status().code(), absl::StatusCode::kResourceExhausted) << judged.status();
  EXPECT_THAT(std::string(judged.status().message()), HasSubstr("num_micro_batches 2147483647"));
}

TEST(CheckTest, AFileThatEndsEarlyIsAnError) {
  std::string file;
  ASSERT_NO_FATAL_FAILURE(Record(Zero2(), &file));
  file.resize(file.rfind('\n', file.size() - 2) + 1);
  std::istringstream input(file);
  const absl::StatusOr<JudgedFile> judged = JudgeFile(&input, nullptr, kNoLimit, {});
  EXPECT_EQ(judged.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(judged.status().message()), HasSubstr("ends with 2 steps"));
}

// --- Sums in any order, in a file.

// The recording as a file whose trainer says that its sums have no order.
CaseResult JudgeInAnyOrder(const RunDescription& run, Recording& recording) {
  std::string file = PrintObservationHeader(run) + "\n";
  for (StoredStep& step : recording.steps) {
    step.observation.any_order = true;
    absl::StrAppend(&file, PrintObservationStep(step.observation), "\n");
  }
  const ModelImporter none = [](absl::string_view) {
    return absl::UnimplementedError("the model is written out");
  };
  std::istringstream input(file);
  JudgeOptions options;
  options.checks = {"numeric_equivalence", "liveness"};
  const absl::StatusOr<JudgedFile> judged = JudgeFile(&input, none, kNoLimit, options);
  EXPECT_TRUE(judged.ok()) << judged.status();
  return judged.ok() ? judged->result : CaseResult();
}

// Numeric equivalence of a run of which one gradient was multiplied.
CheckResult JudgeGradientInAnyOrder(const RunDescription& run, float factor) {
  std::string file;
  Record(run, &file);
  Recording recording;
  Read(file, &recording);
  *Element(State(recording, kLast, 0), StateClass::kReducedGradient, kWeight0, 3) *= factor;
  const CaseResult result = JudgeInAnyOrder(run, recording);
  return result.checks.empty() ? CheckResult() : result.checks[0];
}

TEST(AnyOrderFile, IsJudgedWithinBounds) {
  RunDescription plain_sgd = Zero2();
  plain_sgd.optimizer.kind = OptimizerKind::kSgd;
  plain_sgd.optimizer.momentum = 0;
  for (const RunDescription& run : {FullShard(), Zero2(), plain_sgd}) {
    const CheckResult rounded = JudgeGradientInAnyOrder(run, 1 + 0x1p-23f);
    EXPECT_EQ(rounded.verdict, Verdict::kPass)
        << (rounded.violations.empty() ? rounded.reason : Describe(rounded, rounded.violations[0]));
    const CheckResult summed = JudgeGradientInAnyOrder(run, kRanks);
    ASSERT_EQ(summed.verdict, Verdict::kFail) << summed.reason;
    EXPECT_THAT(summed.violations[0].likely_cause, HasSubstr("the ratio is N"));
  }
}

// Divides before its sums where the run says after: each gradient is right, with other bits. AdamW
// then parts from the oracle by more than those, from the second step on.
TEST(AnyOrderFile, ATrainingThatPartsByRoundingsIsStillTheSame) {
  for (const double learning_rate : {1e-3, 0.1}) {
    RunDescription run = MlpRun({40, 40, 40}, /*bias=*/true, Sharding(Mode::kZero2, kRanks));
    run.data.micro_batch_size = 4;
    run.data.num_micro_batches = 2;
    run.clip_grad_norm = 0.05;
    run.optimizer.learning_rate = learning_rate;
    RunDescription trained = run;
    trained.sharding.scale_before_reduce = true;
    std::string file;
    Record(trained, &file);
    Recording recording;
    Read(file, &recording);
    const CaseResult result = JudgeInAnyOrder(run, recording);
    EXPECT_GT(result.numeric.max_abs_parameter_error, 0);
    for (const CheckResult& check : result.checks) {
      EXPECT_EQ(check.verdict, Verdict::kPass)
          << (check.violations.empty() ? check.reason : Describe(check, check.violations[0]));
    }
  }
}

}  // namespace
}  // namespace shardproof
