#!/bin/bash
# ci/bazel on machines that this one is not: with everything installed, with nothing, without root, without apt. The machine is a directory of
# stubs that is all of PATH, and a root prefix for the headers.
set -euo pipefail

readonly launcher="${PWD}/ci/bazel"
failures=0

fail() {
  echo "FAILED: ${scenario}: $*"
  sed 's/^/  stdout: /' "${machine}/stdout"
  sed 's/^/  stderr: /' "${machine}/stderr"
  failures=$((failures + 1))
}

# Writes a command of the simulated machine.
stub() {
  printf '#!/bin/bash\n%s\n' "$2" >"${machine}/bin/$1"
  chmod +x "${machine}/bin/$1"
}

# A machine as Debian's base system is: the tools the script itself uses, apt-get, and a user who is root.
new_machine() {
  scenario=$1
  machine=$(mktemp -d "${TEST_TMPDIR}/machine.XXXXXX")
  mkdir -p "${machine}/bin" "${machine}/root"
  local tool
  for tool in bash cat dirname mktemp rm tail mkdir; do
    ln -s "$(command -v "${tool}")" "${machine}/bin/${tool}"
  done
  stub id 'echo 0'
  # It installs nothing unless told to: see with_working_apt.
  stub apt-get "echo \"\$@\" >>'${machine}/apt_calls'"
  : >"${machine}/stdout"
  : >"${machine}/stderr"
}

readonly headers="absl/status/statusor.h gtest/gtest.h gmock/gmock.h rapidcheck/gtest.h eigen3/Eigen/Core nlohmann/json.hpp benchmark/benchmark.h"

# The words after which everything ci/bazel looks for is there. Bazel says from where it was called and with what.
everything() {
  local header
  for header in ${headers}; do
    mkdir -p "${machine}/root/usr/include/${header%/*}"
    : >"${machine}/root/usr/include/${header}"
  done
  stub bazel "echo \"cwd=\${PWD}\"; printf 'argument=%s\\n' \"\$@\"; exit \${BAZEL_STATUS:-0}"
  stub g++ ':'
  stub pkg-config ':'
  mkdir -p "${machine}/root/usr/lib/some-architecture/openmpi/include"
  : >"${machine}/root/usr/lib/some-architecture/openmpi/include/mpi.h"
  stub mpirun ':'
}

# From here on `apt-get install` brings everything.
with_working_apt() {
  everything
  mv "${machine}/root/usr" "${machine}/later"
  mkdir "${machine}/later_bin"
  mv "${machine}/bin/bazel" "${machine}/bin/g++" "${machine}/bin/pkg-config" "${machine}/bin/mpirun" "${machine}/later_bin/"
  ln -s "$(command -v mv)" "${machine}/bin/mv"
  stub apt-get "
    echo \"\$@\" >>'${machine}/apt_calls'
    echo 'chatter of apt'
    case \" \$* \" in *' install '*) mv '${machine}/later' '${machine}/root/usr'; mv '${machine}/later_bin/'* '${machine}/bin/' ;; esac"
}

# Runs the launcher there and compares the exit status.
expect_status() {
  local expected=$1 actual=0
  shift
  MPI_HOME="${mpi_home:-}" PATH="${machine}/bin" SHARDPROOF_ROOT_PREFIX="${machine}/root" "${launcher}" "$@" \
    >"${machine}/stdout" 2>"${machine}/stderr" || actual=$?
  [[ "${actual}" == "${expected}" ]] || fail "exit status ${actual}, expected ${expected}"
}

expect_line() {
  grep -qF -- "$2" "${machine}/$1" || fail "$1 lacks '$2'"
}

expect_no_apt() {
  [[ ! -e "${machine}/apt_calls" ]] || fail "apt-get was called: $(cat "${machine}/apt_calls")"
}

readonly packages="bazel-bootstrap g++ pkg-config libabsl-dev libgtest-dev libgmock-dev librapidcheck-dev libeigen3-dev nlohmann-json3-dev libbenchmark-dev"
readonly optional="libopenmpi-dev openmpi-bin"

new_machine "all present"
everything
expect_status 0 test //... "--test_arg=two words"
expect_no_apt
expect_line stdout "argument=--test_arg=two words"
[[ ! -s "${machine}/stderr" ]] || fail "something on stderr"
BAZEL_STATUS=3 expect_status 3 test //...

