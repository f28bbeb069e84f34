// Files come from trainers that we never see: what was written must be what is read, bit for
// bit, and a mistake must be told with its line, field, value and what is accepted.
#include "invariants/observation/observation_io.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunDescription SmallRun(int64_t steps = 1) {
  RunDescription run;
  run.model.name = "a model";
  run.model.tensors = {{"layers.0.weight", {3, 2}, 2, true, {"tied"}},
                       {"layers.0.bias", {3}, 2, false, {}}};
  run.model.stages = {{"layers.0", {0, 1}}};
  run.model.units = {{"layers.0", {0}, false}};
  run.sharding.mode = Mode::kFullShard;
  run.sharding.prefetch = Prefetch::kBackwardPost;
  run.sharding.world_size = {2};
  run.optimizer.learning_rate = 0.1;
  run.data.steps = steps;
  run.data.seed = std::numeric_limits<uint64_t>::max();
  return run;
}

absl::StatusOr<ModelDescription> NoImporter(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("model '", text, "' is unknown here"));
}

absl::StatusOr<std::vector<StoredStep>> ReadAll(const std::string& file) {
  std::istringstream input(file);
  absl::StatusOr<ObservationReader> reader = ObservationReader::Open(&input, NoImporter);
  if (!reader.ok()) return reader.status();
  std::vector<StoredStep> steps;
  while (true) {
    absl::StatusOr<std::optional<StoredStep>> step = reader->Next();
    if (!step.ok()) return step.status();
    if (!step->has_value()) return steps;
    steps.push_back(**std::move(step));
  }
}

// The error of a file with SmallRun's header and these lines.
std::string ErrorOf(const std::string& lines, int64_t steps = 1) {
  const auto read = ReadAll(absl::StrCat(PrintObservationHeader(SmallRun(steps)), "\n", lines));
  EXPECT_FALSE(read.ok()) << lines;
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(read.status().message());
}

StepObservation OneOfEach(const std::vector<float>& values) {
  StepObservation step;
  step.step = 4;
  step.losses = {0.1, -std::numeric_limits<double>::infinity()};
  step.any_order = true;
  step.clips = {{0.1 + 0.2, 0.3f}, {std::numeric_limits<double>::infinity(), 0}};
  step.devices = {
      {.rank = 1, .collective_kernels = {2, 3, 4, 5, 0}, .steady_bytes = 4096, .peak_bytes = 8192},
      {.rank = 0}};
  RankEvents events;
  events.ranks = {0, 1, 2};
  events.buffers = {
      {BufferRole::kUnshardedParameter, Dtype::kBFloat16, MemoryTier::kHost, 6, 0, -1},
      {BufferRole::kGradient, Dtype::kFloat32, MemoryTier::kDevice, 4, -1, 3}};
  events.live_before = {1};
  events.waits = {0, 1};
  events.accesses = {{0, AccessKind::kAllocate, {0, 6}, -1},
                     {1, AccessKind::kRead, {1, 3}, 2},
                     {0, AccessKind::kFree, {0, 0}, -1}};
  Event gather{EventKind::kCollective,
               Phase::kForward,
               StreamId::kCommunication,
               CollectiveKind::kAllGather,
               Purpose::kUnshardParameters,
               Dtype::kBFloat16,
               false,
               {0, 1, 2},
               1,
               6,
               0,
               0,
               2,
               1,
               0,
               1,
               0,
               0,
               0,
               2};
  Event release;
  release.kind = EventKind::kRelease;
  release.first_access = 2;
  release.access_count = 1;
  Event compute;
  compute.kind = EventKind::kCompute;
  compute.wait_count = 2;
  events.events = {gather, release, compute};
  step.events = {events};
  RankState state;
  state.ranks = {1, 1, 1};
  state.bytes = {1, 2, 3, 4, 5};
  state.segments = {
      {StateClass::kExpAvgSq, 0, {1, static_cast<int64_t>(values.size())}, 5, 7, values.data()},
      {StateClass::kParameter, -1, {6, 1}, 0, 6, nullptr}};
  state.steps = {{0, 5}};
  step.states = {state};
  return step;
}

