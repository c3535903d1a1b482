// Elements between tensors and nested Lua lists.
#pragma once

#include "bindings/runtime.hpp"

namespace cbk::lua {

/// Pushes the elements as nested lists (a plain value for 0 dims).
void push_elements(lua_State* L, const Tensor& tensor);

/// Nested Lua lists, Lists or one number as a tensor of `dtype`; `shape`, when given, is the shape of a
/// flat list.
Tensor tensor_from(lua_State* L, int index, DType dtype, const std::optional<Shape>& shape);

/// A Lua table or a List of tensors.
std::vector<Tensor> check_tensors(lua_State* L, int index);

/// A Lua table of numbers.
std::vector<double> check_numbers(lua_State* L, int index);

/// One number as the exact bytes of one element.
Bytes element_bytes(lua_State* L, int index, DType dtype);

}  // namespace cbk::lua
