// Work that a script must finish: an output, or the edit of an H5 file. It is finished once it is committed,
// planned or closed. Until then it is not collected, so that the end of the script can report it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bindings/runtime.hpp"

namespace cbk::lua {

/// `problem`: what to report if the program ends before the value at `index` is finished.
void mark_unfinished(lua_State* L, int index, std::string_view problem);
void mark_finished(lua_State* L, int index);

/// The problems of all unfinished work, sorted.
std::vector<std::string> unfinished(lua_State* L);

}  // namespace cbk::lua
