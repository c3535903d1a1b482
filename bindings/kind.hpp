// The names of the kinds of values in Lua.
#pragma once

#include <string_view>

#include "host/value/value.hpp"

namespace cbk::lua {

/// "dict", "ordereddict", "list", "tuple", "tensor", "int", "none", …
std::string_view kind_of(const Value& value);
/// "tensor", "parameter", "ndarray", "np_scalar".
std::string_view role_name(TensorLeaf::Role role);

}  // namespace cbk::lua
