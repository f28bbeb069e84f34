#!/bin/bash
# What the gate decides, how it reads Bazel's results, and what it says to bad input. Bazel itself is a stub here: a test that starts Bazel would
# wait for the Bazel that runs it.
set -euo pipefail

readonly ci="${PWD}/ci"
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

expect_equal() {
  [[ "$2" == "$3" ]] || fail "$1: expected '$3', found '$2'"
}

expect_match() {
  [[ "$2" =~ $3 ]] || fail "$1: '$2' does not match '$3'"
}

# Events as Bazel 4.2.3 writes them, one a line, less the fields nobody reads.
configured() { printf '{"id":{"targetConfigured":{"label":"%s"}},"configured":{"targetKind":"%s rule"%s}}\n' "$1" "$2" "${3:+,\"testSize\":\"$3\"}"; }
built() { printf '{"id":{"targetCompleted":{"label":"%s"}},"children":[],"completed":{"success":true}}\n' "$1"; }
not_built() { printf '{"id":{"targetCompleted":{"label":"%s"}},"children":[],"completed":{"failureDetail":{"message":"exit 1"}}}\n' "$1"; }
aborted() { printf '{"id":{"targetCompleted":{"label":"%s"}},"aborted":{"reason":"%s"}}\n' "$1" "$2"; }
summary() { printf '{"id":{"testSummary":{"label":"%s"}},"testSummary":{"overallStatus":"%s","totalRunDurationMillis":"%d"}}\n' "$@"; }
result() {
  printf '{"id":{"testResult":{"label":"%s","run":1}},"testResult":{"testActionOutput":[{"name":"test.log","uri":"file://%s/test.log"},' "$1" "$3"
  printf '{"name":"test.xml","uri":"file://%s/test.xml"}],"status":"%s"}}\n' "$3" "$2"
}

# ---- ci/affected: from changed files to a decision

mkdir -p "${TEST_TMPDIR}/tree/"{trainer/model,collectives/simulated,fixtures/tables,docs}
cd "${TEST_TMPDIR}/tree"
touch BUILD trainer/model/BUILD collectives/BUILD.bazel
echo 'filegroup(name = "tables", srcs = glob(["tables/*"]), data = ["README.md"])' >fixtures/BUILD
echo 'sh_test(name = "t", data = ["//docs:errors.md"])' >docs/BUILD

# The query of the cases below: it keeps what it was asked and answers with the file `answer`, or fails if there is none.
cat >../query <<'END'
#!/bin/bash
printf '%s' "$1" >"${TEST_TMPDIR}/asked"
exec cat "${TEST_TMPDIR}/answer"
END
chmod +x ../query
readonly answer="cc_test rule //trainer/model:mlp_test
cc_library rule //trainer/model:mlp"

