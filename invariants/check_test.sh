#!/bin/bash
# The check as people and scripts meet it: a run of zero_train passes, files with a fault exit 1 and name the culprit, and bad input is one line on
# stderr that names the value, an empty stdout, and exit code 2.
set -euo pipefail

readonly zero_train="${PWD}/trainer/zero_train"
readonly observations="${PWD}/fixtures/observations"
readonly program="${PWD}/invariants/check"
readonly work="${TEST_TMPDIR}/check"
source ci/rules/program_test.sh

expect_status() {
  [[ "${status}" == "$1" ]] || fail "exit code ${status}, not $1"
  [[ ! -s stderr ]] || fail "something on stderr"
}

expect_in() {
  grep -qF -- "$2" "$1" || fail "no '$2' in $1"
}

# What zero_train shows passes, in every mode and in any form of the model.
for mode in replicated zero1_broadcast zero1_allgather zero2 shard_grad_op full_shard/backward_pre full_shard/backward_post full_shard/none; do
  "${zero_train}" --model=mlp:5,7,3:bias --world_size=3 --mode="${mode}" --num_micro_batches=2 --observe=run.jsonl >/dev/null
  run_program --observation=run.jsonl --require=all
  expect_status 0
  expect_in stdout "shardproof check of run.jsonl"
done
"${zero_train}" --model=probe:10x3,7 --world_size=2 --mode=zero2 --observe=probe.jsonl >/dev/null
run_program --observation=probe.jsonl --require=all
expect_status 0

# Without values there is no verdict on values, and the reason is told.
"${zero_train}" --model=mlp:8x2048 --mode=zero2 --engine=accounting --observe=counted.jsonl >/dev/null
run_program --observation=counted.jsonl
expect_status 0
expect_in stdout "numeric_equivalence not_observed: no reference of this model was computed: the first step shows no values"
run_program --observation=counted.jsonl --require=numeric_equivalence
expect_status 1

# Only some checks.
run_program --observation=probe.jsonl --checks=padding,liveness
expect_status 0
expect_in stdout "liveness"
[[ "$(grep -c "issue_order" stdout || true)" == 0 ]] || fail "a check that was not asked for"

# Faults.
run_program --observation="${observations}/sum_instead_of_mean.jsonl"
expect_status 1
expect_in stdout "zero2 FAILS numeric_equivalence"
expect_in stdout "every reduced gradient has the bits of replicated training"
expect_in stdout "rank 0, step 0, tensor layers.1.bias, element 0"
expect_in stdout "the ratio is N (N = 4 ranks, K = 1 micro-batch): gradients are summed over the ranks and never divided by N"
expect_in stdout "replay: ci/bazel run //invariants:check -- --observation='${observations}/sum_instead_of_mean.jsonl'"
[[ "$(grep -c ' FAILS ' stdout)" == 1 ]] || fail "more than one check failed"

run_program --observation="${observations}/stale_gather.jsonl"
expect_status 1
expect_in stdout "full_shard/backward_pre FAILS unshard_lifecycle, 2 violations"
expect_in stdout "rank 1, step 1, unit layers.1"
expect_in stdout "version 0 read by event"
[[ "$(grep -c ' FAILS ' stdout)" == 1 ]] || fail "more than one check failed"

# To a file, as JSON, relative to the directory of the person who asked.
mkdir -p elsewhere
cp "${observations}/stale_gather.jsonl" elsewhere/run.jsonl
BUILD_WORKING_DIRECTORY="${work}/elsewhere" run_program --observation=run.jsonl --format=json --out=report.json
expect_status 1
[[ ! -s stdout ]] || fail "something on stdout"
expect_in elsewhere/report.json '"observation": "run.jsonl"'
expect_in elsewhere/report.json '"verdict": "fail"'

# Flags.
expect_bad_input "--observation is missing"
expect_bad_input "--colour" --observation=run.jsonl --colour=red
expect_bad_input "'everything' is unknown" --observation=run.jsonl --checks=everything
expect_bad_input "'everything' is unknown" --observation=run.jsonl --require=everything
expect_bad_input "--require names liveness" --observation=run.jsonl --checks=padding --require=liveness
expect_bad_input "--format=xml" --observation=run.jsonl --format=xml
expect_bad_input "nowhere/report.txt" --observation=run.jsonl --out=nowhere/report.txt

# Files.
expect_bad_input "missing.jsonl" --observation=missing.jsonl
expect_bad_input "elsewhere: is a folder" --observation=elsewhere
: >empty.jsonl
expect_bad_input "empty.jsonl: line 1: nothing to read" --observation=empty.jsonl
head -n 2 run.jsonl >short.jsonl
expect_bad_input "short.jsonl: after line 2: the file ends with 1 steps; accepted: 3" --observation=short.jsonl
head -c 5000 run.jsonl >truncated.jsonl
expect_bad_input "truncated.jsonl: line 2" --observation=truncated.jsonl
sed '1s,shardproof.observation/1,shardproof.observation/9,' run.jsonl >schema.jsonl
expect_bad_input "shardproof.observation/9" --observation=schema.jsonl
head -c 3000 "${program}" >binary.jsonl
expect_bad_input "binary.jsonl: line 1" --observation=binary.jsonl

run_program --help
expect_status 0
expect_in stdout "--observation"

echo "${failures} failures"
((failures == 0))
