// Shared by the files of the type Variable, the tensors of `cstorch` scripts.
#pragma once

#include "bindings/runtime.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/variable.hpp"

namespace cbk::lua {

template <>
struct TypeName<compute::Variable> {
  static constexpr const char* value = "cstorch.Tensor";
};

/// The kind of an error in PyTorch's sense: "value", "type" or "runtime".
std::string_view kind_of(Errc code);

/// Pushes the error table of cstorch: with `kind`, its names, and a place in the script.
void push_computed_failure(lua_State* L, Failure failure, std::string_view kind);

inline constexpr int any_number = LUAI_MAXCSTACK;

/// Fails for an argument beyond the first `most` and names an option: no argument is ignored.
void refuse_more(lua_State* L, int most);

/// Like `guarded`; the error table has the field `kind` that cstorch promises. `most`: arguments, including
/// the tensor of a method.
template <int (*Body)(lua_State*), int most = any_number>
int computed(lua_State* L) {
  {
    std::optional<Failure> failure;
    std::string_view kind = "runtime";
    try {
      refuse_more(L, most);
      return Body(L);
    } catch (const Error& error) {
      failure = current_failure();
      kind = kind_of(error.code());
    } catch (const std::exception&) {
      failure = current_failure();
    }
    push_computed_failure(L, std::move(*failure), kind);
  }
  return lua_error(L);
}

compute::VariablePtr check_variable(lua_State* L, int index);
/// A variable or a number.
compute::Input check_input(lua_State* L, int index);
/// An option that is a number or a 0-dim tensor.
std::optional<compute::Input> input_option(lua_State* L, int index, const char* name);
/// Pushes it, and collects garbage if variables hold much more memory than after the last collection, because
/// Lua does not count it.
int push_variable(lua_State* L, const compute::VariablePtr& variable);
/// A dim, a list of dims, or nothing.
compute::Dims opt_dims(lua_State* L, int index);
/// `keepdim` of an options table.
bool keepdim(lua_State* L, int index);

extern const luaL_Reg variable_math[];   // element-wise, reductions, products
extern const luaL_Reg variable_moves[];  // shapes and views
extern const luaL_Reg variable_in_place[];
extern const luaL_Reg variable_gradients[];
extern const luaL_Reg variable_operators[];  // + - * / ^ and comparisons

}  // namespace cbk::lua
