#include "invariants/report/figures.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/closed_forms/closed_forms.h"
#include "invariants/closed_forms/example_runs.h"

namespace shardproof {
namespace {

using testing::ElementsAre;

// One rank's step, written event by event.
class Events {
 public:
  explicit Events(Group ranks) { events_.ranks = ranks; }

  int32_t Buffer(BufferRole role, int64_t elements, bool live_before = false) {
    BufferInfo info;
    info.role = role;
    info.elements = elements;
    events_.buffers.push_back(info);
    const int32_t buffer = static_cast<int32_t>(events_.buffers.size()) - 1;
    if (live_before) events_.live_before.push_back(buffer);
    return buffer;
  }

  Events& Uses(std::vector<std::pair<AccessKind, int32_t>> accesses) {
    return Add(Event(), accesses);
  }

  Events& Moves(CollectiveKind kind, Phase phase, Purpose purpose, int64_t elements) {
    Event event;
    event.kind = EventKind::kCollective;
    event.collective = kind;
    event.phase = phase;
    event.purpose = purpose;
    event.elements = elements;
    event.group = {0, 1, group_size};
    return Add(event, {});
  }

  const RankEvents& events() const { return events_; }

  int32_t group_size = 4;

 private:
  Events& Add(Event event, const std::vector<std::pair<AccessKind, int32_t>>& accesses) {
    event.first_access = static_cast<uint32_t>(events_.accesses.size());
    event.access_count = static_cast<uint32_t>(accesses.size());
    for (const auto& [kind, buffer] : accesses) {
      Access access;
      access.kind = kind;
      access.buffer = buffer;
      events_.accesses.push_back(access);
    }
    events_.events.push_back(event);
    return *this;
  }

