#!/bin/bash
# zero_train as four processes under mpirun: what it prints is what one process prints, bad input is said once, and a rank that is killed or
# stopped ends the job.
set -euo pipefail

readonly mpirun_script="${PWD}/ci/rules/mpirun.sh"
readonly program="${PWD}/trainer/zero_train"
readonly work="${TEST_TMPDIR}/zero_train_mpi"
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

# expect_bad_input_once TEXT: exit code 2, nothing on stdout, and one line of all ranks with TEXT; mpirun adds words of its own.
expect_bad_input_once() {
  [[ "${status}" == 2 ]] || fail "exit code ${status}, not 2"
  [[ ! -s stdout ]] || fail "something on stdout"
  [[ "$(grep -c 'zero_train: ' stderr)" == 1 ]] || fail "not one line of the program on stderr"
  grep 'zero_train: ' stderr | grep -qF -- "$1" || fail "stderr does not name $1"
}

# Every mode, with biases that divide badly, several micro-batches and clipping.
readonly run=(--model=mlp:7,5,6:bias --steps=3 --num_micro_batches=2 --micro_batch_size=3 --clip_grad_norm=0.5 --format=json)
for mode in replicated zero1_broadcast zero1_allgather zero2 shard_grad_op full_shard/backward_pre full_shard/backward_post full_shard/none; do
  run_program "${run[@]}" --mode="${mode}" --world_size=4
  [[ "${status}" == 0 ]] || fail "exit code ${status}, not 0"
  cp stdout in_one_process
  run_ranks 4 "${run[@]}" --mode="${mode}"
  [[ "${status}" == 0 ]] || fail "exit code ${status}, not 0"
  grep -q '"loss": [0-9]' stdout || fail "no losses"
  cmp -s in_one_process stdout || fail "four processes print something else than one"
done

# What happened, judged as if one process had seen it.
run_ranks 2 --model=mlp:2x8 --mode=zero2 --steps=2 --observe=run.jsonl
[[ "${status}" == 0 ]] || fail "exit code ${status}, not 0"
run_program --model=mlp:2x8 --mode=zero2 --steps=2 --world_size=2 --observe=in_one_process.jsonl
cmp -s in_one_process.jsonl run.jsonl || fail "two processes observe something else than one"

# Bad input of all ranks, and of rank 0 alone.
run_ranks 2 --model=mlp:2x8 --mode=zero2 --world_size=3
expect_bad_input_once "--world_size=3 asks for 3 ranks, and mpirun has started 2"
run_ranks 2 "--run=model=mlp:2x8;mode=zero2;world_size=4"
expect_bad_input_once "--run asks for 4 ranks"
run_ranks 2 --model=mlp:2x8 --mode=zero2 --engine=provenance
expect_bad_input_once "--engine=provenance under mpirun"
run_ranks 2 --model=mlp:2x8 --mode=zero2 --engine=cuda_shared
expect_bad_input_once "--engine=cuda_shared under mpirun"
run_ranks 2 --model=mlp:2x8 --mode=zero2 --observe=nowhere/run.jsonl
expect_bad_input_once "--observe=nowhere/run.jsonl"
run_ranks 2 "--run=model=mlp:2x8;mode=zero2;world_size=2;reduce_dtype=bfloat16"
expect_bad_input_once "bfloat16"

# Whoever sets torchrun's variables gets no MPI with them; half of them are no job.
export RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
expect_bad_input "--engine=cpu under torchrun" --model=mlp:2x8 --mode=zero2
RANK=5 expect_bad_input "RANK" --model=mlp:2x8 --mode=zero2 --engine=cuda
MASTER_PORT=many expect_bad_input "MASTER_PORT" --model=mlp:2x8 --mode=zero2 --engine=cuda
unset MASTER_PORT
expect_bad_input "MASTER_PORT" --model=mlp:2x8 --mode=zero2 --engine=cuda
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR

# pid_of RANK MARK: the process of that rank whose command line has MARK.
pid_of() {
  local folder
  for folder in /proc/[0-9]*; do
    if grep -qzxF -- "$2" "${folder}/cmdline" 2>/dev/null && grep -qzxF "OMPI_COMM_WORLD_RANK=$1" "${folder}/environ" 2>/dev/null; then
      echo "${folder#/proc/}"
      return
    fi
  done
}

# start_endless MARK: four ranks that would train for days, in the background; returns when they train.
start_endless() {
  scenario="four endless processes of ${program##*/} with $1"
  SECONDS=0
  : >stdout
  "${mpirun_script}" 4 "${program}" --model=mlp:2x8 --mode=full_shard/backward_pre --steps=1000000 --timeout_s=4 "$1" >stdout 2>stderr &
  job=$!
  until grep -qE '^ +20  ' stdout; do
    ((SECONDS < 60)) || { fail "does not begin to train"; return; }
    sleep 0.1
  done
}

# expect_end SECONDS: the job ends in this time after now with an error, and no process of it is left.
expect_end() {
  local begin=${SECONDS} rank
  status=0
  wait "${job}" || status=$?
  [[ "${status}" != 0 ]] || fail "exit code 0"
  ((SECONDS - begin <= $1)) || fail "took $((SECONDS - begin)) s to end, more than $1"
  for rank in 0 1 2 3; do
    [[ -z "$(pid_of "${rank}" "$2")" ]] || fail "rank ${rank} is still there"
  done
}

mark="--seed=$$001"
start_endless "${mark}"
kill -KILL "$(pid_of 2 "${mark}")"
expect_end 15 "${mark}"
grep -q 'rank 2' stderr || fail "nobody names rank 2"

mark="--seed=$$002"
start_endless "${mark}"
kill -STOP "$(pid_of 2 "${mark}")"
expect_end 25 "${mark}"
[[ "${status}" == 2 ]] || fail "exit code ${status}, not 2"
# mpirun wakes the stopped rank to end it, which may say that it is too late.
[[ "$(grep 'zero_train: ' stderr | grep -vc '^rank 2 ends')" == 1 ]] || fail "not one line of the ranks that go on, on stderr"
# Where it stopped, in a collective or between steps, is chance.
grep 'zero_train: ' stderr | grep -q 'rank 2' || fail "the message does not name rank 2"

# Rank 0 is waited for like any other.
mark="--seed=$$003"
start_endless "${mark}"
kill -STOP "$(pid_of 0 "${mark}")"
expect_end 40 "${mark}"
[[ "${status}" == 2 ]] || fail "exit code ${status}, not 2"
grep 'zero_train: ' stderr | grep -q 'rank 0' || fail "the message does not name rank 0"