# Sets `decision` and `reason` for changes given as `STATUS PATH` words, and `asked` to the labels of the query.
decide() {
  rm -f ../asked
  # shellcheck disable=SC2059 # The words become the lines of a change.
  output=$(printf '%s\t%s\n' "$@" | "${ci}/affected" ../query) || fail "$*: exit status $?"
  decision=${output%%$'\t'*}
  reason=${output#*$'\t'}
  asked=
  if [[ -e ../asked ]]; then
    asked=$(sed -n 's/.*set(\([^)]*\)).*/\1/p' ../asked)
  fi
}

expect_all() {
  decide "$@"
  expect_equal "decision for $*" "${decision}" all
  expect_equal "query for $*" "${asked}" ""
}

expect_none() {
  decide "$@"
  expect_equal "decision for $*" "${decision}" none
}

# The labels come first.
expect_asked() {
  local labels=$1
  shift
  decide "$@"
  expect_equal "labels for $*" "${asked}" "${labels}"
  expect_equal "decision for $*" "${output#*$'\n'}" "${answer}"
}

echo "${answer}" >../answer
expect_asked "//trainer/model:mlp.cc" M trainer/model/mlp.cc
expect_asked "//trainer/model:layers/relu.h" A trainer/model/layers/relu.h
expect_asked "//collectives:simulated/ring.cc" M collectives/simulated/ring.cc
expect_asked "//trainer/model:mlp.cc //fixtures:tables/study.txt" M trainer/model/mlp.cc M README.md M fixtures/tables/study.txt
expect_asked "//:.clang-format" M .clang-format
expect_asked "//trainer/model:*" M trainer/model/BUILD
expect_asked "//trainer/model:* //:*" A trainer/model/BUILD
expect_match "the query" "$(cat ../asked)" 'rdeps\(//\.\.\., .*except attr\(tags, "\\bmanual'

for path in WORKSPACE WORKSPACE.bzlmod MODULE.bazel MODULE.bazel.lock .bazelrc .bazelversion BUILD trainer/rules.bzl ci/gate ci/rules/testdata/x .ci/run; do
  expect_all M "${path}"
done
expect_all D trainer/model/mlp.cc
expect_all T trainer/model/mlp.cc
expect_all M trainer/model/mlp.cc R100 trainer/model/old.cc
expect_all M "trainer/model/a b.cc"
expect_all M "\"trainer/model/\\303\\244.cc\""
expect_all "" ""

# Documents, unless a BUILD file names them.
expect_none M README.md
expect_none M README.md A trainer/notes.md D docs/old.md M LICENSE
expect_match "reason" "${reason}" "only documents changed \(4\)"
expect_asked "//fixtures:README.md" M fixtures/README.md
expect_asked "//docs:errors.md" M docs/errors.md
expect_none M trainer/model/README.md
output=$("${ci}/affected" ../query </dev/null)
expect_equal "decision for no change" "${output}" $'none\tno file changed'

# What the query may do.
: >../answer
expect_none M trainer/model/mlp.cc
expect_match "reason" "${reason}" "no target depends"
echo "Loading: 3 packages loaded" >../answer
decide M trainer/model/mlp.cc
expect_equal "decision after chatter" "${decision}" all
rm ../answer
decide M trainer/model/mlp.cc 2>/dev/null
expect_equal "decision after a failed query" "${output}" $'all\tthe query for what depends on the change failed'

rm BUILD
expect_all M .clang-format
touch BUILD

status=0
"${ci}/affected" </dev/null 2>../stderr || status=$?
expect_equal "ci/affected without a query" "${status} $(wc -l <../stderr)" "2 1"

# ---- ci/test_results: from Bazel's events to statuses

{
  configured //a:lib cc_library
  configured //a:broken cc_binary
  for test in pass fail timeout no_build skipped flaky never; do
    configured "//a:${test}_test" cc_test SMALL
  done
  built //a:lib
  not_built //a:broken
  not_built //a:no_build_test
  aborted //a:skipped_test SKIPPED
  aborted //a:skipped_library SKIPPED
  aborted //a:never_test ANALYSIS_FAILURE
  for test in pass fail timeout flaky; do
    built "//a:${test}_test"
  done
  result //a:pass_test PASSED /x
  summary //a:pass_test PASSED 1250
  summary //a:fail_test FAILED 90
  summary //a:timeout_test TIMEOUT 60000
  summary //a:flaky_test FLAKY 0
} >../events
expect_equal "results" "$("${ci}/test_results" ../events | tr '\t' ' ')" "failed TO_BUILD 0.0 //a:broken
failed 0.1 //a:fail_test
failed NOT_RUN 0.0 //a:never_test
failed TO_BUILD 0.0 //a:no_build_test
failed TIMEOUT 60.0 //a:timeout_test
passed FLAKY 0.0 //a:flaky_test
passed 1.2 //a:pass_test
skipped 0.0 //a:skipped_test"
: >../events
expect_equal "results of nothing" "$("${ci}/test_results" ../events)" ""
status=0
"${ci}/test_results" ../no_such_file 2>../stderr || status=$?
expect_equal "results of no file" "${status} $(wc -l <../stderr)" "2 1"

# ---- ci/gate: from two revisions to a verdict

if ! command -v git >/dev/null; then
  echo "git is not installed: what needs a repository was not tested"
  exit $((failures > 0))
fi

mkdir -p "${TEST_TMPDIR}/repository/"{ci,trainer}
cd "${TEST_TMPDIR}/repository"
cp "${ci}/gate" "${ci}/affected" "${ci}/test_results" ci/
touch BUILD trainer/BUILD
echo 'bytes' >trainer/plan.cc
echo 'words' >README.md
export HOME="${TEST_TMPDIR}" GIT_CONFIG_NOSYSTEM=1
git init -q .
commit() { git add -A && git -c user.name=a -c user.email=a@example.com commit -q -m "$1"; }
commit base
git tag base

# In place of Bazel: it answers queries, notes commands, and hands out the events, and the status, that a case has laid down.
cat >../bazel <<'END'
#!/bin/bash
if [[ "$1" == query ]]; then
  echo "Loading" >&2
  cat "${TEST_TMPDIR}/rules"
  exit
fi
printf '%s\n' "$*" >>"${TEST_TMPDIR}/commands"
echo "chatter of bazel"
for word; do
  case "${word}" in
    --build_event_json_file=*) cat "${TEST_TMPDIR}/events" >"${word#*=}" ;;
  esac
