// Checkpoints as arguments, and the options of a call that opens one.
#pragma once

#include "bindings/runtime.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk::lua {

template <>
struct TypeName<const Checkpoint> {
  static constexpr const char* value = "Checkpoint";
};

/// From { allow_records = …, allow_external = …, salvage = … }, the argument at `index`.
OpenOptions check_reading(lua_State* L, int index);

}  // namespace cbk::lua
