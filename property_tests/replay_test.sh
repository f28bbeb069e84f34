#!/bin/bash
# The replay program as people meet it: a case from its line and from its file, and bad input as one line on stderr and exit code 2.
set -euo pipefail

readonly program="${PWD}/property_tests/replay"
readonly counterexamples="${PWD}/fixtures/counterexamples"
readonly work="${TEST_TMPDIR}/replay"
source ci/rules/program_test.sh

expect_status() {
  [[ "${status}" == "$1" ]] || fail "exit code ${status}, not $1"
  [[ ! -s stderr ]] || fail "something on stderr"
}

expect_in() {
  grep -qF -- "$2" "$1" || fail "no '$2' in $1"
}

# From a line, on all engines and on one.
run_program --run='model=probe:3,2x2;world_size=2;mode=zero2'
expect_status 0
expect_in stdout "zero2 on 2 ranks, engine cpu: pass"
expect_in stdout "zero2 on 2 ranks, engine provenance: pass"
expect_in stdout "zero2 on 2 ranks, engine accounting: pass"
run_program --run='model=mlp:3,2' --engine=accounting
expect_status 0
[[ "$(wc -l <stdout)" == 1 ]] || fail "more than one engine"

# From files, relative to the directory of the person who asked.
BUILD_WORKING_DIRECTORY="${counterexamples}" run_program --file=tied_uneven.json
expect_status 0
expect_in stdout "found by: "
expect_in stdout "engine cpu: pass"

# A JSON run on the command line, as replay lines have it where a model has no text.
run_program --engine=cpu --run='{"schema": "shardproof.run/1", "model": "mlp:2,3", "world_size": 3}'
expect_status 0

# What the trainer declines is told; if no engine can judge, that is bad input.
run_program --run='model=mlp:3,2;parameter_dtype=bfloat16' --engine=cpu
[[ "${status}" == 2 ]] || fail "exit code ${status}, not 2"
expect_in stderr "bfloat16"

# Flags.
expect_bad_input "--file and --run are both missing"
expect_bad_input "--file and --run are both missing, or both given" --file=a.json --run=model=mlp:2,3
expect_bad_input "engine 'gpu' is unknown" --run='model=mlp:2,3' --engine=gpu
expect_bad_input "--run: model is missing" --run='mode=zero2'
expect_bad_input "--colour" --colour=red

# Without a GPU, or in a build without CUDA.
CUDA_VISIBLE_DEVICES="" expect_bad_input "GPU" --run='model=mlp:2,3' --engine=cuda_shared
CUDA_VISIBLE_DEVICES="" expect_bad_input "GPU" --run='model=mlp:2,3' --engine=cuda

# What was found on a GPU runs there again, unless engines are asked for that need none.
sed 's,"engine": "[a-z]*","engine": "cuda_shared",' "${counterexamples}/tied_uneven.json" >gpu.json
CUDA_VISIBLE_DEVICES="" expect_bad_input "GPU" --file=gpu.json
run_program --file=gpu.json --engine=cpu
expect_status 0
expect_in stdout "engine cpu: pass"

# Files.
expect_bad_input "missing.json: no such file" --file=missing.json
mkdir -p folder
expect_bad_input "folder: is no regular file" --file=folder
: >empty.json
expect_bad_input "empty.json: not JSON" --file=empty.json
head -c 300 "${counterexamples}/tied_uneven.json" >short.json
expect_bad_input "short.json: not JSON" --file=short.json
sed 's,shardproof.replay/1,shardproof.replay/9,' "${counterexamples}/tied_uneven.json" >version.json
expect_bad_input "version.json: schema=\"shardproof.replay/9\" is refused; accepted: \"shardproof.replay/1\"" --file=version.json
sed 's,"found_by","finder",' "${counterexamples}/tied_uneven.json" >key.json
expect_bad_input "key.json: the key 'finder' is unknown; accepted: schema, engine, found_by, run" --file=key.json
head -c 3000 "${program}" >binary.json
expect_bad_input "binary.json: not JSON" --file=binary.json

run_program --help
expect_status 0
expect_in stdout "--file"

echo "${failures} failures"
((failures == 0))
