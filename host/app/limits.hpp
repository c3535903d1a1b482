// `require "cbk.limits"`: limits on a program's time, memory and rights once it runs an untrusted converter.
// The limits also hold inside C functions, and no Lua code can prevent the end of the program.
#pragma once

#include <lua.hpp>

namespace cbk::app {

int open_limits_module(lua_State* L);

}  // namespace cbk::app
