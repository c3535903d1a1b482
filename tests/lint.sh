#!/bin/sh
# The style that reviews need not look at: clang-format, luacheck, shellcheck, pyflakes, the direction of Lua's `require` and of `#include`,
# and that errors are not told apart by their texts. lint.sh COMMIT: also clang-tidy, on sources that changed since then; lint.sh all: on
# all sources.
set -eu
cd "$(dirname "$0")/.."
files=$(git ls-files '*.cpp' '*.hpp')
# shellcheck disable=SC2086
clang-format --dry-run -Werror $files
luacheck -q scripts converters tests/lua tests/requires.lua tests/includes.lua tests/error_texts.lua tests/sources.lua tests/reference.lua
# shellcheck disable=SC2046  # lists of names
shellcheck -S warning $(git ls-files '*.sh') bootstrap .ci/run
# Models pass on what others have, and real_cases.py is read by a program that has its names.
# shellcheck disable=SC2046
pyflakes3 $(git ls-files '*.py' ':!tests/interop/models' ':!tests/interop/real_cases.py')
lua5.1 tests/requires.lua
lua5.1 tests/includes.lua
lua5.1 tests/error_texts.lua

most=12 # sources that clang-tidy reads, some 10 s each: of more, another sample each day
tidied() { # COMMIT|all
  if [ "$1" = all ]; then git ls-files 'host/*.cpp' 'bindings/*.cpp'; return; fi
  git diff --name-only --diff-filter=d "$1" -- 'host/*.cpp' 'bindings/*.cpp' | shuf -n "$most" --random-source="$day"
}

checks=7
day=$(mktemp)
trap 'rm -f "$day"' EXIT
yes "$(date +%j)" | head -c 65536 >"$day"
if [ -n "${1:-}" ]; then
  checks=8
  sources=$(tidied "$1")
  # Each file by itself, and without GCC's precompiled headers, which clang cannot read.
  if [ -n "$sources" ]; then
    cmake -S . -B build/tidy -G Ninja -DCBK_PCH=OFF >/dev/null
    cmake --build build/tidy --target cbk_bundle_messages -- --quiet
    printf '%s\n' "$sources" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/tidy
  fi
fi
echo "$checks passed, 0 failed"