TEST(ObservationIo, WhatIsWrittenIsRead) {
  const std::vector<float> values = {1.5f, -0.0f, 1e-45f};
  const StepObservation written = OneOfEach(values);
  const auto read = ReadAll(
      absl::StrCat(PrintObservationHeader(SmallRun()), "\n", PrintObservationStep(written), "\n"));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 1u);
  const StepObservation& step = (*read)[0].observation;
  EXPECT_EQ(step.step, 4);
  EXPECT_EQ(step.losses, written.losses);
  EXPECT_TRUE(step.any_order);
  ASSERT_EQ(step.clips.size(), 2u);
  EXPECT_EQ(step.clips[0].norm, 0.1 + 0.2);
  EXPECT_EQ(step.clips[0].coefficient, 0.3f);
  EXPECT_TRUE(std::isinf(step.clips[1].norm));
  ASSERT_EQ(step.devices.size(), 2u);
  EXPECT_EQ(step.devices[0].rank, 1);
  EXPECT_EQ(step.devices[0].collective_kernels, written.devices[0].collective_kernels);
  EXPECT_EQ(step.devices[0].steady_bytes, 4096);
  EXPECT_EQ(step.devices[0].peak_bytes, 8192);
  EXPECT_TRUE(step.devices[1].collective_kernels.empty());
  EXPECT_EQ(step.devices[1].peak_bytes, -1);
  const RankEvents& events = step.events.at(0);
  EXPECT_EQ(events.ranks, (Group{0, 1, 2}));
  ASSERT_EQ(events.buffers.size(), 2u);
  EXPECT_EQ(events.buffers[0].role, BufferRole::kUnshardedParameter);
  EXPECT_EQ(events.buffers[0].dtype, Dtype::kBFloat16);
  EXPECT_EQ(events.buffers[0].tier, MemoryTier::kHost);
  EXPECT_EQ(events.buffers[0].unit, 0);
  EXPECT_EQ(events.buffers[1].bucket, 3);
  EXPECT_EQ(events.live_before, written.events[0].live_before);
  EXPECT_EQ(events.waits, written.events[0].waits);
  const Event& gather = events.events.at(0);
  EXPECT_FALSE(gather.completed);
  EXPECT_EQ(gather.purpose, Purpose::kUnshardParameters);
  EXPECT_EQ(gather.root, 1);
  EXPECT_EQ(gather.stage_count, 1);
  EXPECT_EQ(gather.access_count, 2u);
  EXPECT_EQ(events.events.at(1).first_access, 2u);
  EXPECT_EQ(events.events.at(2).wait_count, 2u);
  EXPECT_EQ(events.accesses.at(1).version, 2);
  EXPECT_EQ(events.accesses.at(1).range, (ElementRange{1, 3}));
  const RankState& state = step.states.at(0);
  EXPECT_EQ(state.bytes, written.states[0].bytes);
  EXPECT_EQ(state.segments.at(0).buffer_offset, 7);
  EXPECT_EQ(std::memcmp(state.segments[0].values, values.data(), 12), 0);
  EXPECT_EQ(state.segments.at(1).tensor, -1);
  EXPECT_EQ(state.segments[1].values, nullptr);
  EXPECT_EQ(state.steps.at(0).updates, 5);
  // Printed again, the text is the same: no field was lost.
  EXPECT_EQ(PrintObservationStep(step), PrintObservationStep(written));
}

TEST(ObservationIo, TheRunIsReadBack) {
  std::istringstream input(PrintObservationHeader(SmallRun(7)));
  const auto reader = ObservationReader::Open(&input, NoImporter);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->run().data.steps, 7);
  EXPECT_EQ(reader->run().data.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(reader->run().optimizer.learning_rate, 0.1);
  EXPECT_EQ(reader->run().model.tensors[0].aliases, std::vector<std::string>{"tied"});
  EXPECT_FALSE(reader->run().model.units[0].reshard_after_forward);
}

TEST(ObservationIo, ValuesKeepTheirBits) {
  std::vector<float> values = {std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::bit_cast<float>(0x7fc01234u),
                               std::bit_cast<float>(0xffc30007u),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min(),
                               1e20f,
                               16777216.0f};
  std::mt19937 bits(1);
  for (int i = 0; i < 20000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits())));
  const auto read = ReadAll(absl::StrCat(PrintObservationHeader(SmallRun()), "\n",
                                         PrintObservationStep(OneOfEach(values)), "\n"));
  ASSERT_TRUE(read.ok()) << read.status();
  const StateSegment& segment = (*read)[0].observation.states[0].segments[0];
  ASSERT_EQ(segment.range.count, static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(segment.values[i]), std::bit_cast<uint32_t>(values[i])) << i;
  }
}

