// `require "cbk.editor"`: what scripts/lib/cbk/repl/ needs of the terminal and of signals.
#pragma once

#include <lua.hpp>

namespace cbk::app {

int open_editor_module(lua_State* L);

}  // namespace cbk::app
