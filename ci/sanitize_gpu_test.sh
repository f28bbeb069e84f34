#!/bin/bash
# What sanitize_gpu makes of the tool's words, and what it says to bad input. The tool, Bazel and the programs are stubs here: they need a GPU.
set -euo pipefail

readonly script="${PWD}/ci/sanitize_gpu"
cd "${TEST_TMPDIR}"
unset SHARDPROOF_BIN SHARDPROOF_BAZEL SHARDPROOF_SANITIZER_SECONDS SHARDPROOF_GPUS
export CUDA_HOME="${PWD}/no_cuda"
failures=0

fail() {
  echo "FAILED: $*"
  sed 's/^/  stdout: /' stdout | head -n 40
  sed 's/^/  stderr: /' stderr | head -n 20
  failures=$((failures + 1))
}

expect_equal() {
  [[ "$2" == "$3" ]] || fail "$1: expected '$3', found '$2'"
}

# Runs the script; its words are in stdout and stderr, its status in `status`, the tool's command lines in tool_calls.
sanitize() {
  rm -f tool_calls
  : >tool_calls
  status=0
  "${script}" "$@" >stdout 2>stderr || status=$?
}

expect_refused() {
  local words=$1
  shift
  sanitize "$@"
  expect_equal "status of $*" "${status}" 2
  expect_equal "lines of $* on stderr" "$(wc -l <stderr)" 1
  expect_equal "stdout of $*" "$(cat stdout)" ""
  grep -qF -- "${words}" stderr || fail "$*: stderr does not name '${words}'"
  expect_equal "runs of $*" "$(wc -l <tool_calls)" 0
}

# Programs that do nothing; zero_train notes how it is called.
mkdir -p tree/trainer/engines/cuda flat tools
for program in trainer/engines/cuda/kernels_gpu_test_gpu1 trainer/engines/cuda/layers_gpu_test_gpu1; do
  printf '#!/bin/bash\n' >"tree/${program}"