new_machine "all present, elsewhere"
everything
for header in absl gtest; do
  mkdir -p "${machine}/root/usr/local/include"
  mv "${machine}/root/usr/include/${header}" "${machine}/root/usr/local/include/"
done
expect_status 0 version
expect_no_apt

new_machine "nothing present"
with_working_apt
expect_status 0 test //...
expect_line apt_calls "install -y --no-install-recommends ${packages} ${optional}"
expect_line stderr "installing ${packages} ${optional}"
[[ "$(wc -l <"${machine}/stderr")" == 1 ]] || fail "not one line on stderr"
[[ "$(head -n 1 "${machine}/stdout")" == cwd=* ]] || fail "stdout is not Bazel's alone"
rm "${machine}/apt_calls"
expect_status 0 test //...
expect_no_apt

new_machine "two headers missing"
everything
rm "${machine}/root/usr/include/gmock/gmock.h" "${machine}/root/usr/include/eigen3/Eigen/Core"
expect_status 2 test //...
[[ "$(tail -n 1 "${machine}/apt_calls")" == *" libgmock-dev libeigen3-dev" ]] || fail "other packages were installed: $(cat "${machine}/apt_calls")"
expect_line stderr "still not there: libgmock-dev libeigen3-dev"

new_machine "no OpenMPI"
everything
rm -r "${machine}/root/usr/lib"
rm "${machine}/bin/mpirun"
expect_status 0 test //...
expect_no_apt
expect_line stderr "without OpenMPI (libopenmpi-dev openmpi-bin): targets that need it are skipped"
[[ "$(wc -l <"${machine}/stderr")" == 1 ]] || fail "not one line on stderr"
mpi_home=/opt/openmpi expect_status 0 test //...
[[ ! -s "${machine}/stderr" ]] || fail "something on stderr, with MPI_HOME"

new_machine "OpenMPI is installed with what is needed"
everything
rm "${machine}/root/usr/include/gmock/gmock.h" "${machine}/bin/mpirun"
expect_status 2 test //...
[[ "$(tail -n 1 "${machine}/apt_calls")" == *"--no-install-recommends libgmock-dev openmpi-bin" ]] ||
  fail "other packages were installed: $(cat "${machine}/apt_calls")"

new_machine "no root"
everything
rm "${machine}/bin/bazel"
stub id 'echo 1000'
expect_status 2 test //...
expect_no_apt
expect_line stderr "apt-get install -y --no-install-recommends bazel-bootstrap'"
[[ "$(wc -l <"${machine}/stderr")" == 1 ]] || fail "not one line on stderr"

new_machine "no apt"
rm "${machine}/bin/apt-get"
expect_status 2 test //...
expect_line stderr "no apt-get"
expect_line stderr "${packages}"

new_machine "apt fails"
stub apt-get 'echo "E: no route to the mirror"; exit 100'
expect_status 2 test //...
expect_line stderr "E: no route to the mirror"
expect_line stderr "apt-get"
expect_line stderr "failed with status 100"
[[ ! -s "${machine}/stdout" ]] || fail "something on stdout"

# Bazel resolves the paths a user gives against the directory the user is in, so that directory is kept, except outside the workspace.
new_machine "working directory"
everything
mkdir -p "${machine}/repository/ci" "${machine}/repository/trainer/model"
cp "${launcher}" "${machine}/repository/ci/bazel"
ln -s "${machine}/repository" "${machine}/link"
real=$(cd "${machine}/repository" && pwd -P)
# Runs the copy of the launcher from a directory and compares the directory in which Bazel starts.
expect_directory() {
  (cd "$1" && PATH="${machine}/bin" SHARDPROOF_ROOT_PREFIX="${machine}/root" "$2" info >"${machine}/stdout" 2>"${machine}/stderr") || fail "exit status"
  [[ "$(head -n 1 "${machine}/stdout")" == "cwd=$3" ]] || fail "from $1: expected cwd=$3"
}
expect_directory "${real}/trainer/model" ../../ci/bazel "${real}/trainer/model"
expect_directory "${real}" ci/bazel "${real}"
expect_directory "${machine}" link/ci/bazel "${real}"
expect_directory "${machine}/link/trainer" ../ci/bazel "${machine}/link/trainer"

((failures == 0)) && echo "all machines as expected"
exit $((failures > 0))
