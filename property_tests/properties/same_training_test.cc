// How a run is sharded and scheduled must not change what it computes, and neither may running it
// again.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "invariants/suite/mode_rows.h"
#include "property_tests/generators/rapidcheck_defaults.h"
#include "property_tests/properties/final_state.h"
#include "property_tests/random_cases.h"

namespace shardproof {
namespace {

using Parameters = std::vector<std::vector<float>>;

EngineVerdict Failing(absl::string_view cause, absl::string_view what) {
  return {.passes = false, .cause = std::string(cause), .headline = std::string(what)};
}

// The run in every mode and layout, with other bucket caps and without groups of stages. Probe
// gradients add up to the same in any order.
std::vector<RunDescription> OtherSchedules(const RunDescription& run) {
  std::vector<RunDescription> others;
  for (const ModeRow& row : AllModeRows()) {
    for (const LayoutKind layout :
         {LayoutKind::kFlat, LayoutKind::kRows, LayoutKind::kOwner, LayoutKind::kFlatAligned}) {
      RunDescription other = run;
      ApplyModeRow(row, layout, other.sharding);
      if (layout != LayoutKind::kFlat && other.sharding.layout != layout) continue;
      other.sharding.broadcast_bucket_view = false;
      other.sharding.keep_unsharded_between_micro_batches = false;
      other.sharding.bucket_cap_bytes = others.size() % 2 == 0 ? 4 : 1 << 20;
      others.push_back(std::move(other));
    }
  }
  return others;
}

EngineVerdict JudgeSchedules(const RunDescription& drawn) {
  RunDescription run = drawn;
  // A norm is a sum of squares that are not exact: its order may show.
  run.clip_grad_norm = 0;
  const absl::StatusOr<Parameters> first = FinalParameters(run);
  if (!first.ok()) return Failing("error", first.status().message());
  for (const RunDescription& other : OtherSchedules(run)) {
    const absl::StatusOr<Parameters> parameters = FinalParameters(other);
    const std::string name =
        absl::StrCat(ModeRowName(other.sharding), ", layout ", Name(other.sharding.layout));
    if (!parameters.ok()) {
      return Failing("error", absl::StrCat(name, ": ", parameters.status().message()));
    }
    if (!SameBits(*first, *parameters)) {
      return Failing("schedule",
                     absl::StrCat(name, " ends in other bits than ", ModeRowName(run.sharding),
                                  ", layout ", Name(run.sharding.layout)));
    }
  }
  return EngineVerdict();
}

EngineVerdict JudgeRepetition(const RunDescription& run) {
  const absl::StatusOr<Parameters> first = FinalParameters(run);
  const absl::StatusOr<Parameters> second = FinalParameters(run);
  if (!first.ok()) return Failing("error", first.status().message());
  if (!second.ok()) return Failing("error", second.status().message());
  if (SameBits(*first, *second)) return EngineVerdict();
  return Failing("repetition", "two runs of one seed end in different bits");
}

TEST(SameTraining, InEveryModeLayoutAndBucketing) {
  CaseLimits limits;
  limits.only_probes = true;
  const std::string report = CheckRandomCases(
      {.name = "sharding does not change parameters", .limits = limits, .judge = JudgeSchedules});
  if (!report.empty()) ADD_FAILURE() << "\n" << report;
}

TEST(SameTraining, WhenItIsRunAgain) {
  const std::string report =
      CheckRandomCases({.name = "equal seeds give equal bits", .judge = JudgeRepetition});
  if (!report.empty()) ADD_FAILURE() << "\n" << report;
}

// The properties must be able to fail.
TEST(SameTraining, BitsOfOtherSeedsDiffer) {
  CaseLimits limits;
  limits.only_probes = true;
  const std::string report = CheckRandomCases(
      {.name = "other seeds give other bits", .limits = limits, .judge = [](RunDescription run) {
         const absl::StatusOr<Parameters> first = FinalParameters(run);
         run.data.seed += 1;
         const absl::StatusOr<Parameters> second = FinalParameters(run);
         if (!first.ok() || !second.ok()) return Failing("error", "the engine failed");
         return SameBits(*first, *second) ? Failing("seed", "the seed does not matter")
                                          : EngineVerdict();
       }});
  if (!report.empty()) ADD_FAILURE() << "\n" << report;
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  shardproof::SetRapidCheckDefaults(/*max_success=*/150);
  return RUN_ALL_TESTS();
}
