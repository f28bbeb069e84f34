// The three programs that `sharding_suite` (ci/rules/sharding_suite.bzl) makes of a trainer. Each
// is the whole of a main function; `argv` is main's.
#ifndef INVARIANTS_SUITE_TRAINER_PROGRAMS_H_
#define INVARIANTS_SUITE_TRAINER_PROGRAMS_H_

#include "invariants/suite/sharded_trainer.h"

namespace shardproof {

// One check on one mode row, on fixed and on random runs:
//   --check=padding --mode=full_shard/backward_pre --world_sizes=1,2,3
// Fails when the check fails, when a run ends in an error, when the check was not observed (or,
// with --expect_not_observed, when it was), and when the trainer refused every run: then
// nothing was tested. RC_PARAMS="seed=7 max_success=1000" changes the random runs. A failing run
// goes to the test's undeclared outputs as counterexample.json.
int TrainerTestMain(int argc, char** argv, const TrainerUnderTest& trainer);

// Random runs through all checks:
//   --duration=10m --seed=7 --max_cases=100000 --modes=zero2,full_shard --world_sizes=1,2,4
// Exits 1 on the first failure, with the shrunk run, what failed and the line that replays it. A
// run that ends in an error, or of which no check saw anything, is such a failure; so is a
// campaign in which every run was refused. Otherwise lists the checks that saw nothing, in how
// many runs and why, and exits 0.
int TrainerFuzzMain(int argc, char** argv, const TrainerUnderTest& trainer);

// One run through all checks: --run=LINE or --file=PATH, each a line or JSON; a file may also be
// a replay file (property_tests/replay_file.h). Exits 1 if a check fails, if the trainer ends in
// an error or a deadlock (its words are printed) and if no check saw anything; 2 on bad flags, a
// run that cannot be read or is invalid, and when the trainer refuses the run: as
// //property_tests:replay does, nothing was judged.
int TrainerReplayMain(int argc, char** argv, const TrainerUnderTest& trainer);

}  // namespace shardproof

#endif  // INVARIANTS_SUITE_TRAINER_PROGRAMS_H_