TEST(ObservationIo, ValuesCanBeLeftOut) {
  const std::vector<float> values = {1, 2};
  const std::string line = PrintObservationStep(OneOfEach(values), Values::kOmit);
  EXPECT_THAT(line, Not(HasSubstr("values")));
  EXPECT_THAT(line, HasSubstr("\"count\":2"));
}

TEST(ObservationIo, StepsComeInOrderAndAreAllThere) {
  EXPECT_TRUE(
      ReadAll(absl::StrCat(PrintObservationHeader(SmallRun(2)), "\n{\"step\":0}\n\n{\"step\":1}\n"))
          .ok());
  EXPECT_THAT(ErrorOf("{\"step\":0}\n{\"step\":2}", 3),
              HasSubstr("line 3: step is 2; accepted: 1"));
  EXPECT_THAT(ErrorOf("{\"step\":0}\n", 2),
              HasSubstr("after line 2: the file ends with 1 steps; accepted: 2"));
  EXPECT_THAT(ErrorOf("{\"step\":0}\n{\"step\":1}", 1), HasSubstr("line 3: one step more"));
}

TEST(ObservationIo, AWrongFirstLineIsRefused) {
  EXPECT_THAT(ReadAll("").status().message(), HasSubstr("line 1: nothing to read"));
  const std::string header = PrintObservationHeader(SmallRun());
  EXPECT_THAT(
      ReadAll(absl::StrReplaceAll(header, {{"observation/1", "observation/9"}})).status().message(),
      AllOf(HasSubstr("line 1: schema is \"shardproof.observation/9\""),
            HasSubstr("accepted: \"shardproof.observation/1\"")));
  EXPECT_THAT(ReadAll(absl::StrReplaceAll(header, {{"\"world_size\":2", "\"world_size\":0"}}))
                  .status()
                  .message(),
              HasSubstr("line 1: run: "));
  EXPECT_THAT(ReadAll("{\"schema\":\"shardproof.observation/1\"}").status().message(),
              HasSubstr("line 1: run is missing"));
  EXPECT_THAT(ReadAll("[1]").status().message(), HasSubstr("the line is [1]; accepted: an object"));
}

TEST(ObservationIo, ATruncatedLineIsNamed) {
  const std::string error = ErrorOf("{\"step\":0,\"losses\":[1");
  EXPECT_THAT(error, HasSubstr("line 2: "));
  EXPECT_THAT(error, HasSubstr("accepted: one whole JSON object on each line"));
}

