#!/bin/bash
# An arg_test fails when its binary fails, hands on what --test_arg appends, and starts from any directory. A target that is red on purpose
# would spoil every `bazel test //...`, so this script starts the launchers that Bazel would start.
set -euo pipefail

failures=0
readonly output="${TEST_TMPDIR}/output"

# Compares the exit status of a launcher with the expected one; what it printed is shown only if they differ.
expect_status() {
  local expected=$1 actual=0
  shift
  "$@" >"${output}" 2>&1 || actual=$?
  if [[ "${actual}" != "${expected}" ]]; then
    printf 'FAILED: %s gave %d, expected %d:\n' "$*" "${actual}" "${expected}"
    cat "${output}"
    failures=$((failures + 1))
  fi
}

# Here, in the runfiles of the workspace, is where Bazel starts a test.
readonly wrong=ci/rules/testdata/wrong_arguments
readonly right=ci/rules/testdata/padding_full_shard_backward_pre_w4
expect_status 7 "${wrong}"
expect_status 0 "${wrong}" "it's \"quoted\"" "\$HOME \`id\` \\ *" ""
expect_status 0 "${right}"
expect_status 7 "${right}" --one_more

# Elsewhere the launcher finds its files through the runfiles beside it, as in bazel-bin.
mkdir "${TEST_TMPDIR}/by_hand"
cp "${wrong}" "${right}" "${TEST_TMPDIR}/by_hand/"
for launcher in "${wrong##*/}" "${right##*/}"; do
  ln -s "${TEST_SRCDIR}" "${TEST_TMPDIR}/by_hand/${launcher}.runfiles"
done
cd "${TEST_TMPDIR}"
expect_status 7 by_hand/wrong_arguments
expect_status 0 by_hand/padding_full_shard_backward_pre_w4

exit $((failures > 0))
