// What one process saw must arrive whole in another, and bytes that did not must be an error.
#include "invariants/observation/observation_wire.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kValues[] = {1.5f, -0.0f, std::numeric_limits<float>::quiet_NaN()};

// A step that uses every field, with other values than the defaults.
StepObservation SmallStep() {
  StepObservation step;
  step.step = 7;
  RankEvents rank;
  rank.ranks = {2, 3, 4};
  rank.buffers = {{BufferRole::kGradient, Dtype::kFloat64, MemoryTier::kHost, 12, 5, 6},
                  {BufferRole::kWorkspace, Dtype::kFloat32, MemoryTier::kDevice, 1, -1, -1}};
  rank.live_before = {1};
  Event event;
  event.kind = EventKind::kCompute;
  event.phase = Phase::kBackward;
  event.stream = StreamId::kCommunication;
  event.collective = CollectiveKind::kReduceScatter;
  event.purpose = Purpose::kClipNorm;
  event.dtype = Dtype::kFloat16;
  event.completed = false;
  event.group = {1, 2, 3};
  event.root = 4;
  event.elements = int64_t{1} << 40;
  event.micro_batch = 5;
  event.unit = 6;
  event.bucket = 7;
  event.tensor = 8;
  event.stage = 9;
  event.stage_count = 10;
  event.first_wait = 1;
  event.wait_count = 1;
  event.first_access = 0;
  event.access_count = 2;
  rank.events = {Event(), event};
  rank.waits = {0, 0};
  rank.accesses = {{1, AccessKind::kWrite, {3, 4}, 2}, {0, AccessKind::kFree, {0, 12}, -1}};
  step.events = {rank, RankEvents()};
  RankState state;
  state.ranks = {3, 1, 1};
  state.bytes = {1, 2, 3, 4, 5};
  state.segments = {{StateClass::kExpAvg, 2, {4, 3}, 1, 9, kValues},
                    {StateClass::kParameter, -1, {0, 5}, 0, 0, nullptr},
                    {StateClass::kExpAvgSq, 1, {0, 2}, 0, 3, kValues + 1},
                    {StateClass::kExpAvgSq, 1, {0, 0}, 0, 3, kValues}};
  state.steps = {{3, 11}};
  step.states = {state};
  step.losses = {0.25, -1e300};
  step.any_order = true;
  step.clips = {{2.5, 0.125f}};
  step.devices = {{.rank = 3, .collective_kernels = {0, 4}, .steady_bytes = 5, .peak_bytes = 6}};
  return step;
}

std::string Packed(const StepObservation& step) {
  return absl::StrJoin(PackStep(step).Pieces(), "");
}

