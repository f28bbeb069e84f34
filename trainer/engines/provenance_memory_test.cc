// Runs must say of every element what a plain array would.
#include "trainer/engines/provenance_memory.h"

#include <random>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

Origin Parameter(int32_t tensor, int64_t element) {
  Origin origin;
  origin.kind = OriginKind::kParameter;
  origin.tensor = tensor;
  origin.element = element;
  return origin;
}

Origin Padding() {
  Origin origin;
  origin.kind = OriginKind::kPadding;
  return origin;
}

std::vector<OriginRun> ReadAll(const OriginBuffer& buffer) {
  std::vector<OriginRun> runs;
  buffer.Read({0, buffer.elements()}, 0, runs);
  return runs;
}

TEST(OriginBuffer, WhatContinuesIsOneRun) {
  OriginBuffer buffer(10, Origin());
  buffer.Write(2, {{{3, Parameter(0, 4)}}});
  buffer.Write(5, {{{3, Parameter(0, 7)}}});
  std::vector<OriginRun> expected = {{2, Origin()}, {6, Parameter(0, 4)}, {2, Origin()}};
  EXPECT_EQ(ReadAll(buffer), expected);
  // A part put back is no part any more.
  buffer.Write(4, {{{1, Padding()}}});
  EXPECT_EQ(ReadAll(buffer).size(), 5u);
  buffer.Write(4, {{{1, Parameter(0, 6)}}});
  EXPECT_EQ(ReadAll(buffer), expected);
}

TEST(OriginBuffer, ReadsPartsAndContinuesWhatIsThere) {
  OriginBuffer buffer(6, Origin());
  buffer.Write(0, {{{6, Parameter(1, 0)}}});
  std::vector<OriginRun> runs = {{9, Padding()}};
  buffer.Read({1, 2}, /*begin=*/1, runs);
  buffer.Read({3, 2}, /*begin=*/1, runs);
  const std::vector<OriginRun> expected = {{9, Padding()}, {4, Parameter(1, 1)}};
  EXPECT_EQ(runs, expected);
}

TEST(OriginBuffer, AnEmptyBufferHasNoRuns) {
  OriginBuffer buffer(0, Origin());
  buffer.Write(0, {});
  buffer.Fill(Padding());
  EXPECT_TRUE(ReadAll(buffer).empty());
}

TEST(OriginBuffer, SaysOfEveryElementWhatAnArrayWould) {
  std::mt19937 random(1);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % bound); };
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t elements = 1 + below(12);
    OriginBuffer buffer(elements, Origin());
    std::vector<Origin> plain(elements);
    for (int write = 0; write < 20; ++write) {
      const int64_t first = below(elements);
      std::vector<OriginRun> runs;
      int64_t at = first;
      while (at < elements && (runs.empty() || below(3) > 0)) {
        const int64_t count = 1 + below(elements - at);
        const Origin origin =
            below(4) == 0 ? Padding() : Parameter(static_cast<int32_t>(below(2)), at + below(2));
        runs.push_back({count, origin});
        for (int64_t i = 0; i < count; ++i) plain[at + i] = Advanced(origin, i);
        at += count;
      }
      buffer.Write(first, runs);
      std::vector<OriginRun> expected;
      for (const Origin& origin : plain) AppendRun({1, origin}, 0, expected);
      ASSERT_EQ(ReadAll(buffer), expected);
    }
  }
}

}  // namespace
}  // namespace shardproof