done
exit "$(cat "${TEST_TMPDIR}/status")"
END
chmod +x ../bazel
readonly rules="cc_library rule //trainer:plan
cc_test rule //trainer:plan_test
test_suite rule //trainer:all_tests"

# Runs the gate with its stub; sets `stdout`, `commands` and the status in `gate_status`.
gate() {
  rm -f ../commands
  gate_status=0
  SHARDPROOF_BAZEL="${TEST_TMPDIR}/bazel" GITHUB_STEP_SUMMARY="${TEST_TMPDIR}/step_summary" \
    ci/gate "$@" >../stdout 2>../stderr || gate_status=$?
  stdout=$(cat ../stdout)
  commands=$(cat ../commands 2>/dev/null || true)
}

expect_refused() {
  local words=$1
  shift
  gate "$@"
  expect_equal "status of gate $*" "${gate_status}" 2
  expect_equal "lines of gate $* on stderr" "$(wc -l <../stderr)" 1
  expect_match "gate $*" "$(cat ../stderr)" "${words}"
  expect_equal "commands of gate $*" "${commands}" ""
}

expect_refused "expected BASE and HEAD, got 0"
expect_refused "expected BASE and HEAD, got 1" base
expect_refused "expected BASE and HEAD, got 3" base HEAD HEAD
expect_refused "unknown revision 'no_such'" no_such HEAD
expect_refused "unknown revision 'no_such'" base no_such
expect_refused "unknown option '--sed=1'" base HEAD --sed=1
expect_refused "seed=x: expected a whole number" base HEAD --seed=x
expect_refused "seed=0: expected a whole number" base HEAD --seed=0
expect_refused "out needs a directory" base HEAD --out

# Nothing to do.
gate base HEAD --out ../out
expect_equal "no change" "${gate_status} ${stdout%%(*}" "0 gate: none: no file changed
gate: nothing to run "
echo 'more words' >>README.md
expect_refused "differs from 'HEAD' in 1 tracked files" base HEAD
commit "a document"
gate base HEAD --out ../out
expect_equal "a document" "${gate_status} ${stdout%%(*}" "0 gate: none: only documents changed "
expect_equal "commands for a document" "${commands}" ""
expect_match "summary" "$(cat ../out/summary.md)" "Gate: nothing to run"

# A change that two of the three rules depend on, passing.
echo 'more bytes' >>trainer/plan.cc
commit "a plan"
git branch later
expect_refused "is checked out" base base
# The suite is asked for by no one, but its presence must not bring //trainer:other_test.
printf '%s\n' "${rules}" >../rules
echo 0 >../status
logs="${TEST_TMPDIR}/execroot/k8-fastbuild/testlogs/trainer/plan%2Btest"
mkdir -p "${logs/\%2B/+}"
echo '<testsuites/>' >"${logs/\%2B/+}/test.xml"
{
  configured //trainer:plan_test cc_test SMALL
  result //trainer:plan_test PASSED "${logs}"
  summary //trainer:plan_test PASSED 10
} >../events
RC_PARAMS=max_success=20 gate base HEAD --out ../out --seed=7 -- --config=asan
expect_equal "passing" "${gate_status} ${stdout%(*}" "0 gate: some: 3 targets depend on what changed (1 files)
gate: passed: 1 passed, 0 failed; seed 7 "
expect_equal "reports" "$(ls ../out/junit)" "trainer__plan+test.xml"
expect_match "seed" "${commands}" "--test_env=RC_PARAMS=max_success=20 seed=7"
expect_match "flags" "${commands}" "--config=asan -- //\.\.\."
expect_match "step summary" "$(cat ../step_summary)" "Gate: passed"

# The same, failing: replay lines of failing tests only, each once, and stale reports are gone.
printf 'replay: ci/bazel run //trainer:plan -- --seed=3\nsomething replay: no\nreplay: ci/bazel run //trainer:plan -- --seed=3\n' >"${logs/\%2B/+}/test.log"
sed -i -e 's/PASSED/FAILED/' ../events
echo 3 >../status
echo stale >../out/junit/stale.xml
gate base HEAD --out ../out
expect_equal "failing" "${gate_status} ${stdout%(*}" "1 gate: some: 3 targets depend on what changed (1 files)
replay: ci/bazel run //trainer:plan -- --seed=3
gate: failed: 0 passed, 1 failed; seed 1 "
expect_equal "reports" "$(ls ../out/junit)" "trainer__plan+test.xml"
expect_match "summary" "$(cat ../out/summary.md)" "replay: ci/bazel run"

