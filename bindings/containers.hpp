// Helpers shared by Dict, List and the functions over trees.
#pragma once

#include "bindings/runtime.hpp"

namespace cbk::lua {

/// A Lua value as a key of a Dict: text, numbers, booleans, null, bytes or tuples.
Value key_at(lua_State* L, int index);
/// Fails (`usage`) for a value that cannot be a key of a dict, or an item of a set.
void check_key(const Value& key);

/// Notes a change. Fails (`usage`) for a container of an open checkpoint: the change would go into every
/// later use of it.
void edit(Edits& edits, std::string_view type);

/// The items of a List, of a Lua table with positions 1 to n, or none.
std::vector<Value> items_at(lua_State* L, int index);

}  // namespace cbk::lua
