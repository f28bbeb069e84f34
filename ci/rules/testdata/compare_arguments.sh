#!/bin/bash
# The program behind the arg_tests of this package: it compares its arguments with what the target says they should be.
#   --expected=FILE   the arguments after this one are the lines of FILE
#   --exactly=WORDS   the arguments before this one are WORDS, and none comes after it
#   --environment=NAME=VALUE   the variable has that value
set -euo pipefail

before=()
while (($# > 0)); do
  case "$1" in
    --expected=*)
      expected=$(cat "${1#--expected=}" && echo .)
      shift
      actual=$(printf '%s\n' "$@" && echo .)
      [[ "${actual}" == "${expected}" ]] && exit 0
      printf 'expected the arguments\n%s\nfound\n%s\n' "${expected}" "${actual}" >&2
      exit 7
      ;;
    --exactly=*)
      [[ "${before[*]}" == "${1#--exactly=}" && $# == 1 ]] && exit 0
      printf 'expected "%s", found "%s" and %d after it\n' "${1#--exactly=}" "${before[*]}" $(($# - 1)) >&2
      exit 7
      ;;
    --environment=*)
      entry=${1#--environment=}
      name=${entry%%=*}
      [[ "${!name-}" == "${entry#*=}" ]] && exit 0
      printf 'expected %s, found "%s"\n' "${entry}" "${!name-}" >&2
      exit 7
      ;;
    *)
      before+=("$1")
      shift
      ;;
  esac
done
echo "none of --expected=, --exactly= and --environment= was given" >&2
exit 7
