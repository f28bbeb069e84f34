// Intervals drawn by hand; a picture says what is exposed. Time goes to the right.
#include "trainer/bench/exposed.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

KernelSpan Collective(int64_t start_ns, int64_t end_ns, int32_t device = 0) {
  return {device, true, start_ns, end_ns};
}
KernelSpan Other(int64_t start_ns, int64_t end_ns, int32_t device = 0) {
  return {device, false, start_ns, end_ns};
}

TEST(Exposed, NothingIsExposedWithoutCollectives) {
  EXPECT_EQ(ExposedCommunicationNs({}, 0), 0);
  EXPECT_EQ(ExposedCommunicationNs({Other(0, 100), Other(50, 70)}, 0), 0);
}

TEST(Exposed, ALoneCollectiveIsExposedWhole) {
  EXPECT_EQ(ExposedCommunicationNs({Collective(10, 35)}, 0), 25);
}

TEST(Exposed, WhatRunsBesideComputeIsHidden) {
  // collective  [10      40)
  // other           [20         60)
  EXPECT_EQ(ExposedCommunicationNs({Collective(10, 40), Other(20, 60)}, 0), 10);
  EXPECT_EQ(ExposedCommunicationNs({Collective(20, 40), Other(10, 60)}, 0), 0);
  EXPECT_EQ(ExposedCommunicationNs({Collective(10, 60), Other(20, 40)}, 0), 30);
}

TEST(Exposed, TwoCollectivesAtOnceCountOnce) {
  EXPECT_EQ(ExposedCommunicationNs({Collective(0, 30), Collective(10, 50)}, 0), 50);
}

TEST(Exposed, AnyOtherKernelHides) {
  // Gaps of [0, 100) that neither other kernel fills: [10, 20), [50, 60) and [90, 100).
  EXPECT_EQ(
      ExposedCommunicationNs({Other(60, 90), Collective(0, 100), Other(20, 50), Other(0, 10)}, 0),
      30);
}

TEST(Exposed, KernelsThatMeetLeaveNoGap) {
  EXPECT_EQ(ExposedCommunicationNs({Other(0, 10), Collective(10, 20), Other(20, 30)}, 0), 10);
  EXPECT_EQ(ExposedCommunicationNs({Other(0, 15), Other(15, 30), Collective(10, 20)}, 0), 0);
}

TEST(Exposed, IdleTimeIsNotExposed) {
  EXPECT_EQ(ExposedCommunicationNs({Other(0, 10), Collective(40, 50), Other(90, 100)}, 0), 10);
}

TEST(Exposed, DevicesAreApart) {
  const std::vector<KernelSpan> spans = {Collective(0, 50, 0), Other(0, 50, 1),
                                         Collective(0, 80, 1)};
  EXPECT_EQ(ExposedCommunicationNs(spans, 0), 50);
  EXPECT_EQ(ExposedCommunicationNs(spans, 1), 30);
  EXPECT_EQ(ExposedCommunicationNs(spans, 2), 0);
}

TEST(Exposed, KernelsOfNoDuration) {
  EXPECT_EQ(ExposedCommunicationNs({Collective(10, 10), Other(5, 5)}, 0), 0);
  EXPECT_EQ(ExposedCommunicationNs({Collective(0, 20), Other(10, 10)}, 0), 20);
}

TEST(ExposedOfStep, GivesMillisecondsOfEachDevice) {
  const std::vector<KernelSpan> spans = {Collective(0, 3000000, 1), Collective(0, 500000, 3),
                                         Other(1000000, 2000000, 1), Other(0, 1000000, 3)};
  const ExposedTimes times = ExposedOfStep(spans, {1, 3}, /*collectives=*/1);
  EXPECT_THAT(times.ms, ElementsAre(2.0, 0.0));
  EXPECT_EQ(times.missing, "");
}

TEST(ExposedOfStep, RecordsThatAreMissingMakeItUnknown) {
  // Of two collectives, one has been recorded so far on GPU 1.
  const std::vector<KernelSpan> late = {Collective(0, 10, 0), Collective(10, 20, 0),
                                        Collective(0, 10, 1), Other(0, 20, 1)};
  const ExposedTimes times = ExposedOfStep(late, {0, 1}, /*collectives=*/2);
  EXPECT_THAT(times.ms, IsEmpty());
  EXPECT_THAT(times.missing, HasSubstr("1 kernels of collectives were recorded on GPU 1"));
  EXPECT_THAT(times.missing, HasSubstr("a step that has 2"));
  // None at all is no time of 0, and those of the step before are none of this one.
  EXPECT_THAT(ExposedOfStep({Other(0, 20)}, {0}, 2).ms, IsEmpty());
  EXPECT_THAT(ExposedOfStep(late, {0}, 1).ms, IsEmpty());
}

}  // namespace
}  // namespace shardproof
