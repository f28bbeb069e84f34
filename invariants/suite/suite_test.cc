// The suite's targets on engines that need nothing but this process (suite_program.h). Hundreds of
// Bazel targets run this binary with other arguments (ci/rules/suite.bzl).
#include "invariants/suite/suite_program.h"

int main(int argc, char** argv) { return shardproof::RunSuite(argc, argv, {}); }