TEST(ObservationWire, BringsEveryFieldOver) {
  const std::string bytes = Packed(SmallStep());
  const absl::StatusOr<StepObservation> unpacked = UnpackStep(bytes);
  ASSERT_TRUE(unpacked.ok()) << unpacked.status();
  const StepObservation& step = *unpacked;
  EXPECT_EQ(step.step, 7);
  ASSERT_EQ(step.events.size(), 2u);
  const RankEvents& rank = step.events[0];
  EXPECT_EQ(rank.ranks, (Group{2, 3, 4}));
  EXPECT_EQ(rank.buffers[0].role, BufferRole::kGradient);
  EXPECT_EQ(rank.buffers[0].dtype, Dtype::kFloat64);
  EXPECT_EQ(rank.buffers[0].tier, MemoryTier::kHost);
  EXPECT_EQ(rank.buffers[0].elements, 12);
  EXPECT_EQ(rank.buffers[0].unit, 5);
  EXPECT_EQ(rank.buffers[0].bucket, 6);
  EXPECT_THAT(rank.live_before, ElementsAre(1));
  EXPECT_THAT(rank.waits, ElementsAre(0, 0));
  ASSERT_EQ(rank.events.size(), 2u);
  const Event& event = rank.events[1];
  EXPECT_EQ(event.kind, EventKind::kCompute);
  EXPECT_EQ(event.phase, Phase::kBackward);
  EXPECT_EQ(event.stream, StreamId::kCommunication);
  EXPECT_EQ(event.collective, CollectiveKind::kReduceScatter);
  EXPECT_EQ(event.purpose, Purpose::kClipNorm);
  EXPECT_EQ(event.dtype, Dtype::kFloat16);
  EXPECT_FALSE(event.completed);
  EXPECT_EQ(event.group, (Group{1, 2, 3}));
  EXPECT_EQ(event.elements, int64_t{1} << 40);
  EXPECT_THAT((std::vector<int32_t>{event.root, event.micro_batch, event.unit, event.bucket,
                                    event.tensor, event.stage, event.stage_count}),
              ElementsAre(4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT((std::vector<uint32_t>{event.first_wait, event.wait_count, event.first_access,
                                     event.access_count}),
              ElementsAre(1, 1, 0, 2));
  EXPECT_TRUE(rank.events[0].completed);
  EXPECT_EQ(rank.accesses[0].buffer, 1);
  EXPECT_EQ(rank.accesses[0].kind, AccessKind::kWrite);
  EXPECT_EQ(rank.accesses[0].range, (ElementRange{3, 4}));
  EXPECT_EQ(rank.accesses[0].version, 2);
  const RankState& state = step.states[0];
  EXPECT_EQ(state.ranks, (Group{3, 1, 1}));
  EXPECT_EQ(state.bytes, (StateBytes{1, 2, 3, 4, 5}));
  EXPECT_EQ(state.steps[0].tensor, 3);
  EXPECT_EQ(state.steps[0].updates, 11);
  EXPECT_THAT(step.losses, ElementsAre(0.25, -1e300));
  EXPECT_TRUE(step.any_order);
  EXPECT_EQ(step.clips[0].norm, 2.5);
  EXPECT_EQ(step.clips[0].coefficient, 0.125f);
  EXPECT_EQ(step.devices[0].rank, 3);
  EXPECT_THAT(step.devices[0].collective_kernels, ElementsAre(0, 4));
  EXPECT_EQ(step.devices[0].steady_bytes, 5);
  EXPECT_EQ(step.devices[0].peak_bytes, 6);
}

TEST(ObservationWire, BringsValuesOverBitForBit) {
  const std::string bytes = Packed(SmallStep());
  const absl::StatusOr<StepObservation> unpacked = UnpackStep(bytes);
  ASSERT_TRUE(unpacked.ok()) << unpacked.status();
  const std::vector<StateSegment>& segments = unpacked->states[0].segments;
  ASSERT_EQ(segments.size(), 4u);
  EXPECT_EQ(segments[0].state, StateClass::kExpAvg);
  EXPECT_EQ(segments[0].tensor, 2);
  EXPECT_EQ(segments[0].range, (ElementRange{4, 3}));
  EXPECT_EQ(segments[0].buffer, 1);
  EXPECT_EQ(segments[0].buffer_offset, 9);
  EXPECT_EQ(std::memcmp(segments[0].values, kValues, sizeof(kValues)), 0);
  EXPECT_EQ(segments[1].values, nullptr);
  EXPECT_EQ(std::memcmp(segments[2].values, kValues + 1, 2 * sizeof(float)), 0);
  // The whole, with nothing left out.
  EXPECT_EQ(Packed(*unpacked), bytes);
}

TEST(ObservationWire, CopiesNoValues) {
  const StepObservation step = SmallStep();
  const PackedStep packed = PackStep(step);
  ASSERT_EQ(packed.values.size(), 3u);
  EXPECT_EQ(static_cast<const void*>(packed.values[0].data()), kValues);
  EXPECT_EQ(packed.values[0].size(), sizeof(kValues));
  const std::string bytes = Packed(step);
  const absl::StatusOr<StepObservation> unpacked = UnpackStep(bytes);
  ASSERT_TRUE(unpacked.ok()) << unpacked.status();
  EXPECT_EQ(static_cast<const void*>(unpacked->states[0].segments[0].values),
            bytes.data() + packed.head.size());
}

TEST(ObservationWire, RefusesAnAddressAtWhichNoFloatLies) {
  const std::string bytes = " " + Packed(SmallStep());
  EXPECT_THAT(std::string(UnpackStep(absl::string_view(bytes).substr(1)).status().message()),
              HasSubstr("no multiple of 4"));
}

TEST(ObservationWire, BringsAnEmptyStepOver) {
  const std::string bytes = Packed(StepObservation());
  const absl::StatusOr<StepObservation> unpacked = UnpackStep(bytes);
  ASSERT_TRUE(unpacked.ok()) << unpacked.status();
  EXPECT_TRUE(unpacked->events.empty());
}

TEST(ObservationWire, RefusesEveryBeginningOfAStepAndEveryLongerOne) {
  const std::string bytes = Packed(SmallStep());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(UnpackStep(bytes.substr(0, length)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << length;
  }
  EXPECT_FALSE(UnpackStep(bytes + '\0').ok());
}

TEST(ObservationWire, RefusesAStepWithAnyBitChanged) {
  const std::string bytes = Packed(SmallStep());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(UnpackStep(changed).ok()) << bit;
  }
}

TEST(ObservationWire, RefusesAStepWithSeveralBitsChanged) {
  const std::string bytes = Packed(SmallStep());
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string changed = bytes;
    for (int flips = 0; flips < 4; ++flips) {
      const size_t bit = random() % (bytes.size() * 8);
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    }
    if (changed == bytes) continue;
    EXPECT_FALSE(UnpackStep(changed).ok()) << i;
  }
}

// What a sound checksum does not tell: a sender that is wrong itself.
TEST(ObservationWire, RefusesWhatNoStepHolds) {
  const auto error = [](const auto& edit) {
    StepObservation step = SmallStep();
    edit(step);
    return std::string(UnpackStep(Packed(step)).status().message());
  };
  EXPECT_THAT(error([](StepObservation& step) {
                step.events[0].events[0].kind = static_cast<EventKind>(200);
              }),
              HasSubstr("a word that is unknown"));
  EXPECT_THAT(error([](StepObservation& step) { step.events[0].accesses[0].buffer = 2; }),
              HasSubstr("outside of its table"));
  EXPECT_THAT(error([](StepObservation& step) { step.events[0].accesses[0].buffer = -1; }),
              HasSubstr("outside of its table"));
  EXPECT_THAT(error([](StepObservation& step) { step.events[0].live_before[0] = 9; }),
              HasSubstr("outside of its table"));
  EXPECT_THAT(error([](StepObservation& step) { step.events[0].waits[0] = 9; }),
              HasSubstr("outside of its table"));
  EXPECT_THAT(error([](StepObservation& step) { step.events[0].events[1].wait_count = 2; }),
              HasSubstr("outside of its table"));
  EXPECT_THAT(error([](StepObservation& step) { step.events[0].events[1].access_count = ~0u; }),
              HasSubstr("outside of its table"));
  EXPECT_THAT(error([](StepObservation& step) { step.states[0].segments[1].range.count = -1; }),
              HasSubstr("negative number of elements"));
}

}  // namespace
}  // namespace shardproof
