// The parts of Tensor in Lua: each file has the methods of one kind.
#pragma once

#include "bindings/runtime.hpp"

namespace cbk::lua {

/// The tensor that a method is called on.
const Tensor& self_tensor(lua_State* L);

/// Pushes a new tensor made from the one at position 1: an ndarray stays an ndarray, a parameter becomes a
/// tensor.
int push_result(lua_State* L, Tensor tensor);

/// The numbers of a list that is an option; none if it is absent.
std::vector<double> numbers_of(lua_State* L, const Options& options, const char* name);

// Lists that end with nullptr.
extern const luaL_Reg tensor_moves[];       // reshape, slice, …: elements in other places
extern const luaL_Reg tensor_arithmetic[];  // to, affine, …: other elements
extern const luaL_Reg tensor_operators[];   // metamethods
extern const luaL_Reg tensor_reading[];     // tolist, stats, …: what reads the elements

/// Registers what the reading methods need besides Tensor.
void register_reading(lua_State* L);

}  // namespace cbk::lua
