#!/bin/bash
# audit and zero_train where GPUs are asked for and there are none, and under a launcher's variables that make no sense: exit code 2, nothing on stdout,
# and one line on stderr that names what is wrong. The argument says whether this build has CUDA ("cuda") or not ("no_cuda").
set -euo pipefail

readonly built_with="$1"
readonly audit="${PWD}/invariants/audit"
readonly zero_train="${PWD}/trainer/zero_train"
readonly work="${TEST_TMPDIR}/without_gpus"
program="${audit}"
source ci/rules/program_test.sh

# On a machine that has GPUs CUDA then sees none.
export CUDA_VISIBLE_DEVICES=""

# expect_no_gpu NEEDED ARGUMENTS: the machine, or the build, lacks what the run needs. A driver too old for this CUDA is told by its version.
expect_no_gpu() {
  local words="no NVIDIA driver or no GPU was found, this run needs $1; CUDA says: .+|the CUDA driver supports CUDA [0-9.]+: .* needs a driver"
  [[ "${built_with}" == cuda ]] || words="engine is not in this build|this build has no CUDA or no NCCL"
  shift
  expect_bad_input "" "$@"
  grep -qE -- "${words}" stderr || fail "stderr does not say that there is no GPU, or no CUDA"
}

for program in "${audit}" "${zero_train}"; do
  flag=--modes
  [[ "${program}" == "${audit}" ]] || flag=--mode
  run=(--model=mlp:2x8 "${flag}=zero2")
  expect_no_gpu 3 "${run[@]}" --engine=cuda --world_size=3
  expect_no_gpu 1 "${run[@]}" --engine=cuda_shared --world_size=3
  expect_no_gpu 2 "${run[@]}" --engine=cuda --world_size=2 --format=json
done
program="${zero_train}"
expect_no_gpu 2 --model=mlp:2x8 --mode=all --bench --engine=cuda --world_size=2
expect_no_gpu 1 --model=mlp:2x8 --mode=all --bench --engine=cuda_shared --world_size=2

# Under torchrun's variables. These processes are rank 0, or know by themselves that they are none.
export RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29660
for program in "${audit}" "${zero_train}"; do
  flag=--modes
  [[ "${program}" == "${audit}" ]] || flag=--mode
  run=(--model=mlp:2x8 "${flag}=zero2" --engine=cuda --timeout_s=1)
  expect_bad_input "--world_size=3 asks for 3 ranks, and torchrun has started 2" "${run[@]}" --world_size=3
  expect_bad_input "rank 1 did not join the job within 1s" "${run[@]}"
  expect_bad_input "--engine=cuda_shared under torchrun" --model=mlp:2x8 "${flag}=zero2" --engine=cuda_shared
  RANK=1 expect_bad_input "rank 1 found no rank 0" "${run[@]}"
  RANK=1 MASTER_ADDR=nowhere.invalid expect_bad_input "nowhere.invalid" "${run[@]}"
  RANK=2 expect_bad_input 'RANK is "2"' "${run[@]}"
  RANK=first expect_bad_input 'RANK is "first"' "${run[@]}"
  WORLD_SIZE=0 expect_bad_input 'WORLD_SIZE is "0"' "${run[@]}"
  LOCAL_RANK=-1 expect_bad_input 'LOCAL_RANK is "-1"' "${run[@]}"
  LOCAL_WORLD_SIZE=3 expect_bad_input 'LOCAL_WORLD_SIZE is "3"' "${run[@]}"
  MASTER_PORT=65536 expect_bad_input 'MASTER_PORT is "65536"' "${run[@]}"
  MASTER_ADDR="" expect_bad_input "MASTER_ADDR is empty" "${run[@]}"
  OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
    expect_bad_input 'OMPI_COMM_WORLD_RANK is "1" and RANK is "0"' "${run[@]}"
done
# Ranks that were told different things. Rank 1 is refused, and says so; rank 0 waits for a rank 1 that it can take.
for program in "${audit}" "${zero_train}"; do
  flag=--modes
  [[ "${program}" == "${audit}" ]] || flag=--mode
  "${program}" --model=mlp:2x8 "${flag}=zero2" --engine=cuda --timeout_s=4 >stdout_of_0 2>stderr_of_0 &
  RANK=1 WORLD_SIZE=3 expect_bad_input "rank 1 says that there are 3 ranks; rank 0 was told 2" \
    --model=mlp:2x8 "${flag}=zero2" --engine=cuda --timeout_s=4
  scenario="rank 0 of two without rank 1"
  status=0
  wait "$!" || status=$?
  [[ "${status}" == 2 ]] || fail "exit code ${status}, not 2"
  [[ ! -s stdout_of_0 && "$(wc -l <stderr_of_0)" == 1 ]] || fail "rank 0 says $(cat stdout_of_0 stderr_of_0)"
done
unset LOCAL_RANK
for program in "${audit}" "${zero_train}"; do
  expect_bad_input "LOCAL_RANK is missing" --model=mlp:2x8
done
unset RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT

# Half of mpirun's.
export OMPI_COMM_WORLD_RANK=0
for program in "${audit}" "${zero_train}"; do
  expect_bad_input "OMPI_COMM_WORLD_SIZE is missing" --model=mlp:2x8
done
unset OMPI_COMM_WORLD_RANK

# Two processes of the audit meet, and what both lack rank 0 alone says (zero_train_test has the same of zero_train).
scenario="two processes of audit under torchrun's variables"
join_as() {
  RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29680 TORCHELASTIC_RUN_ID=$$ \
    "${audit}" --model=mlp:2x8 --modes=zero2 --engine=cuda --timeout_s=30
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

echo "${failures} failures"
((failures == 0))
