// JudgeCase: one run on one engine, to a verdict with the words that go with it.
#ifndef PROPERTY_TESTS_JUDGE_CASE_H_
#define PROPERTY_TESTS_JUDGE_CASE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/checks/check.h"
#include "invariants/observation/observation.h"
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

// Whether a check's verdict on this engine is as good as it can be. Only a pass is, but that the
// engines without values (MovesValues) owe none of the checks that need values, and none of those
// that a rule not defined yet leaves without an expectation (NoStepRule, NoStateRule). The
// provenance engine shows what `provenance` needs and owes that one; the accounting engine owes
// `padding` if the run has moments, the only places it shows.
bool Satisfies(const RunDescription& run, EngineKind engine, const CheckResult& check);

// What is wrong with whose kernels the last step of a run on `engine` shows, in one line; "" if
// nothing. collective_ledger judges the kernels that it is shown and would not miss any, so that
// nobody would notice if the witness were gone. `cuda` owes those of every rank. Ranks that share a
// GPU, on `cuda_shared`, cannot be told apart by its kernels and must show none.
std::string WitnessComplaint(const RunDescription& run, EngineKind engine,
                             const std::vector<DeviceWitness>& devices);

// Passes when every check that was asked for satisfies, and nothing is wrong with the witnesses;
// that is the cause "kernel_witness".
EngineVerdict JudgeCase(const RunDescription& run, const CaseOptions& options);

// Those that need nothing but this process, in the order in which they are worth a look.
std::vector<EngineKind> AllEngines();
// "all", which are these, or the name of one; `gpus`: also of one that needs GPUs, for programs
// that link them. InvalidArgument names the text and what is accepted.
absl::StatusOr<std::vector<EngineKind>> ParseEngines(absl::string_view text, bool gpus = false);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_JUDGE_CASE_H_
