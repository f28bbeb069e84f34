// JudgeCase: one run on one engine, to a verdict with the words that go with it.
#ifndef PROPERTY_TESTS_JUDGE_CASE_H_
#define PROPERTY_TESTS_JUDGE_CASE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/run_case.h"

namespace shardproof {

struct EngineVerdict {
  EngineKind engine = EngineKind::kCpu;
  bool passes = true;
  bool is_bad_input = false;  // refused, or more memory than allowed: nothing was judged
  // What went wrong in one word: the first check that failed, "refused" or "error". Shrinking
  // keeps to it, so that it does not wander off to another fault.
  std::string cause = {};
  std::string headline = "pass";  // one line, such as "FAILS padding, liveness"
  std::string details = {};       // each failed check's text; ends in a newline, or is empty
};

// Passes when every check that was asked for passes. On the engines without values a check that
// has no evidence passes too; on cpu none may be without.
EngineVerdict JudgeCase(const RunDescription& run, const CaseOptions& options);

// By name, in the order in which they are worth a look.
std::vector<EngineKind> AllEngines();
// "all", or one engine's name. InvalidArgument names the text and what is accepted.
absl::StatusOr<std::vector<EngineKind>> ParseEngines(absl::string_view text);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_JUDGE_CASE_H_
