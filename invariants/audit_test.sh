#!/bin/bash
# The audit as people and scripts meet it: exit codes, and what is on stdout and stderr. Bad input is one line on stderr that names the value, an
# empty stdout, and exit code 2.
set -euo pipefail

readonly models="${PWD}/fixtures/models"
readonly program="${PWD}/invariants/audit"
readonly work="${TEST_TMPDIR}/audit"
source ci/rules/program_test.sh

expect_status() {
  [[ "${status}" == "$1" ]] || fail "exit code ${status}, not $1"
}

expect_in() {
  grep -qF -- "$2" "$1" || fail "no '$2' in $1"
}

# The file is one JSON object and nothing else.
expect_json() {
  [[ "$(head -c 1 "$1")" == "{" && "$(tail -n 1 "$1")" == "}" ]] || fail "$1 is not one JSON object"
  [[ "$(grep -c '"schema"' "$1")" == 1 ]] || fail "$1 has not one schema"
}

# Flags.
expect_bad_input "--model is missing"
expect_bad_input "zero4" --model=mlp:2x4 --modes=zero4
expect_bad_input "--colour" --model=mlp:2x4 --colour=red
expect_bad_input "--format=xml" --model=mlp:2x4 --format=xml
expect_bad_input "--world_size=0" --model=mlp:2x4 --world_size=0
expect_bad_input "--world_size=99999999999" --model=mlp:2x4 --world_size=99999999999
expect_bad_input "everything" --model=mlp:2x4 --require=everything
expect_bad_input "no such?engine" --model=mlp:2x4 --engine=$'no such\nengine'
expect_bad_input "nowhere/report.json" --model=mlp:2x4 --out=nowhere/report.json

# Models.
expect_bad_input "missing.json" --model=missing.json
expect_bad_input "resnet50" --model=resnet50
expect_bad_input "mlp:4" --model=mlp:4
expect_bad_input "probe:" --model=probe:
echo '{"model_type": "gpt2", "n_embd": 8' >truncated.json
expect_bad_input "truncated.json" --model=truncated.json
echo 'a llama' >text.json
expect_bad_input "text.json" --model=text.json
: >empty.json
expect_bad_input "empty.json" --model=empty.json
echo '{"model_type": "mamba"}' >mamba.json
expect_bad_input "mamba" --model=mamba.json
sed '/"hidden_size"/d' "${models}/llama-3.1-8b.config.json" >missing_field.json
expect_bad_input "hidden_size" --model=missing_field.json
sed 's/"hidden_size": *[0-9]*/"hidden_size": -8/' "${models}/llama-3.1-8b.config.json" >negative.json
expect_bad_input "hidden_size" --model=negative.json
printf '\x00\x10\x00\x00\x00\x00\x00\x00{"a":' >truncated.safetensors
expect_bad_input "truncated.safetensors" --model=truncated.safetensors
printf '\x02\x00\x00\x00\x00\x00\x00\x00{}' >no_parameters.safetensors
expect_bad_input "no_parameters.safetensors" --model=no_parameters.safetensors
mkdir -p folder.json
expect_bad_input "folder.json" --model=folder.json

# More memory than any machine that runs this has.
expect_bad_input "bytes" --model=probe:2000000x2000000 --engine=cpu

# A good run.
run_program --model=mlp:2x8 --world_size=2 --format=json
expect_status 0
expect_json stdout
[[ ! -s stderr ]] || fail "something on stderr"
[[ "$(grep -c '"verdict": "fail"' stdout || true)" == 0 ]] || fail "a check failed"

run_program --model=mlp:2x8 --world_size=2 --modes=zero2,full_shard/none
expect_status 0
expect_in stdout "full_shard/none"

# To a file: relative to the directory of the person who asked.
run_program --model=mlp:2x8 --modes=zero2 --format=json --out=report.json
expect_status 0
[[ ! -s stdout ]] || fail "something on stdout"
expect_json report.json
mkdir -p elsewhere
cp "${models}/gpt2.config.json" elsewhere/here.json
BUILD_WORKING_DIRECTORY="${work}/elsewhere" run_program --model=here.json --engine=accounting --modes=zero3 --format=json --out=there.json
expect_status 0
expect_json elsewhere/there.json
BUILD_WORKING_DIRECTORY="${work}/gone" expect_bad_input "gone" --model=mlp:2x4

# What is expected, before anything runs; out of JSON's way.
run_program --model=mlp:2x8 --modes=full_shard/none --explain
expect_status 0
expect_in stdout "expected step of full_shard/none"
run_program --model=mlp:2x8 --modes=full_shard/none --explain --format=json
expect_status 0
expect_json stdout
expect_in stderr "expected step of full_shard/none"

# Evidence that was asked for and is not there.
run_program --model=mlp:2x8 --modes=zero2 --engine=accounting
expect_status 0
run_program --model=mlp:2x8 --modes=zero2 --engine=accounting --require=numeric_equivalence
expect_status 1
expect_in stdout "not_observed"
run_program --model=mlp:2x8 --modes=zero2 --require=all
expect_status 0

# A run that the trainer declines: the reason, and exit code 2.
run_program "--run=model=mlp:2x8;mode=zero2;reduce_dtype=bfloat16"
expect_status 2
[[ "$(wc -l <stderr)" == 1 ]] || fail "not one line on stderr"
expect_in stderr "refused"

run_program --help
expect_status 0
expect_in stdout "--world_size=4"

echo "${failures} failures"
((failures == 0))
