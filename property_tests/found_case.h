// What is left behind when a random case fails: words, a replay line and a replay file.
#ifndef PROPERTY_TESTS_FOUND_CASE_H_
#define PROPERTY_TESTS_FOUND_CASE_H_

#include <string>

#include "absl/status/statusor.h"
#include "invariants/run_description/run_description.h"
#include "property_tests/judge_case.h"

namespace shardproof {

struct FoundCase {
  RunDescription run;
  EngineVerdict verdict;  // of the engine on which it was found
  std::string found_by;   // "fuzz --seed=7, case 1234"
};

// Runs the case on all engines that need no GPUs, writes a replay file into `folder` (none when it
// is empty), and tells all of it, line by line:
//
//   full_shard/none on 2 ranks, engine cpu: FAILS padding
//     rule ... (the failed checks as the audit shows them)
//   found by fuzz --seed=7, case 1234
//   engines: cpu FAILS padding; provenance FAILS provenance; accounting pass
//   file: out/cpu_padding_0123456789abcdef.json
//   replay: ci/bazel run //invariants:audit -- --engine=cpu --run='...'
std::string ReportFoundCase(const FoundCase& found, const std::string& folder);

// The path of the file. NotFound when the folder cannot be written to.
absl::StatusOr<std::string> WriteReplayFile(const FoundCase& found, const std::string& folder);

// Where Bazel keeps what tests leave behind; empty outside of a test.
std::string UndeclaredOutputsFolder();

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FOUND_CASE_H_
