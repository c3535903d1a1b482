// Iterators over the leaves of a tree, for checkpoints and for any Dict.
#pragma once

#include "bindings/runtime.hpp"
#include "host/value/walk.hpp"

namespace cbk::lua {

/// Pushes an iterator: dotted path, value.
void push_leaves(lua_State* L, const Value& root, std::string_view pattern, bool only_tensors);

}  // namespace cbk::lua
