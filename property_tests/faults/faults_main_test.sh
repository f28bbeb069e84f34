#!/bin/bash
# The program that runs one seeded fault: what it shows, its exit codes, and bad input as one line on stderr.
set -euo pipefail

readonly program="${PWD}/property_tests/faults/faults_main"
readonly work="${TEST_TMPDIR}/faults"
source ci/rules/program_test.sh

expect_status() {
  [[ "${status}" == "$1" ]] || fail "exit code ${status}, not $1"
  [[ ! -s stderr ]] || fail "something on stderr"
}

expect_in() {
  grep -qF -- "$2" "$1" || fail "no '$2' in $1"
}

run_program --list
expect_status 0
expect_in stdout "reduce_scatter_sums_instead_of_mean"
expect_in stdout "waits for checkpoints"
expect_in stdout "models the symptom"
expect_in stdout "stand-in, the row waits for loss scale"

# A fault is found, with the words that a user would read; by its row too.
run_program --fault=reduce_scatter_sums_instead_of_mean
expect_status 1
expect_in stdout "numeric_equivalence fails"
expect_in stdout "ratio 4"
run_program --fault A2
expect_status 1

# One that ends in an engine's error.
run_program --fault=collectives_issued_in_hash_order
expect_status 1
expect_in stdout "the engine ends the run: "
expect_in stdout "found by engine_error"

# A generated edit by its name.
run_program --edit='replicated/op 0 release: drop, all ranks'
expect_status 1
expect_in stdout "found by "

expect_bad_input "close: reduce_scatter_sums_instead_of_mean" --fault=reduce_scatter_sum_instead_of_mean
expect_bad_input "waits for checkpoints" --fault=save_mutates_live_optimizer
expect_bad_input "is unknown" --edit='replicated/op 0 nothing'
expect_bad_input "accepted: replicated, " --edit='nowhere/op 0 release: drop, all ranks'
expect_bad_input "0 of --list, --fault and --edit"
expect_bad_input "2 of --list, --fault and --edit" --list --fault=A2
expect_bad_input "--faulty" --faulty=A2

exit "$((failures > 0))"