done
cat >tree/trainer/zero_train <<'END_OF_PROGRAM'
#!/bin/bash
[[ -z "${NO_GPU:-}" ]] || { echo "zero_train: no NVIDIA driver or no GPU was found" >&2; exit 2; }
END_OF_PROGRAM
chmod +x tree/trainer/zero_train tree/trainer/engines/cuda/*
cp tree/trainer/zero_train tree/trainer/engines/cuda/* flat/

# The tool: what it is asked to say of the call that SAY_FOR matches, and otherwise that all is well.
cat >tools/compute-sanitizer <<'END_OF_TOOL'
#!/bin/bash
echo "$*" >>"${TEST_TMPDIR}/tool_calls"
echo "========= COMPUTE-SANITIZER"
# A test that does not know how many GPUs it is for fails.
[[ "${SHARDPROOF_GPUS:-}" == 1 ]] || exit 1
if [[ -n "${SAY_FOR:-}" && "$*" =~ ${SAY_FOR} ]]; then
  printf '%b' "${SAY}"
  [[ -z "${HANG:-}" ]] || exec sleep 60
  exit "${EXIT}"
fi
case "$*" in
  *racecheck*) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
  *) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
END_OF_TOOL
chmod +x tools/compute-sanitizer
readonly path_without="${PATH}"

# Questions that cannot be asked.
SHARDPROOF_BIN=tree expect_refused "compute-sanitizer is not on PATH and not at ${CUDA_HOME}/bin/compute-sanitizer"
export PATH="${PWD}/tools:${path_without}"
SHARDPROOF_BIN=tree NO_GPU=1 expect_refused "does not run on this machine: zero_train: no NVIDIA driver or no GPU was found"
SHARDPROOF_BIN=nowhere expect_refused "SHARDPROOF_BIN"
SHARDPROOF_BIN=tools expect_refused "there is no trainer/zero_train and no zero_train in SHARDPROOF_BIN="
SHARDPROOF_BIN=tree expect_refused "unknown option '--tool=memcheck'" --tool=memcheck
SHARDPROOF_BIN=tree expect_refused "--tools has 'lintcheck'" --tools=memcheck,lintcheck
SHARDPROOF_BIN=tree expect_refused "--tools is empty" --tools=
SHARDPROOF_BIN=tree expect_refused "flags for Bazel" -- -c opt
SHARDPROOF_BIN=tree expect_refused "no case matches --cases=resnet" --cases=resnet
SHARDPROOF_BIN=tree SHARDPROOF_SANITIZER_SECONDS=soon expect_refused "SHARDPROOF_SANITIZER_SECONDS='soon'"

# All clean: six cases under four tools, wherever the programs lie.
for folder in tree flat; do
  SHARDPROOF_BIN="${folder}" sanitize
  expect_equal "status in ${folder}" "${status}" 0
  expect_equal "lines in ${folder}" "$(wc -l <stdout)" 25
  expect_equal "runs in ${folder}" "$(wc -l <tool_calls)" 24
  expect_equal "last line in ${folder}" "$(tail -n 1 stdout)" "sanitize_gpu: 24 of 24 runs clean"
  expect_equal "first line in ${folder}" "$(head -n 1 stdout)" "memcheck kernels_gpu_test: clean: ERROR SUMMARY: 0 errors"
done

# What is left out is what the script says, and no more.
expect_equal "filtered runs" "$(grep -c -- '--kernel-name kns=shardproof' tool_calls)" 6
expect_equal "filtered runs of other tools" "$(grep -- '--kernel-name' tool_calls | grep -vc -- '--tool racecheck' || true)" 0
expect_equal "runs without errors of the API" "$(grep -c -- '--report-api-errors no' tool_calls)" 8
expect_equal "such runs of the trainer" "$(grep -- '--report-api-errors' tool_calls | grep -c zero_train || true)" 0
expect_equal "runs with a status for findings" "$(grep -c -- '--error-exitcode 86' tool_calls)" 24
expect_equal "runs of the trainer" "$(grep -c -- 'zero_train --engine=cuda_shared --world_size=2 .*--clip_grad_norm' tool_calls)" 16

# A choice of tools and cases, and logs that stay.
SHARDPROOF_BIN=tree sanitize --tools=racecheck,memcheck --cases='mlp.*full_shard' --logs=kept
expect_equal "status of a choice" "${status}" 0
expect_equal "runs of a choice" "$(wc -l <tool_calls)" 2
expect_equal "logs of a choice" "$(ls kept | wc -l)" 2
grep -q COMPUTE-SANITIZER kept/racecheck-* || fail "a log is not the tool's"

# expect_found WORDS CASES: one of the runs is not clean, which is said with WORDS.
expect_found() {
  SHARDPROOF_BIN=tree sanitize
  expect_equal "status: $1" "${status}" 1
  grep -qF -- "$1" stdout || fail "no '$1'"
  expect_equal "last line: $1" "$(tail -n 1 stdout)" "sanitize_gpu: 23 of 24 runs clean"
}
export SAY_FOR='memcheck.*kernels_gpu_test' SAY='========= Invalid __global__ write\n========= ERROR SUMMARY: 3 errors\n' EXIT=86
expect_found "memcheck kernels_gpu_test: FOUND: ERROR SUMMARY: 3 errors"
grep -q "  ========= Invalid __global__ write" stdout || fail "the log of a finding is not shown"
SAY_FOR='racecheck.*probe.*zero2' SAY='========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n' \
  expect_found "racecheck zero_train probe:5x3,0,17,2x2 zero2: FOUND: RACECHECK SUMMARY: 2 hazards"
# Also if the tool thinks little of it, or its status is lost.
SAY_FOR='racecheck.*probe.*zero2' SAY='========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)\n' EXIT=0 expect_found "FOUND: RACECHECK SUMMARY: 1 hazard"
# Nothing was looked at, the program's own failure, and a run without an end.
SAY="cannot attach\n" EXIT=0 expect_found "memcheck kernels_gpu_test: no summary: none"
SAY='========= ERROR SUMMARY: 0 errors\n' EXIT=1 expect_found "memcheck kernels_gpu_test: the program failed with status 1"
SAY='' HANG=1 SHARDPROOF_SANITIZER_SECONDS=1 expect_found "memcheck kernels_gpu_test: not done in 1 s"
unset SAY_FOR SAY EXIT

# Built by Bazel, with the flags that it was given.
cat >bazel <<'END_OF_BAZEL'
#!/bin/bash
echo "$*" >>"${TEST_TMPDIR}/bazel_calls"
[[ "$1" != build ]] || exit "${BUILD_STATUS:-0}"
echo "${TEST_TMPDIR}/tree"
END_OF_BAZEL
chmod +x bazel
export SHARDPROOF_BAZEL="${PWD}/bazel"
sanitize --tools=memcheck -- -c opt
expect_equal "status after a build" "${status}" 0
expect_equal "commands of Bazel" "$(cat bazel_calls)" "build --config=gpu1 -c opt //trainer:zero_train //trainer/engines/cuda:kernels_gpu_test_gpu1 //trainer/engines/cuda:layers_gpu_test_gpu1
info --config=gpu1 -c opt bazel-bin"
BUILD_STATUS=1 expect_refused "the programs cannot be built"

((failures == 0)) && echo "all runs as expected"
exit "$((failures > 0))"
