// Random runs against one judge, until one fails or enough have passed; the failing one is
// shrunk. What the tests of `sharding_suite` and its fuzzer share.
#ifndef INVARIANTS_SUITE_TRAINER_SEARCH_H_
#define INVARIANTS_SUITE_TRAINER_SEARCH_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "invariants/run_description/run_description.h"
#include "property_tests/generators/axes.h"
#include "property_tests/generators/case_generator.h"

namespace shardproof {

enum class CaseOutcome : uint8_t { kPassed, kRefused, kFailed };

struct JudgedCase {
  CaseOutcome outcome = CaseOutcome::kPassed;
  std::string text = {};  // why: the refusal's reason or what failed
  // Of a failure, in a word: the first check that failed, or "error". Shrinking keeps to it.
  std::string cause = {};
};

using CaseJudge = std::function<JudgedCase(const RunDescription& run)>;

struct SearchOptions {
  CaseLimits limits;
  uint64_t seed = 1;
  // Ends after so many cases that were not refused, so many draws, or at this time.
  int64_t max_cases = 24;
  int64_t max_draws = 24 * 64;
  absl::Time deadline = absl::InfiniteFuture();
  // Called after each draw, for progress. May be empty.
  std::function<void(const struct SearchResult&)> on_draw;
};

struct SearchResult {
  int64_t cases = 0;  // that were trained
  int64_t refused = 0;
  std::string last_refusal;
  Coverage coverage;  // of the cases that were trained
  bool failed = false;
  // Of a failure: the shrunk run and what the judge said of it.
  RunDescription run;
  std::string failure;
  int64_t failing_draw = -1;
  int64_t shrink_tries = 0;
  bool shrunk_completely = false;
};

// Equal seeds draw equal runs, whatever ends the search.
SearchResult SearchCases(const SearchOptions& options, const CaseJudge& judge);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_TRAINER_SEARCH_H_
