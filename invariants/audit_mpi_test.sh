#!/bin/bash
# The audit as four processes under mpirun: it judges what they did as it judges one process.
set -euo pipefail

readonly mpirun_script="${PWD}/ci/rules/mpirun.sh"
readonly program="${PWD}/invariants/audit"
readonly work="${TEST_TMPDIR}/audit_mpi"
export MPIRUN="$1"
source ci/rules/program_test.sh

# run_ranks N ARGUMENTS: as run_program, as N processes.
run_ranks() {
  local ranks=$1
  shift
  scenario="${ranks} processes of ${program##*/} $*"
  status=0
  "${mpirun_script}" "${ranks}" "${program}" "$@" >stdout 2>stderr || status=$?
}

readonly run=(--model=mlp:7,5,6:bias --num_micro_batches=2 --micro_batch_size=3 --clip_grad_norm=0.5 --modes=all)
for format in table json; do
  run_program "${run[@]}" --world_size=4 "--format=${format}" --require=all
  [[ "${status}" == 0 ]] || fail "exit code ${status}, not 0"
  cp stdout in_one_process
  run_ranks 4 "${run[@]}" "--format=${format}" --require=all
  [[ "${status}" == 0 ]] || fail "exit code ${status}, not 0"
  grep -q 'full_shard' stdout || fail "no modes"
  cmp -s in_one_process stdout || fail "four processes print something else than one"
done

# Evidence that was asked for and is not there fails as it does in one process.
run_program --model=mlp:2x8 --modes=zero2 --world_size=2 --require=provenance
[[ "${status}" == 1 ]] || fail "exit code ${status}, not 1"
cp stdout in_one_process
run_ranks 2 --model=mlp:2x8 --modes=zero2 --require=provenance
[[ "${status}" == 1 ]] || fail "exit code ${status}, not 1"
cmp -s in_one_process stdout || fail "two processes print something else than one"

# The report goes into a file once.
run_ranks 2 --model=mlp:2x8 --modes=zero2 --require=all --out=report.json --format=json
[[ "${status}" == 0 ]] || fail "exit code ${status}, not 0"
[[ ! -s stdout ]] || fail "something on stdout"
[[ "$(grep -c '"schema"' report.json)" == 1 ]] || fail "report.json has not one schema"

# A trainer that declines does so on all ranks, and says it once.
run_ranks 2 "--run=model=mlp:2x8;mode=zero2;world_size=2;reduce_dtype=bfloat16"
[[ "${status}" == 2 ]] || fail "exit code ${status}, not 2"
[[ "$(grep -c 'refused: ' stderr)" == 1 ]] || fail "not one line with the refusal on stderr"

run_ranks 2 --model=mlp:2x8 --engine=accounting
[[ "${status}" == 2 ]] || fail "exit code ${status}, not 2"
[[ "$(grep -c 'audit: --engine=accounting under mpirun' stderr)" == 1 ]] || fail "not one line with the engine on stderr"
run_ranks 2 --model=mlp:2x8 --out=nowhere/report.json
[[ "${status}" == 2 ]] || fail "exit code ${status}, not 2"
[[ "$(grep -c 'audit: .*nowhere/report.json' stderr)" == 1 ]] || fail "not one line with the file on stderr"

run_ranks 2 --help
[[ "${status}" == 0 ]] || fail "exit code ${status}, not 0"
[[ "$(grep -c -- '--timeout_s' stdout)" == 1 ]] || fail "not one help"

echo "${failures} failures"
((failures == 0))
