#!/bin/sh
# The style that reviews need not look at: clang-format, clang-tidy (on what the compile database knows), luacheck, and the
# direction of Lua's `require` and of `#include`.
set -eu
cd "$(dirname "$0")/.."
files=$(git ls-files '*.cpp' '*.hpp')
# shellcheck disable=SC2086
clang-format --dry-run -Werror $files
luacheck -q scripts converters tests/lua tests/requires.lua tests/includes.lua tests/reference.lua
lua5.1 tests/requires.lua
lua5.1 tests/includes.lua
if [ "${1:-}" = "--tidy" ]; then
  # clang reads what the build generates, and says strange things without it.
  if [ ! -x build/release/cbk ]; then echo "lint: build first: bash bootstrap build" >&2; exit 2; fi
  mkdir -p build/tidy
  # GCC's precompiled headers are nothing that clang reads.
  sed -E 's/ -Winvalid-pch//; s/ -include [^ ]*cmake_pch\.hxx//' build/release/compile_commands.json >build/tidy/compile_commands.json
  git ls-files 'host/*.cpp' 'bindings/*.cpp' | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/tidy
fi
echo "clean"
