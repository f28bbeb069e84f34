#!/bin/bash
# The program behind the suite's targets: what it runs for its arguments, and what it says to those it cannot use.
set -euo pipefail

program="${PWD}/invariants/suite/suite_test"
work="${TEST_TMPDIR}/work"
# shellcheck source=ci/rules/program_test.sh
source ci/rules/program_test.sh
unset XML_OUTPUT_FILE
export SHARDPROOF_CASES=2

expect_bad_input "'paddings' is unknown" --check=paddings --mode=zero2 --world_size=2
expect_bad_input "'zero4' is unknown" --check=padding --mode=zero4 --world_size=2
expect_bad_input "names several rows" --check=padding --mode=full_shard --world_size=2
expect_bad_input "--world_size" --check=padding --mode=zero2 --world_size=65
expect_bad_input "engine 'gpu' is unknown" --check=padding --mode=zero2 --world_size=2 --engine=gpu
expect_bad_input "either --world_size" --check=padding --mode=zero2
expect_bad_input "either --world_size" --check=padding --mode=zero2 --world_size=2 --on=cpu:2
expect_bad_input "either --world_size" --check=padding --mode=zero2 --engine=cpu --on=cpu:2
for on in cpu cpu:0 cpu:65 cpu:two cpu:2:3 ''; do
  expect_bad_input "--on: '${on}' is not ENGINE:RANKS" --check=padding --mode=zero2 --on="${on}"
done
expect_bad_input "engine 'gpu' is unknown" --check=padding --mode=zero2 --on=cpu:2,gpu:2

# expect_tests NAMES ARGUMENTS: all pass, and they are these.
expect_tests() {
  local names=$1
  shift
  run_program "$@"
  [[ "${status}" == 0 ]] || fail "exit code ${status}"
  [[ "$(sed -n 's/.*OK ] Invariant\.\([^ ]*\).*/\1/p' stdout | xargs)" == "${names}" ]] || fail "not the tests ${names}"
}

expect_tests "HoldsOnFixedCases HoldsOnRandomCases" --check=all --mode=zero2 --world_size=3
expect_tests "HoldsOnFixedCases HoldsOnRandomCases" --check=provenance --mode=full_shard/none --world_size=2 --engine=provenance
expect_tests "HoldsOnFixedCases_cpu_w1 HoldsOnRandomCases_cpu_w1 HoldsOnFixedCases_accounting_w2 HoldsOnRandomCases_accounting_w2" \
  --check=collective_ledger --mode=replicated --on=cpu:1,accounting:2

# A check that the engine has nothing for is not passed over.
run_program --check=provenance --mode=zero2 --world_size=2
[[ "${status}" == 1 ]] || fail "exit code ${status}, not 1"
grep -q '^replay: ' stdout || fail "no replay line"

exit "$((failures > 0))"
