#!/bin/bash
# A rank that is killed, stopped or gone must end the whole job, with an error that names it, while others wait for it.
set -euo pipefail

readonly mpirun="${PWD}/$1"
readonly program="${PWD}/$3"
export MPIRUN=$2
cd "${TEST_TMPDIR:-$(mktemp -d)}"
failures=0

fail() {
  echo "FAILED: ${how}: $*"
  sed 's/^/  stderr: /' stderr | head -n 60
  failures=$((failures + 1))
}

# run HOW [BEFORE]: the job's status, its seconds and its stderr. BEFORE: what a shell does on a rank before it becomes the program.
run() {
  how=$1
  local before=${2:-:}
  rm -rf pids
  mkdir pids
  local begin=${SECONDS}
  status=0
  # shellcheck disable=SC2016
  "${mpirun}" 4 bash -c 'touch "pids/$$"; '"${before}"'; exec "$@"' failing_rank "${program}" "${how}" "${PWD}/pids" >stdout 2>stderr || status=$?
  seconds=$((SECONDS - begin))
  local pid
  [[ "$(find pids -type f | wc -l)" == 4 ]] || fail "not four ranks ran"
  for pid in pids/*; do
    [[ ! -e "/proc/${pid#pids/}" ]] || fail "process ${pid#pids/} is still there"
  done
}

expect_stderr() {
  grep -qF -- "$1" stderr || fail "stderr lacks '$1'"
}

# The ranks wait 4 s for each other; mpirun takes up to 2 s to end processes that do not react.
expect_failure_within() {
  [[ "${status}" != 0 && "${status}" != 124 ]] || fail "exit status ${status}"
  ((seconds <= $1)) || fail "it took ${seconds} s"
}

run never
[[ "${status}" == 0 ]] || fail "exit status ${status}"
[[ ! -s stderr ]] || fail "something on stderr"

run killed
expect_failure_within 10
expect_stderr "rank 2"
expect_stderr "signal 9 (Killed)"

run stopped
expect_failure_within 20
expect_stderr "waits for all_reduce of 1048576 float32 (label 2), position 2 of the group of ranks 0, 1, 2, 3; not arrived: rank 2; waited 4s"

run stopped_in
expect_failure_within 20
expect_stderr "waits for all_reduce of 1048576 float32 (label 2), position 2 of the group of ranks 0, 1, 2, 3; all have arrived, data awaited of rank"
grep -E 'data awaited of ranks? [^;]*2' stderr >/dev/null || fail "stderr does not name rank 2"

run leaves
expect_failure_within 20
expect_stderr "not arrived: rank 2; rank 2 has left the job"
expect_stderr "rank 2 has had enough"

run cuts
expect_failure_within 20
# Who finds out first names the two.
grep -E 'ends the job: rank (2 sends messages of 1024 bytes|[013] sends .* rank 2 of 1024)' stderr >/dev/null ||
  fail "stderr does not name rank 2's messages"
expect_stderr "MpiOptions must be equal on all ranks"

# MPI starts with all ranks or not at all. The ranks look after 4 s, one after the other; the first ends the job.
run "never" '((OMPI_COMM_WORLD_RANK != 2)) || kill -STOP $$'
how="stopped before MPI_Init"
expect_failure_within 15
expect_stderr "rank 0 waited 4s in MPI_Init_thread for all processes of the job"
[[ "${status}" == 2 ]] || fail "exit status ${status}, not 2"
[[ "$(grep -c 'MPI_Init_thread' stderr)" == 1 ]] || fail "not one line of the ranks"

run "never" '((OMPI_COMM_WORLD_RANK != 0)) || kill -STOP $$'
how="rank 0 stopped before MPI_Init"
expect_failure_within 15
expect_stderr "rank 1 waited 4s in MPI_Init_thread for all processes of the job"
[[ "${status}" == 2 ]] || fail "exit status ${status}, not 2"

run "never" '((OMPI_COMM_WORLD_RANK != 2)) || exit 0'
how="gone before MPI_Init"
expect_failure_within 15

how="mpirun.sh's own limit"
status=0
begin=${SECONDS}
TEST_TIMEOUT=4 "${mpirun}" 2 sleep 60 >stdout 2>stderr || status=$?
[[ "${status}" == 124 ]] || fail "exit status ${status}"
((SECONDS - begin <= 15)) || fail "it took $((SECONDS - begin)) s"

how="mpirun.sh without a program"
status=0
"${mpirun}" 2 >stdout 2>stderr || status=$?
[[ "${status}" == 2 ]] || fail "exit status ${status}"
expect_stderr "usage: mpirun.sh"

((failures == 0)) && echo "every failure ended the job"
exit $((failures > 0))
