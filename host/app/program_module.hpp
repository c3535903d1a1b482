// `require "cbk.program"`: what only the program itself can do; for the REPL and for commands about commands.
#pragma once

#include <lua.hpp>

namespace cbk::app {

/// Functions: clear_interrupt() after a Ctrl-C that has been dealt with; commands() → names; find_command(name) → path.
int open_program(lua_State* L);

}  // namespace cbk::app
