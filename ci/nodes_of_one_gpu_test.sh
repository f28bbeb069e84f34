#!/bin/bash
# What a program sees under nodes_of_one_gpu, and what becomes of the others when one rank fails.
set -uo pipefail
script="${TEST_SRCDIR}/${TEST_WORKSPACE}/ci/nodes_of_one_gpu"
cd "${TEST_TMPDIR}" || exit 2
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

"${script}" 3 bash -c 'echo "${RANK} ${WORLD_SIZE} ${LOCAL_RANK} ${LOCAL_WORLD_SIZE} ${NCCL_HOSTID} ${MASTER_PORT}"' >seen || fail "three ranks that succeed"
[[ "$(cut -d' ' -f1 seen | sort | tr '\n' ' ')" == "0 1 2 " ]] || fail "ranks are not 0, 1, 2"
[[ "$(cut -d' ' -f2-4 seen | sort -u)" == "3 0 1" ]] || fail "size, local rank or local size"
[[ "$(cut -d' ' -f5 seen | sort -u | wc -l)" == 3 ]] || fail "two ranks look like one host, which NCCL refuses"
[[ "$(cut -d' ' -f6 seen | sort -u | wc -l)" == 1 ]] || fail "ranks look for each other on several ports"

# One writer for each file of a test; Bazel has set the first two for this test too.
# shellcheck disable=SC2016  # the ranks expand it
show='echo "${RANK} ${XML_OUTPUT_FILE-none} ${TEST_PREMATURE_EXIT_FILE-none} ${GTEST_OUTPUT-none} ${GTEST_BRIEF-none}"'
(
  unset GTEST_BRIEF
  XML_OUTPUT_FILE=xml TEST_PREMATURE_EXIT_FILE=early GTEST_OUTPUT=xml:other "${script}" 3 bash -c "${show}"
) | sort >seen
[[ "$(<seen)" == $'0 xml early xml:other none\n1 none none none 1\n2 none none none 1' ]] || fail "files of a test: $(<seen)"

# The others would run for a minute: the test's own time is short.
"${script}" 3 bash -c '[[ "${RANK}" != 1 ]] || exit 5; exec sleep 60'
[[ $? == 5 ]] || fail "the status is not that of the rank that failed"

for arguments in "" "2" "0 true" "x true" "65 true"; do
  # shellcheck disable=SC2086  # words on purpose
  "${script}" ${arguments} 2>words
  [[ $? == 2 ]] || fail "'${arguments}' is accepted"
  [[ "$(wc -l <words)" == 1 ]] || fail "'${arguments}' gives not one line"
done
exit "$((failures > 0))"