# Where no test could be run, nothing has passed. One that could is enough: others may need what this machine has not.
{
  configured //trainer:plan_test cc_test SMALL
  aborted //trainer:plan_test SKIPPED
  configured //trainer:other_test cc_test SMALL
  aborted //trainer:other_test SKIPPED
} >../events
echo 0 >../status
for everything in "--all" "-- --config=gpu2"; do
  # shellcheck disable=SC2086  # words on purpose
  gate base HEAD --out ../out ${everything}
  expect_equal "all skipped" "${gate_status} $(tail -n 1 ../stdout | sed 's/ (.*//')" \
    "1 gate: failed: 0 passed, 0 failed, 2 skipped; all were skipped: this machine lacks what they need; seed 1"
done
expect_match "summary" "$(cat ../out/summary.md)" "Gate: failed.*all were skipped"
# A change that only tests of another machine depend on does not close this one's gate.
gate base HEAD --out ../out
expect_equal "all that a change affects skipped" "${gate_status} $(tail -n 1 ../stdout | sed 's/ (.*//')" "0 gate: passed: 0 passed, 0 failed, 2 skipped; seed 1"
{
  configured //trainer:third_test cc_test SMALL
  summary //trainer:third_test PASSED 10
} >>../events
gate base HEAD --out ../out
expect_equal "one not skipped" "${gate_status} $(tail -n 1 ../stdout | sed 's/ (.*//')" "0 gate: passed: 1 passed, 0 failed, 2 skipped; seed 1"

# A build that ends early although no test failed is a failure, and a command Bazel refuses is bad input.
: >../events
echo 1 >../status
gate base HEAD --out ../out
expect_equal "ended early" "${gate_status}" 1
expect_match "ended early" "${stdout}" "Bazel ended with status 1"
# No test is left by the tag filter: so be it for a selection, but not for everything.
echo 4 >../status
gate base HEAD --out ../out
expect_equal "no test fits" "${gate_status} ${stdout%(*}" "0 gate: some: 3 targets depend on what changed (1 files)
gate: passed: 0 passed, 0 failed; no affected test is one that this configuration runs; seed 1 "
gate base HEAD --out ../out --all
expect_equal "no test at all" "${gate_status}" 1
echo 2 >../status
gate base HEAD --out ../out -- --no_such_flag
expect_equal "refused by Bazel" "${gate_status}" 2

# What is run: the programs apart from the tests, //... less what is not affected, and never less a suite where tests run.
echo 0 >../status
cat >../bazel_rules <<'END'
#!/bin/bash
case "$*" in
  *rdeps*) printf 'cc_library rule //trainer:plan\ncc_test rule //trainer:plan_test\ntest_suite rule //trainer:s\n' ;;
  query*) printf 'cc_library rule //trainer:plan\ncc_test rule //trainer:plan_test\ncc_test rule //trainer:b_test\ncc_binary rule //trainer:b\ntest_suite rule //trainer:s\n' ;;
  *) exec "${TEST_TMPDIR}/bazel" "$@" ;;
esac
END
chmod +x ../bazel_rules
rm -f ../commands
SHARDPROOF_BAZEL="${TEST_TMPDIR}/bazel_rules" ci/gate base HEAD --out ../out >../stdout 2>../stderr || fail "gate: status $?"
expect_equal "patterns" "$(sed 's/ .* -- / /' ../commands)" "build //... -//trainer:b -//trainer:b_test -//trainer:plan_test -//trainer:s
test //... -//trainer:b_test"
expect_match "test command" "$(tail -n 1 ../commands)" "--build_tests_only"

# Doubt runs everything.
gate base HEAD --out ../out --all --seed=fresh
expect_match "--all" "${stdout}" "^gate: all: asked for"
expect_match "--all" "${commands}" "-- //\.\.\.$"
expect_match "fresh seed" "${stdout}" "seed [1-9][0-9]* "
git checkout -q --orphan unrelated
commit "no ancestor"
gate base HEAD --out ../out
expect_match "no common ancestor" "${stdout}" "^gate: all: .*no common ancestor"
git checkout -q later
rm ../rules
gate base HEAD --out ../out
expect_match "a failed query" "${stdout}" "^gate: all: the query for what depends"
# The change is counted from the common ancestor: what only the base has is not this change's.
printf '%s\n' "${rules}" >../rules
git checkout -q -b other base
echo 'other words' >>WORKSPACE
commit "on the base's side"
git checkout -q later
gate other HEAD --out ../out
expect_match "the base moved on" "${stdout}" "^gate: some:"

((failures == 0)) && echo "all decisions as expected"
exit $((failures > 0))
