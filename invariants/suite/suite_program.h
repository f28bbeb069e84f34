// RunSuite: the program behind the suite's targets. One check, or all nine, on one mode row: on
// fixed cases and on random ones.
//
//   --check=padding --mode=full_shard/backward_pre --world_size=4 [--engine=provenance]
//   --check=padding --mode=zero2 --on=cuda:1,cuda_shared:2,cuda_shared:4
//   --check=all --mode=zero2 --world_size=4 [--timeout_s=40]
//
// The seed of the random cases is fixed; RC_PARAMS="seed=7 max_success=1000" changes it.
// SHARDPROOF_CASES=1000 asks for as many. A random case that fails leaves a replay file among the
// test's undeclared outputs.
#ifndef INVARIANTS_SUITE_SUITE_PROGRAM_H_
#define INVARIANTS_SUITE_SUITE_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "invariants/run_description/run_description.h"
#include "invariants/suite/run_case.h"
#include "property_tests/judge_case.h"

namespace shardproof {

// What one of the binaries of the suite brings with it.
struct SuiteProgram {
  std::string name = "suite_test";  // before messages
  // Called once with good arguments, before all below. `timeout`: --timeout_s, how long a rank
  // waits for others.
  std::function<absl::Status(absl::Duration timeout)> join = {};
  // Asked once, after join and before the first case: what this machine or job lacks.
  std::function<absl::Status()> ready = {};
  // Adds to a case's options what the engine needs: its factory, or where its ranks run.
  std::function<void(CaseOptions& options)> prepare = {};
  // In several processes that judge the same cases: the verdict with which all of them go on, of
  // what each has found (shared_verdict.h). After an error no case is judged any more.
  std::function<absl::StatusOr<EngineVerdict>(const EngineVerdict& found)> agree = {};
  // Whether this process says what failed; another one does, and this one just fails, if not.
  bool tells = true;
  int32_t random_cases = 24;  // unless the environment says otherwise
  // Lines of runs that are judged beside the fixed cases of every program.
  std::vector<std::string> more_fixed_cases = {};
  // Where a case is dear: on one of the mode's layouts each instead of on all four. Which one goes
  // round by case and by check, so that the nine checks' targets together see every layout of each
  // case in every mode. With --check=all it goes round by case and by mode row: neighbouring modes
  // see a case on different layouts.
  bool one_layout_a_case = false;
};

// The program's exit status, 0 all passed and 1 something failed, or why it did not come to that:
// InvalidArgument for bad arguments, and the errors of join, ready and agree, which are the
// caller's to tell (exit status 2).
absl::StatusOr<int> RunSuite(int argc, char** argv, const SuiteProgram& program);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_SUITE_PROGRAM_H_