TEST(ObservationIo, EveryBadFieldIsNamedWithItsValueAndWhatIsAccepted) {
  const std::string ranks = "\"ranks\":[0,1,1]";
  const auto in_event = [&](const std::string& fields) {
    return ErrorOf(absl::StrCat("{\"step\":0,\"events\":[{", ranks,
                                ",\"buffers\":[{\"role\":\"input\",\"elements\":4}],\"events\":[{",
                                "\"kind\":\"local\"},{", fields, "}]}]}"));
  };
  const auto in_segment = [&](const std::string& fields) {
    return ErrorOf(
        absl::StrCat("{\"step\":0,\"states\":[{", ranks, ",\"segments\":[{", fields, "}]}]}"));
  };
  EXPECT_THAT(in_event("\"kind\":\"gather\""),
              AllOf(HasSubstr("line 2: events[0].events[1].kind: event kind 'gather' is unknown"),
                    HasSubstr("accepted: collective, reshard")));
  EXPECT_THAT(in_event("\"stream\":\"compute\""), HasSubstr("kind is missing"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"unit\":1"),
              HasSubstr("events[0].events[1].unit is 1; accepted: an integer from -1 to 0"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"waits\":[2]"),
              HasSubstr("events[1].waits[0] is 2; accepted: an integer from 0 to 1"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"accesses\":[{\"buffer\":1,\"kind\":\"read\"}]"),
              HasSubstr("accesses[0].buffer is 1; accepted: an integer from 0 to 0"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"elements\":-4"), HasSubstr("elements is -4"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"elements\":4.0"), HasSubstr("elements is 4.0"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"elements\":18446744073709551615"),
              HasSubstr("elements is 18446744073709551615"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"stage\":0,\"stage_count\":2"),
              HasSubstr("stage_count is 2; accepted: an integer from 0 to 1"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"group\":[1,1,2]"),
              HasSubstr("group is [1,1,2]; accepted: [first, stride, count]"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"completed\":1"),
              HasSubstr("completed is 1; accepted: true, false"));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"colour\":1"),
              AllOf(HasSubstr("events[1].colour is unknown"), HasSubstr("accepted: kind, phase")));
  EXPECT_THAT(in_event("\"kind\":\"local\",\"kind\":\"local\""), HasSubstr("repeated"));

  EXPECT_THAT(in_segment("\"state\":\"exp_avg\",\"tensor\":2,\"count\":1"),
              HasSubstr("states[0].segments[0].tensor is 2; accepted: an integer from -1 to 1"));
  EXPECT_THAT(in_segment("\"state\":\"exp_avg\",\"tensor\":0,\"count\":-1"),
              HasSubstr("count is -1"));
  EXPECT_THAT(in_segment("\"state\":\"exp_avg\",\"tensor\":0,\"count\":2,\"values\":[1]"),
              HasSubstr("values is an array of 1; accepted: an array of `count` values, 2"));
  EXPECT_THAT(in_segment("\"state\":\"exp_avg\",\"tensor\":0,\"count\":1,\"values\":[1e39]"),
              HasSubstr("values[0] is 1e+39; accepted: a number that fits float32"));
  EXPECT_THAT(in_segment("\"state\":\"exp_avg\",\"tensor\":0,\"count\":1,\"values\":[null]"),
              HasSubstr("values[0] is null"));
  EXPECT_THAT(
      in_segment("\"state\":\"exp_avg\",\"tensor\":0,\"count\":1,\"values\":[\"nan:0x3f800000\"]"),
      HasSubstr("values[0] is \"nan:0x3f800000\""));

  EXPECT_THAT(ErrorOf("{\"step\":-1}"), HasSubstr("line 2: step is -1"));
  EXPECT_THAT(ErrorOf("{\"step\":0,\"states\":{}}"), HasSubstr("states is {}; accepted: an array"));
  EXPECT_THAT(ErrorOf("{\"step\":0,\"losses\":[1]}"), HasSubstr("losses is a list of 1"));
  EXPECT_THAT(ErrorOf("{\"step\":0,\"clips\":[{\"norm\":1,\"coefficient\":1}]}"),
              HasSubstr("clips is a list of 1; accepted: none, or one for each of 2 ranks"));
  EXPECT_THAT(ErrorOf("{\"step\":0,\"clips\":[{\"norm\":1}]}"),
              HasSubstr("clips[0].coefficient is missing"));
  EXPECT_THAT(ErrorOf("{\"step\":0,\"devices\":[{\"rank\":2}]}"), HasSubstr("devices[0].rank"));
  EXPECT_THAT(ErrorOf("{\"step\":0,\"devices\":[{\"rank\":0,\"collective_kernels\":[1]}]}"),
              HasSubstr("devices[0].collective_kernels is a list of 1; accepted: none, or one for "
                        "each of 5 kinds"));
  EXPECT_THAT(ErrorOf("{\"step\":0,\"any_order\":1}"),
              HasSubstr("any_order is 1; accepted: true, false"));
  EXPECT_THAT(
      ErrorOf("{\"step\":0,\"states\":[{\"ranks\":[0,1,3]}]}"),
      HasSubstr("states[0].ranks is [0,1,3]; accepted: [first, stride, count] from 0, 1 and "
                "1 on, with members below 2"));
}

TEST(ObservationIo, WellFormedButWrongIsReadForTheChecksToJudge) {
  EXPECT_TRUE(
      ReadAll(absl::StrCat(PrintObservationHeader(SmallRun()),
                           "\n{\"step\":0,\"states\":[{\"ranks\":[0,1,2],\"segments\":[{\"state\":"
                           "\"parameter\",\"tensor\":0,\"first\":5,\"count\":9}]}]}"))
          .ok());
}

}  // namespace
}  // namespace shardproof
