#!/bin/sh
# Runs the test suites with the given cbk, as many at once as there are cores, and adds up their counts: run.sh CBK [AREA...]
# An area is `host`, `lua`, or the name of a suite in interop/, such as `peft`. Each suite prints "N passed, M failed[, K skipped]" last.
set -u

summary='^([a-z]+: )?[0-9]+ passed, [0-9]+ failed'

# --- one suite

host_tests() { # CBK PART, such as 1/2
  report=$(mktemp) names=$(mktemp)
  "$(dirname "$1")/tests/cbk_host_tests" --list-test-names-only | awk -v n="${2#*/}" -v k="${2%/*}" 'NR % n == k - 1' |
    sed 's/[,[]/\\&/g' >"$names" # in a list of names these have a meaning
  "$(dirname "$1")/tests/cbk_host_tests" -w NoAssertions -r junit -o "$report" -f "$names"
  status=$?
  cases=$(grep -c '<testcase ' "$report")
  bad=$(grep -cE '<(failure|error) ' "$report")
  if [ "$bad" != 0 ]; then grep -A6 -E '<(failure|error) ' "$report" | head -n 60; fi
  rm -f "$report" "$names"
  echo "$((cases - bad)) passed, $bad failed"
  return $status
}

run_suite() { # CBK SUITE
  case $2 in
    "host "*) host_tests "$1" "${2#host }" ;;
    lua*) "$1" run "$top/lua/run.lua" --part "${2#lua }" ;;
    *) /usr/bin/python3 "$top/interop/$2_interop.py" --cbk "$1" ;;
  esac
}

count_in() { # WORD LINE
  printf '%s' "$2" | grep -oE "[0-9]+ $1" | cut -d' ' -f1
}

# Prints what a suite reports, and appends its counts to a file.
report() { # SUITE OUTPUT_FILE EXIT_STATUS COUNTS_FILE
  line=$(grep -E "$summary" "$2" | tail -n 1)
  printf '%-23s%s\n' "$1" "${line:-(no closing line, exit status $3)}"
  if [ "$3" != 0 ]; then
    grep -A2 -E '^ *FAIL' "$2" | head -n 60
    grep -vE '^(ok|PASS|warning: )' "$2" | tail -n 20
  fi
  grep -iE '^ *skipped' "$2"
  passed=$(count_in passed "$line") failed=$(count_in failed "$line") skipped=$(count_in skipped "$line")
  if [ -z "$line" ]; then failed=1; fi
  if [ "$3" != 0 ] && [ "$failed" = 0 ]; then
    echo "$1: exit status $3 although no test failed"
    failed=1
  fi
  echo "${passed:-0} $failed ${skipped:-0}" >>"$4"
}

if [ "$1" = --suite ]; then # CBK COUNTS_FILE SUITE
  top=$(dirname "$0")
  out=$(mktemp)
  start=$(date +%s)
  run_suite "$2" "$4" >"$out" 2>&1
  status=$?
  text=$(report "$4" "$out" "$status" "$3")
  printf '%s (%d s)\n' "$text" "$(($(date +%s) - start))" # in one piece: other suites print, too
  rm -f "$out"
  exit 0
fi

# --- all of them

cbk=$(realpath "$1")
shift
top=$(dirname "$0")
counts=$(mktemp)
trap 'rm -f "$counts"' EXIT
trap 'exit 130' INT TERM

# Those that take longest first, so that none is left over at the end.
slow='hostile training limits'
suites() {
  printf 'lua %s\n' 1/4 2/4 3/4 4/4
  # shellcheck disable=SC2086  # a list
  printf '%s\n' $slow 'host 1/2' 'host 2/2'
  for script in "$top"/interop/*_interop.py; do
    name=$(basename "$script" _interop.py)
    case " $slow " in *" $name "*) ;; *) echo "$name" ;; esac
  done
}

wanted() { # AREA...
  if [ $# = 0 ]; then suites; return; fi
  for area in "$@"; do
    found=$(suites | grep -E "^$area( |\$)") || { echo "run.sh: there is no area '$area'; areas are: $(suites | cut -d' ' -f1 | sort -u | tr '\n' ' ')" >&2; return 1; }
    printf '%s\n' "$found"
  done
}

list=$(wanted "$@") || exit 2
printf '%s\n' "$list" | xargs -P "$(nproc)" -I{} sh "$0" --suite "$cbk" "$counts" {}
passed=0 failed=0 skipped=0
while read -r p f k; do
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + k))
done <"$counts"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
