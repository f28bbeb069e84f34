#!/bin/bash
# mpirun.sh [--mpirun=PATH] RANKS PROGRAM [ARGUMENT...]: the program as RANKS processes of this machine under OpenMPI's mpirun, in a test.
#
# As root or not, with fewer processors than ranks, without a network, in a sandbox, and quietly. It ends before Bazel ends the test, so that
# what the ranks have said is in the log. Rank 0 alone writes GoogleTest's XML; the others print their failures only.
#
# Environment:
#   MPIRUN        mpirun's path, where --mpirun does not say it (default: mpirun)
#   TEST_TIMEOUT  Bazel's, in seconds (default: 300)
#
# Exit status: mpirun's, which is not 0 if a rank's is not (137 for one that was killed); 124 when time is up.
set -euo pipefail

# mpirun starts this script for every rank.
if [[ "${1:-}" == --rank ]]; then
  shift
  if [[ "${OMPI_COMM_WORLD_RANK}" != 0 ]]; then
    unset XML_OUTPUT_FILE GTEST_OUTPUT TEST_PREMATURE_EXIT_FILE
    export GTEST_BRIEF=1
  fi
  exec "$@"
fi

mpirun="${MPIRUN:-mpirun}"
if [[ "${1:-}" == --mpirun=* ]]; then
  mpirun="${1#--mpirun=}"
  shift
fi
if (($# < 2)); then
  echo "usage: mpirun.sh [--mpirun=PATH] RANKS PROGRAM [ARGUMENT...]" >&2
  exit 2
fi
readonly ranks=$1
shift

# OpenMPI's files lie in TMPDIR, below long names of its own, so Bazel's long path is not the place.
session=$(env -u TMPDIR mktemp -d)
trap 'rm -rf "${session}"' EXIT
export TMPDIR="${session}"

# mpirun gives ranks a terminal, which the log is not.
export GTEST_COLOR="${GTEST_COLOR:-no}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
options=(
  -np "${ranks}" --oversubscribe --bind-to none
  # Shared memory between ranks, the loopback interface for mpirun's own words; no search for fabrics, and no copies from process to process, which
  # containers forbid.
  --mca pml ob1 --mca btl "self,vader" --mca btl_vader_single_copy_mechanism none --mca oob_tcp_if_include lo
  # A rank that waits inside MPI gives its processor to one that works.
  --mca mpi_yield_when_idle 1
)
readonly seconds="${TEST_TIMEOUT:-300}"
readonly limit=$((seconds > 20 ? seconds - 10 : (seconds + 1) / 2))
# In the foreground, so that a signal to this script's group reaches mpirun too.
status=0
timeout --foreground --kill-after=5 "${limit}" "${mpirun}" "${options[@]}" "${BASH_SOURCE[0]}" --rank "$@" </dev/null || status=$?
exit "${status}"
