// A campaign: many random cases from one seed, on several threads, until one fails.
//
// Case i is a function of (seed, i) alone, whatever thread runs it, and of several failing cases
// the one with the lowest number is reported: a campaign of N cases is the same in every run.
#ifndef PROPERTY_TESTS_CAMPAIGN_H_
#define PROPERTY_TESTS_CAMPAIGN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "property_tests/found_case.h"
#include "property_tests/generators/axes.h"
#include "property_tests/generators/case_generator.h"
#include "property_tests/generators/shrink.h"
#include "property_tests/judge_case.h"

namespace shardproof {

struct CampaignProgress {
  int64_t cases = 0;  // judged so far
  double seconds = 0;
  Coverage coverage;
};

struct CampaignOptions {
  uint64_t seed = 1;
  int64_t max_cases = INT64_MAX;
  // No case begins later than this.
  absl::Duration duration = absl::InfiniteDuration();
  int32_t jobs = 1;
  std::vector<EngineKind> engines = {EngineKind::kCpu};  // each case runs on each of them
  CaseLimits limits = {};
  ShrinkLimits shrink = {};
  std::string name = "fuzz";  // of the program, for FoundCase::found_by
  // Called about once a second while it runs. May be empty.
  std::function<void(const CampaignProgress&)> on_progress = {};
  // What judges a case; empty: JudgeCase. Called by several threads.
  std::function<EngineVerdict(const RunDescription& run, EngineKind engine)> judge = {};
};

struct CampaignResult {
  int64_t cases = 0;  // judged, those of other threads beside a failing one included
  double seconds = 0;
  int32_t jobs = 1;
  Coverage coverage;
  int64_t found_index = -1;        // the failing case; -1: none
  std::optional<FoundCase> found;  // shrunk
  int64_t shrink_tries = 0;
  bool shrunk_to_the_end = true;  // false: a limit of ShrinkLimits was reached
};

// Errors: the generator made a run that is not valid, which is a fault of its own.
absl::StatusOr<CampaignResult> RunCampaign(const CampaignOptions& options);

// The i-th case of a seed, before it is shrunk.
rc::Shrinkable<CaseSpec> CampaignCase(const rc::Gen<CaseSpec>& cases, uint64_t seed, int64_t index);

// "12345 cases, 410/s, 89 of 89 values, 3500 of 3740 pairs": one line without a newline.
std::string ProgressText(const CampaignProgress& progress);
// The table at the end: cases, cases a second in all and per job, coverage by axis.
std::string CampaignTable(const CampaignResult& result);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_CAMPAIGN_H_
