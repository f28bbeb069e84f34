#!/bin/bash
# zero_train as people meet it: what it prints, and one line on stderr with exit code 2 when it cannot train.
set -euo pipefail

readonly models="${PWD}/fixtures/models"
readonly program="${PWD}/trainer/zero_train"
readonly work="${TEST_TMPDIR}/zero_train"
source ci/rules/program_test.sh

expect_trained() {
  [[ "${status}" == 0 ]] || fail "exit code ${status}, not 0"
  [[ ! -s stderr ]] || fail "something on stderr"
}

expect_in() {
  grep -qE -- "$1" stdout || fail "no '$1' on stdout"
}

run_program --model=mlp:8x16 --world_size=4 --mode=full_shard/backward_pre --steps=10
expect_trained
expect_in '^zero_train in full_shard/backward_pre \(layout flat\)$'
[[ "$(grep -cE '^ +[0-9]  [0-9.e-]+$' stdout)" == 10 ]] || fail "not a loss for each of ten steps"
expect_in '^ *0-3 +2,048 B +2,048 B +4,096 B'
expect_in '^all_gather +backward +8 +8,192 B +6,144 B'
expect_in '^reduce_scatter +backward +8 '
expect_in '^activations of rank 0 '
cp stdout first

# The same run prints the same losses, and so does any other mode.
run_program --model=mlp:8x16 --world_size=4 --mode=full_shard/backward_pre --steps=10
cmp -s first stdout || fail "two runs differ"
losses() { grep -E '^ +[0-9]  [0-9.e-]+$' "$1"; }
run_program --model=mlp:8x16 --world_size=4 --mode=zero1_broadcast --steps=10
expect_trained
[[ "$(losses first)" == "$(losses stdout)" ]] || fail "another mode has other losses"

run_program --model=mlp:8x2048 --mode=zero2 --engine=accounting
expect_trained
expect_in '^no losses: '
expect_in '^reduce_scatter +backward +2 +128.00 MiB +96.00 MiB'

run_program --model="${models}/llama-3.1-8b.config.json" --mode=full_shard/none --engine=accounting --world_size=64
expect_trained
expect_in '^[0-9, -]+, \.\.\. \(5[0-9] ranks\) +478.64 MiB'
expect_in '^activations: none'

run_program --model=mlp:2x8 --mode=shard_grad_op --steps=2 --format=json
expect_trained
expect_in '"schema": "shardproof.train/1"'
[[ "$(grep -c '"loss": [0-9]' stdout)" == 2 ]] || fail "not a loss for each of two steps"
run_program --model=mlp:2x8 --mode=shard_grad_op --steps=2 --format=json --engine=accounting
expect_trained
[[ "$(grep -c '"loss": null' stdout)" == 2 ]] || fail "losses of an engine that computes none"

# What happened, as a file: a line for the run and one a step; values only from an engine that computes them.
run_program --model=mlp:2x8 --mode=zero2 --steps=2 --observe=run.jsonl
expect_trained
[[ "$(wc -l <run.jsonl)" == 3 ]] || fail "not three lines in run.jsonl"
[[ "$(grep -c '"values":' run.jsonl)" == 2 ]] || fail "no values in run.jsonl"
run_program --model=mlp:2x8 --mode=zero2 --steps=2 --engine=accounting --observe=run.jsonl
expect_trained
[[ "$(wc -l <run.jsonl)" == 3 ]] || fail "not three lines in run.jsonl"
[[ "$(grep -c '"values":' run.jsonl || true)" == 0 ]] || fail "values in run.jsonl"
expect_bad_input "--observe=nowhere/run.jsonl" --model=mlp:2x8 --mode=zero2 --observe=nowhere/run.jsonl

expect_bad_input "--mode is missing" --model=mlp:2x8
expect_bad_input "full_shard/none" --model=mlp:2x8 --mode=full_shard
expect_bad_input "--colour" --model=mlp:2x8 --mode=zero2 --colour=red
expect_bad_input "missing.json" --model=missing.json --mode=zero2
expect_bad_input "bfloat16" "--run=model=mlp:2x8;mode=zero2;reduce_dtype=bfloat16"
expect_bad_input "bytes" --model=probe:2000000x2000000 --mode=zero2
expect_bad_input "gpt2" --model="${models}/gpt2.config.json" --mode=zero2

# A benchmark needs GPUs, and says so before it looks for any.
expect_bad_input "--bench with --engine=cpu; accepted is cuda or cuda_shared" --model=mlp:2x8 --mode=all --bench
expect_bad_input "--bench with --steps" --model=mlp:2x8 --mode=all --bench --engine=cuda --steps=3
expect_bad_input "--bench_steps without --bench" --model=mlp:2x8 --mode=zero2 --bench_steps=3

# Two processes with torchrun's variables meet without it. What both lack, here a GPU, rank 0 alone says.
scenario="two processes under torchrun's variables without a GPU"
join_as() {
  CUDA_VISIBLE_DEVICES="" RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29640 TORCHELASTIC_RUN_ID=$$ \
    "${program}" --model=mlp:2x8 --mode=zero2 --engine=cuda --timeout_s=30
}
join_as 1 >stdout1 2>stderr1 &
status=0
join_as 0 >stdout 2>stderr || status=$?
[[ "${status}" == 2 ]] || fail "exit code ${status} of rank 0, not 2"
status=0
wait "$!" || status=$?
[[ "${status}" == 2 ]] || fail "exit code ${status} of rank 1, not 2"
[[ ! -s stdout && ! -s stdout1 && ! -s stderr1 ]] || fail "something on stdout, or on rank 1's stderr"
[[ "$(wc -l <stderr)" == 1 ]] || fail "not one line on stderr"
grep -qE 'GPU|cuda' stderr || fail "stderr does not say what is missing"

echo "${failures} failures"
((failures == 0))
