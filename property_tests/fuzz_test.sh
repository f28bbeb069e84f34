#!/bin/bash
# The fuzzer as people meet it: a short campaign, the same from the same seed, and bad input as one line on stderr and exit code 2.
set -euo pipefail

# shellcheck disable=SC2034 # program_test.sh reads both.
readonly program="${PWD}/property_tests/fuzz"
# shellcheck disable=SC2034
readonly work="${TEST_TMPDIR}/fuzz"
source ci/rules/program_test.sh

expect_status() {
  [[ "${status}" == "$1" ]] || fail "exit code ${status}, not $1"
  [[ ! -s stderr ]] || fail "something on stderr"
}

expect_in() {
  grep -qF -- "$2" "$1" || fail "no '$2' in $1"
}

# Seed and number fix the cases, on any number of threads. Times are left out of the comparison.
for jobs in 1 2; do
  run_program --seed=5 --max_cases=60 --jobs="${jobs}"
  expect_status 0
  expect_in stdout "fuzz --seed=5"
  expect_in stdout "cases     60 in "
  expect_in stdout "coverage  "
  grep -v '^cases\|^speed' stdout >"table.${jobs}"
done
cmp table.1 table.2 || fail "two campaigns of one seed differ"

# A fresh seed is told.
run_program --max_cases=5 --engine=accounting
expect_status 0
grep -qE '^fuzz --seed=[0-9]+$' stdout || fail "no seed"

run_program --duration=300ms --engine=all
expect_status 0

expect_bad_input "--duration=soon is refused" --duration=soon
expect_bad_input "--duration=-3s is refused" --duration=-3s
expect_bad_input "engine 'gpu' is unknown" --engine=gpu
expect_bad_input "--max_cases" --max_cases=0
expect_bad_input "--jobs" --jobs=none
expect_bad_input "--colour" --colour=red

# Without a GPU, or in a build without CUDA.
CUDA_VISIBLE_DEVICES="" expect_bad_input "GPU" --engine=cuda_shared --seed=7 --max_cases=10
CUDA_VISIBLE_DEVICES="" expect_bad_input "GPU" --engine=cuda --max_cases=10
expect_bad_input "--jobs=2 with --engine=cuda" --engine=cuda --jobs=2

run_program --help
expect_status 0
expect_in stdout "--duration"
expect_in stdout "cuda_shared (all ranks on one GPU)"

echo "${failures} failures"
((failures == 0))
