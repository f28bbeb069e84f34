// The suite's targets on engines that need nothing but this process (suite_program.h). Hundreds of
// Bazel targets run this binary with other arguments (ci/rules/suite.bzl).
#include "absl/status/statusor.h"
#include "invariants/suite/console.h"
#include "invariants/suite/suite_program.h"

int main(int argc, char** argv) {
  const shardproof::SuiteProgram program;
  const absl::StatusOr<int> exit_code = shardproof::RunSuite(argc, argv, program);
  if (exit_code.ok()) return *exit_code;
  return shardproof::ReportBadInput(program.name, exit_code.status());
}
