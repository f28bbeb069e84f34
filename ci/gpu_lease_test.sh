#!/bin/bash
# ci/gpu_lease: who holds which GPUs, who waits, and what it says when there are too few. No GPU is needed: a lease is a lock on a file.
set -euo pipefail

readonly lease="${PWD}/ci/gpu_lease"
export SHARDPROOF_LEASES="${TEST_TMPDIR}/leases"
failures=0

fail() {
  printf 'FAILED: %s\n' "$1"
  failures=$((failures + 1))
}

# expect_error TEXT COMMAND...: exit status 2, and one line on stderr with TEXT.
expect_error() {
  local text=$1 status=0
  shift
  "$@" >"${TEST_TMPDIR}/stdout" 2>"${TEST_TMPDIR}/stderr" || status=$?
  [[ "${status}" == 2 ]] || fail "$*: exit status ${status}, not 2"
  [[ "$(wc -l <"${TEST_TMPDIR}/stderr")" == 1 ]] || fail "$*: not one line on stderr"
  grep -qF -- "${text}" "${TEST_TMPDIR}/stderr" || fail "$*: stderr does not say '${text}': $(cat "${TEST_TMPDIR}/stderr")"
}

# shellcheck disable=SC2016 # The command expands them.
show='echo "${CUDA_VISIBLE_DEVICES}"'

# The first free GPUs of the pool, by the names the pool has for them.
seen=$(CUDA_VISIBLE_DEVICES=3,GPU-ab:1,5 SHARDPROOF_GPUS=2 "${lease}" bash -c "${show}")
[[ "${seen}" == 3,GPU-ab:1 ]] || fail "two of 3,GPU-ab:1,5 are '${seen}'"
seen=$(CUDA_VISIBLE_DEVICES=3,5 "${lease}" bash -c "${show}")
[[ "${seen}" == 3 ]] || fail "without SHARDPROOF_GPUS the lease is '${seen}', not one GPU"

# Without a pool in the environment nvidia-smi tells.
mkdir "${TEST_TMPDIR}/bin"
printf '#!/bin/sh\nprintf "0\\n1\\n"\n' >"${TEST_TMPDIR}/bin/nvidia-smi"
chmod +x "${TEST_TMPDIR}/bin/nvidia-smi"
seen=$(unset CUDA_VISIBLE_DEVICES; PATH="${TEST_TMPDIR}/bin:${PATH}" SHARDPROOF_GPUS=2 "${lease}" bash -c "${show}")
[[ "${seen}" == 0,1 ]] || fail "nvidia-smi lists 0 and 1, the lease is '${seen}'"
printf '#!/bin/sh\nexit 9\n' >"${TEST_TMPDIR}/bin/nvidia-smi"
expect_error "set CUDA_VISIBLE_DEVICES" env -u CUDA_VISIBLE_DEVICES PATH="${TEST_TMPDIR}/bin:${PATH}" "${lease}" true

expect_error "needs 4 GPUs, and the pool has 2 (CUDA_VISIBLE_DEVICES='0,1')" env CUDA_VISIBLE_DEVICES=0,1 SHARDPROOF_GPUS=4 "${lease}" true
expect_error "the pool has 0" env CUDA_VISIBLE_DEVICES= "${lease}" true
expect_error "SHARDPROOF_GPUS='two'" env CUDA_VISIBLE_DEVICES=0 SHARDPROOF_GPUS=two "${lease}" true
expect_error "expected a command" "${lease}"

# The command's status is the lease's.
status=0
CUDA_VISIBLE_DEVICES=0 "${lease}" bash -c 'exit 7' || status=$?
[[ "${status}" == 7 ]] || fail "a command that exits 7 gives ${status}"

# Many at once: each writes what it got, keeps it for a while, and clears it. Nobody may find a GPU of theirs in use.
export CUDA_VISIBLE_DEVICES=0,1,2,3 IN_USE="${TEST_TMPDIR}/in_use"
mkdir "${IN_USE}"
# shellcheck disable=SC2016
use='for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do mkdir "${IN_USE}/${gpu}" || exit 1; done; sleep 0.1
     for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do rmdir "${IN_USE}/${gpu}"; done'
processes=()
for needed in 2 1 4 2 3 1 2 4 1 3; do
  SHARDPROOF_GPUS=${needed} "${lease}" bash -c "${use}" &
  processes+=($!)
done
for process in "${processes[@]}"; do
  wait "${process}" || fail "two commands had one GPU at once"
done

# A killed command gives its GPUs back, and one that waits then starts.
# shellcheck disable=SC2016
SHARDPROOF_GPUS=3 "${lease}" bash -c 'touch "${TEST_TMPDIR}/held"; exec sleep 300' &
holder=$!
until [[ -e "${TEST_TMPDIR}/held" ]]; do
  sleep 0.05
done
waited=0
SHARDPROOF_GPUS=2 timeout 1 "${lease}" true || waited=$?
[[ "${waited}" == 124 ]] || fail "two GPUs were given out while three of four were held (status ${waited})"
kill "${holder}"
wait "${holder}" 2>/dev/null || true
SHARDPROOF_GPUS=4 timeout 60 "${lease}" true || fail "a killed command still holds its GPUs"

exit $((failures > 0))
