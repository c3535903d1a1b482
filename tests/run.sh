#!/bin/sh
# Runs every test suite with the given cbk and adds up their counts. Each suite prints "N passed, M failed[, K skipped]" last.
set -u
cbk=$(realpath "$1")
top=$(dirname "$0")
passed=0 failed=0 skipped=0

count() { # NAME OUTPUT_FILE EXIT_STATUS
  line=$(grep -E '^([a-z]+: )?[0-9]+ passed, [0-9]+ failed' "$2" | tail -n 1)
  if [ -z "$line" ]; then
    echo "$1: no closing line (exit status $3)"
    failed=$((failed + 1))
    return
  fi
  p=$(printf '%s' "$line" | grep -oE '[0-9]+ passed' | cut -d' ' -f1)
  f=$(printf '%s' "$line" | grep -oE '[0-9]+ failed' | cut -d' ' -f1)
  k=$(printf '%s' "$line" | grep -oE '[0-9]+ skipped' | cut -d' ' -f1)
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${k:-0}))
  if [ "$3" != 0 ] && [ "$f" = 0 ]; then
    echo "$1: exit status $3 although no test failed"
    failed=$((failed + 1))
  fi
}

report() { # NAME OUTPUT_FILE EXIT_STATUS
  printf '%-23s' "$1"
  grep -E '^([a-z]+: )?[0-9]+ passed, [0-9]+ failed' "$2" | tail -n 1 | grep . || echo "(no closing line)"
  if [ "$3" != 0 ]; then
    grep -A2 -E '^ *FAIL' "$2" | head -n 60
    grep -vE '^(ok|PASS|warning: )' "$2" | tail -n 20
  fi
  grep -iE '^ *skipped' "$2"
  count "$1" "$2" "$3"
  rm -f "$2"
}

suite() { # NAME COMMAND...
  name=$1
  shift
  out=$(mktemp)
  "$@" >"$out" 2>&1
  report "$name" "$out" $?
}

host_tests() {
  report=$(mktemp)
  "$(dirname "$cbk")/tests/cbk_host_tests" -w NoAssertions -r junit -o "$report"
  status=$?
  cases=$(grep -c '<testcase ' "$report")
  bad=$(grep -cE '<(failure|error) ' "$report")
  if [ "$bad" != 0 ]; then grep -A6 -E '<(failure|error) ' "$report" | head -n 60; fi
  rm -f "$report"
  echo "$((cases - bad)) passed, $bad failed"
  return $status
}

suite host host_tests
# The tests in Lua take a third of the time and one core.
lua_output=$(mktemp)
"$cbk" run "$top/lua/run.lua" >"$lua_output" 2>&1 &
lua_tests=$!
trap 'kill "$lua_tests" 2>/dev/null' EXIT
trap 'exit 130' INT TERM
for script in "$top"/interop/*_interop.py; do
  suite "$(basename "$script" .py)" /usr/bin/python3 "$script" --cbk "$cbk"
done
wait "$lua_tests"
report lua "$lua_output" $?
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
