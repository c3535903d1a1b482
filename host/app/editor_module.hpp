// `require "cbk.editor"`: terminal and signal functions for scripts/lib/cbk/repl/.
#pragma once

#include <lua.hpp>

namespace cbk::app {

int open_editor_module(lua_State* L);

}  // namespace cbk::app
