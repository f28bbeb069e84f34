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

# Bad arguments are those of all ranks, and are said once.
expect_status 2 --check=paddings --mode=zero2 --world_size=3
[[ "$(grep -c "mpi_suite_test: .*'paddings' is unknown" output)" == 1 ]] || fail "not one line that names the check"

# pid_of RANK: the process of that rank of the job that is under way.
pid_of() {
  local folder
  for folder in /proc/[0-9]*; do
    if grep -qzxF -- "SUITE_JOB=${job_mark}" "${folder}/environ" 2>/dev/null && grep -qzxF "OMPI_COMM_WORLD_RANK=$1" "${folder}/environ" 2>/dev/null; then
      echo "${folder#/proc/}"
      return
    fi
  done
}

# A rank that is stopped from outside ends the job in the middle of its cases: it waits 4 s, agrees on what it was, and goes through no more cases.
for stopped in 1 0; do
  job_mark="$$.${stopped}"
  : >output
  SUITE_JOB="${job_mark}" SHARDPROOF_CASES=100000 \
    "${mpirun}" 3 "${program}" --check=all --mode=full_shard/backward_pre --world_size=3 --timeout_s=4 >output 2>&1 &
  job=$!
  begin=${SECONDS}
  until grep -q 'RUN .*HoldsOnRandomCases' output; do
    if ((SECONDS - begin > 90)); then
      fail "the random cases do not begin"
      break
    fi
    sleep 0.1
  done
  kill -STOP "$(pid_of "${stopped}")"
  begin=${SECONDS}
  status=0
  wait "${job}" || status=$?
  [[ "${status}" == 2 ]] || fail "rank ${stopped} is stopped: exit status ${status}, not 2"
  ((SECONDS - begin <= 30)) || fail "rank ${stopped} is stopped: it took $((SECONDS - begin)) s to end"
  grep 'mpi_suite_test: ' output | grep -q "rank ${stopped}" || fail "rank ${stopped} is stopped, and not named"
  [[ -z "$(pid_of 0)$(pid_of 1)$(pid_of 2)" ]] || fail "processes are still there"
  if ((stopped == 1)); then
    [[ "$(grep -c 'mpi_suite_test: ' output)" == 1 ]] || fail "not one line of the program"
  fi
done

# Without mpirun it would judge ranks in one process.
status=0
"${program}" --check=padding --mode=zero2 --world_size=3 >output 2>&1 || status=$?
[[ "${status}" == 2 ]] || fail "without mpirun: exit status ${status}"
grep -q 'mpirun' output || fail "mpirun is not named"

exit "$((failures > 0))"
