#!/bin/bash
# What the suite in processes does when a check fails: all ranks go through the same smaller cases, end together, and one of them says what it was.
#   mpi_suite_fails_test.sh MPIRUN.SH MPIRUN PROGRAM
set -euo pipefail

readonly mpirun="${PWD}/$1" program="${PWD}/$3"
export MPIRUN=$2
cd "${TEST_TMPDIR}"
unset XML_OUTPUT_FILE
failures=0

fail() {
  printf 'FAILED: %s\n' "$1"
  head -n 60 output
  failures=$((failures + 1))
}

# expect_status STATUS ARGUMENTS: of the suite on 3 ranks.
expect_status() {
  local expected=$1 status=0
  shift
  "${mpirun}" 3 "${program}" "$@" >output 2>&1 || status=$?
  [[ "${status}" == "${expected}" ]] || fail "$*: exit status ${status}, not ${expected}"
}

# The cpu engine has nothing for this check, so each case fails it, the smallest too.
expect_status 1 --check=provenance --mode=zero2 --world_size=3
grep -q 'replay: ci/bazel run' output || fail "no replay line"
grep -q 'rank 0 says what failed' output || fail "other ranks did not fail with rank 0"
grep -q 'FAILS provenance' output || fail "the check is not named"
[[ "$(grep -c '^  *Exit code' output || true)" -le 1 ]] || fail "mpirun ended more than one rank"

# Another number of ranks than there are processes is an error of every case, and no hang.
SHARDPROOF_CASES=1 expect_status 1 --check=padding --mode=zero2 --world_size=2
grep -q 'a run of 2 ranks in 3 processes' output || fail "the two numbers are not named"

expect_status 2 --check=paddings --mode=zero2 --world_size=3
grep -q "'paddings' is unknown" output || fail "the check is not named"

# Without mpirun it would judge ranks in one process.
status=0
"${program}" --check=padding --mode=zero2 --world_size=3 >output 2>&1 || status=$?
[[ "${status}" == 2 ]] || fail "without mpirun: exit status ${status}"
grep -q 'mpirun' output || fail "mpirun is not named"

exit "$((failures > 0))"
