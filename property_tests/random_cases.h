// Random cases in a test: RapidCheck draws and shrinks, the engines judge.
#ifndef PROPERTY_TESTS_RANDOM_CASES_H_
#define PROPERTY_TESTS_RANDOM_CASES_H_

#include <functional>
#include <string>
#include <vector>

#include "invariants/suite/run_case.h"
#include "property_tests/generators/case_generator.h"
#include "property_tests/judge_case.h"

namespace shardproof {

struct RandomCases {
  std::string name;  // of the property, in RapidCheck's output
  CaseLimits limits = {};
  std::vector<EngineKind> engines = {EngineKind::kCpu};
  std::vector<std::string> checks = {};  // names; empty: all
  // What judges a case; empty: JudgeCase on each of the engines, the first that fails.
  std::function<EngineVerdict(const RunDescription& run)> judge = {};
};

// Empty when every case passes. Else the report of the smallest failing case (found_case.h), whose
// replay file lies in Bazel's undeclared outputs. RC_PARAMS and SHARDPROOF_CASES say how many
// cases and from which seed (rapidcheck_defaults.h).
std::string CheckRandomCases(const RandomCases& cases);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_RANDOM_CASES_H_
