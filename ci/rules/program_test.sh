# Sourced by tests of whole programs, after they set:
#   program   the path of the program
#   work      a folder of the test's own; everything runs there
# `fail` counts; the test ends with `exit "$((failures > 0))"` or a check of its own.
# shellcheck shell=bash disable=SC2154

mkdir -p "${work}"
cd "${work}"
failures=0

fail() {
  echo "FAILED: ${scenario}: $*"
  sed 's/^/  stdout: /' stdout | head -n 60
  sed 's/^/  stderr: /' stderr | head -n 40
  failures=$((failures + 1))
}

# Runs the program with the arguments; status, stdout and stderr are there to be looked at.
run_program() {
  scenario="${program##*/} $*"
  status=0
  "${program}" "$@" >stdout 2>stderr || status=$?
}

# expect_bad_input TEXT ARGUMENTS: exit code 2, nothing on stdout, one line on stderr with TEXT.
expect_bad_input() {
  local text=$1
  shift
  run_program "$@"
  [[ "${status}" == 2 ]] || fail "exit code ${status}, not 2"
  [[ ! -s stdout ]] || fail "something on stdout"
  [[ "$(wc -l <stderr)" == 1 ]] || fail "not one line on stderr"
  grep -qF -- "${text}" stderr || fail "stderr does not name ${text}"
}