  RankEvents events_;
};

RankState State(Group ranks, StateBytes bytes) {
  RankState state;
  state.ranks = ranks;
  state.bytes = bytes;
  return state;
}

// 100 elements, so P = 400 bytes.
RunDescription HundredElements() { return VectorRun({60, 40}, Sharding(Mode::kFullShard, 4)); }

TEST(SummarizeStep, SumsCallsAndBytesByKindAndPhase) {
  Events events({0, 1, 4});
  events.Moves(CollectiveKind::kAllGather, Phase::kForward, Purpose::kUnshardParameters, 60)
      .Moves(CollectiveKind::kAllGather, Phase::kForward, Purpose::kUnshardParameters, 40)
      .Moves(CollectiveKind::kAllGather, Phase::kBackward, Purpose::kUnshardParameters, 40)
      .Moves(CollectiveKind::kAllGather, Phase::kOptimizer, Purpose::kGatherParameters, 8)
      .Moves(CollectiveKind::kReduceScatter, Phase::kBackward, Purpose::kReduceGradients, 12)
      .Moves(CollectiveKind::kAllReduce, Phase::kBackward, Purpose::kReduceGradients, 10)
      .Moves(CollectiveKind::kBroadcast, Phase::kOptimizer, Purpose::kBroadcastParameters, 7);
  StepObservation observed;
  observed.events.push_back(events.events());
  const StepFigures figures = SummarizeStep(HundredElements(), observed);
  EXPECT_TRUE(figures.events_observed);
  EXPECT_EQ(figures.all_gather_forward.count, 2);
  EXPECT_EQ(figures.all_gather_forward.payload_bytes, 400);
  EXPECT_EQ(figures.all_gather_forward.bus_bytes, 300);
  EXPECT_EQ(figures.all_gather_backward.payload_bytes, 160);
  EXPECT_EQ(figures.all_gather_optimizer.payload_bytes, 32);
  EXPECT_EQ(figures.reduce_scatter.bus_bytes, 36);
  EXPECT_EQ(figures.all_reduce.bus_bytes, 60);
  EXPECT_EQ(figures.broadcast.bus_bytes, 28);
}

TEST(SummarizeStep, RoundsBusBytesDownOnceAndNotForEachCall) {
  Events events({0, 1, 3});
  events.group_size = 3;
  // 8 x 2/3 = 5.33 each; together 16 x 2/3 = 10.67.
  events.Moves(CollectiveKind::kAllGather, Phase::kForward, Purpose::kUnshardParameters, 2)
      .Moves(CollectiveKind::kAllGather, Phase::kForward, Purpose::kUnshardParameters, 2);
  StepObservation observed;
  observed.events.push_back(events.events());
  EXPECT_EQ(SummarizeStep(HundredElements(), observed).all_gather_forward.bus_bytes, 10);
}

TEST(SummarizeStep, CountsOneRankAlthoughItTalksToNobody) {
  Events events({0, 1, 1});
  events.group_size = 1;
  events.Moves(CollectiveKind::kAllReduce, Phase::kBackward, Purpose::kReduceGradients, 10);
  StepObservation observed;
  observed.events.push_back(events.events());
  const StepFigures figures = SummarizeStep(HundredElements(), observed);
  EXPECT_EQ(figures.all_reduce.count, 1);
  EXPECT_EQ(figures.all_reduce.payload_bytes, 40);
  EXPECT_EQ(figures.all_reduce.bus_bytes, 0);
}

TEST(SummarizeStep, ListsCollectivesOfOtherPurposesApart) {
  Events events({0, 1, 4});
  events.Moves(CollectiveKind::kAllReduce, Phase::kOptimizer, Purpose::kClipNorm, 1)
      .Moves(CollectiveKind::kAllReduce, Phase::kOptimizer, Purpose::kClipNorm, 1)
      .Moves(CollectiveKind::kBarrier, Phase::kOther, Purpose::kNone, 0);
  StepObservation observed;
  observed.events.push_back(events.events());
  const StepFigures figures = SummarizeStep(HundredElements(), observed);
  EXPECT_EQ(figures.all_reduce.count, 0);
  ASSERT_EQ(figures.others.size(), 2u);
  EXPECT_EQ(figures.others[0].purpose, Purpose::kClipNorm);
  EXPECT_EQ(figures.others[0].count, 2);
  EXPECT_EQ(figures.others[0].payload_bytes, 8);
  EXPECT_EQ(figures.others[1].kind, CollectiveKind::kBarrier);
}

// The traffic model and the closed forms count bus bytes apart from each other: no check compares
// them, as an observation states no bytes, so this does.
TEST(SummarizeStep, BusBytesFollowTheClosedFormsFactor) {
  for (const int32_t ranks : {1, 2, 3, 4, 8}) {
    Events events({0, 1, ranks});
    events.group_size = ranks;
    const int64_t elements = 24 * 5;  // which all of them divide
    events.Moves(CollectiveKind::kAllReduce, Phase::kBackward, Purpose::kReduceGradients, elements)
        .Moves(CollectiveKind::kAllGather, Phase::kForward, Purpose::kUnshardParameters, elements)
        .Moves(CollectiveKind::kReduceScatter, Phase::kBackward, Purpose::kReduceGradients,
               elements)
        .Moves(CollectiveKind::kBroadcast, Phase::kOptimizer, Purpose::kBroadcastParameters,
               elements);
    StepObservation observed;
    observed.events.push_back(events.events());
    const StepFigures figures = SummarizeStep(HundredElements(), observed);
    const std::pair<CollectiveKind, const CollectiveFigures*> kinds[] = {
        {CollectiveKind::kAllReduce, &figures.all_reduce},
        {CollectiveKind::kAllGather, &figures.all_gather_forward},
        {CollectiveKind::kReduceScatter, &figures.reduce_scatter},
        {CollectiveKind::kBroadcast, &figures.broadcast}};
    for (const auto& [kind, of_kind] : kinds) {
      EXPECT_DOUBLE_EQ(static_cast<double>(of_kind->bus_bytes),
                       4 * elements * BusFactor(kind, ranks))
          << Name(kind) << " on " << ranks;
    }
  }
}

TEST(SummarizeStep, ClippingIsNoneOfTheModesAndNoActivation) {
  Events events({0, 1, 4});
  const int32_t norm = events.Buffer(BufferRole::kWorkspace, 1);
  events.Uses({{AccessKind::kAllocate, norm}})
      .Moves(CollectiveKind::kAllReduce, Phase::kOptimizer, Purpose::kClipNorm, 1)
      .Uses({{AccessKind::kFree, norm}});
  RankEvents shown = events.events();
  shown.events[1].dtype = Dtype::kFloat64;
  StepObservation observed;
  observed.events.push_back(shown);
  const StepFigures figures = SummarizeStep(HundredElements(), observed);
  EXPECT_EQ(figures.all_reduce.count, 0);
  EXPECT_EQ(figures.activation_peak_bytes, 0);
  ASSERT_EQ(figures.others.size(), 1u);
  EXPECT_EQ(figures.others[0].kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(figures.others[0].payload_bytes, 8);
}

TEST(SummarizeStep, PeakCountsAllocationsBeforeTheEventAndFreesAfterIt) {
  Events events({0, 1, 4});
  const int32_t shard = events.Buffer(BufferRole::kParameter, 25, /*live_before=*/true);
  const int32_t full = events.Buffer(BufferRole::kUnshardedParameter, 100);
  const int32_t gradient = events.Buffer(BufferRole::kUnreducedGradient, 60);
  const int32_t activation = events.Buffer(BufferRole::kActivation, 1000);
  events.Uses({{AccessKind::kAllocate, full}, {AccessKind::kRead, shard}})
      .Uses({{AccessKind::kAllocate, activation}, {AccessKind::kRead, full}})
      // Both are there at once within this event.
      .Uses({{AccessKind::kAllocate, gradient}, {AccessKind::kFree, full}})
      .Uses({{AccessKind::kFree, gradient}, {AccessKind::kFree, activation}});
  StepObservation observed;
  observed.events.push_back(events.events());
  observed.states.push_back(State({0, 1, 4}, {.parameter = 100}));
  const StepFigures figures = SummarizeStep(HundredElements(), observed);
  ASSERT_EQ(figures.ranks.size(), 4u);
  EXPECT_EQ(figures.ranks[3].peak_bytes, 4 * (25 + 100 + 60));
  EXPECT_EQ(figures.activation_peak_bytes, 4000);
}

TEST(SummarizeStep, GivesEachRankOfAClassItsOwnStepCounters) {
  Events events({0, 1, 2});
  events.Buffer(BufferRole::kParameter, 10, /*live_before=*/true);
  events.Buffer(BufferRole::kScalar, 3, /*live_before=*/true);
  StepObservation observed;
  observed.events.push_back(events.events());
  observed.states.push_back(State({0, 1, 1}, {.parameter = 40, .scalar = 12}));
  observed.states.push_back(State({1, 1, 1}, {.parameter = 40, .scalar = 4}));
  const StepFigures figures = SummarizeStep(HundredElements(), observed);
  EXPECT_EQ(figures.ranks[0].peak_bytes, 52);
  EXPECT_EQ(figures.ranks[1].peak_bytes, 44);
}

TEST(SummarizeStep, FactorsAreBytesOfAllRanksOverTheModels) {
  StepObservation observed;
  observed.states.push_back(
      State({2, 1, 2}, {.parameter = 100, .gradient = 100, .optimizer = 200, .padding = 8}));
  observed.states.push_back(
      State({0, 1, 2}, {.parameter = 400, .gradient = 300, .optimizer = 0, .scalar = 4}));
  const StepFigures figures = SummarizeStep(HundredElements(), observed);
  EXPECT_EQ(figures.parameter_factor, 2.5);
  EXPECT_EQ(figures.gradient_factor, 2.0);
  EXPECT_EQ(figures.optimizer_factor, 1.0);
  std::vector<int32_t> ranks;
  for (const RankFigures& rank : figures.ranks) ranks.push_back(rank.rank);
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(figures.ranks[0].bytes.steady(), 704);
  EXPECT_EQ(figures.ranks[3].bytes.steady(), 408);
}

TEST(SummarizeStep, SaysWhatWasNotObserved) {
  StepObservation observed;
  EXPECT_FALSE(SummarizeStep(HundredElements(), observed).states_observed);
  EXPECT_FALSE(SummarizeStep(HundredElements(), observed).events_observed);
  EXPECT_FALSE(SummarizeStep(HundredElements(), observed).loss_observed);
  observed.states.push_back(State({0, 1, 4}, {.parameter = 100}));
  const StepFigures figures = SummarizeStep(HundredElements(), observed);
  EXPECT_TRUE(figures.states_observed);
  EXPECT_FALSE(figures.ranks[0].peak_bytes.has_value());
}

TEST(SummarizeStep, TakesTheMeanOfTheRanksLosses) {
  StepObservation observed;
  observed.losses = {1.0, 2.0, 6.0};
  const StepFigures figures = SummarizeStep(HundredElements(), observed);
  EXPECT_TRUE(figures.loss_observed);
  EXPECT_DOUBLE_EQ(figures.loss, 3.0);
}

}  // namespace
}  // namespace shardproof
