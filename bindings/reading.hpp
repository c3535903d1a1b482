// The options of a call that opens a checkpoint.
#pragma once

#include "bindings/runtime.hpp"
#include "host/checkpoint/checkpoint.hpp"

namespace cbk::lua {

/// From { allow_records = …, allow_external = … }, the argument at `index`.
OpenOptions check_reading(lua_State* L, int index);

}  // namespace cbk::lua
