// `require "cbk.limits"`: what a program may take of time and memory once it runs a converter that nobody
// trusts. The limits hold inside of C functions, too, and no Lua code can catch what ends the program.
#pragma once

#include <lua.hpp>

namespace cbk::app {

int open_limits_module(lua_State* L);

}  // namespace cbk::app
