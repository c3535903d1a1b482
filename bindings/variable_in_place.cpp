// Methods of Variable that write in place; each returns its tensor. And those of gradients.
#include "bindings/variable_methods.hpp"
#include "host/compute/tape.hpp"

namespace cbk::lua {
namespace {

using compute::ElementOp;
using compute::Input;

int itself(lua_State* L) {
  lua_settop(L, 1);
  return 1;
}

/// x + alpha·d, or x - alpha·d.
template <int sign>
int add(lua_State* L) {
  const auto x = check_variable(L, 1);
  const Input d = check_input(L, 2);
  if (auto alpha = input_option(L, 3, "alpha")) {
    compute::write_addcmul(x, d, *alpha, static_cast<double>(sign));
  } else {
    compute::write_binary(sign > 0 ? ElementOp::add : ElementOp::subtract, x, d);
  }
  return itself(L);
}

template <ElementOp op>
int binary_in_place(lua_State* L) {
  compute::write_binary(op, check_variable(L, 1), check_input(L, 2));
  return itself(L);
}

template <ElementOp op>
int unary_in_place(lua_State* L) {
  compute::write_unary(op, check_variable(L, 1));
  return itself(L);
}

int copy(lua_State* L) {
  compute::copy_into(check_variable(L, 1), check_input(L, 2));
  return itself(L);
}

int zero(lua_State* L) {
  compute::copy_into(check_variable(L, 1), 0.0);
  return itself(L);
}

using Combiner = void (*)(const compute::VariablePtr&, const Input&, const Input&, const Input&);

template <Combiner combiner>
int combine(lua_State* L) {
  const auto x = check_variable(L, 1);
  combiner(x, check_input(L, 2), check_input(L, 3), input_option(L, 4, "value").value_or(1.0));
  return itself(L);
}

int lerp(lua_State* L) {
  compute::write_lerp(check_variable(L, 1), check_input(L, 2), check_input(L, 3));
  return itself(L);
}

int clamp_in_place(lua_State* L) {
  const auto x = check_variable(L, 1);
  if (lua_isnoneornil(L, 2) && lua_isnoneornil(L, 3))
    fail(Errc::usage, "clamp_(min, max) needs at least one of the two bounds");
  const auto bound = [L](int index) {
    return lua_isnoneornil(L, index) ? std::nullopt : std::optional(check_input(L, index));
  };
  compute::write_clamp(x, bound(2), bound(3));
  return itself(L);
}

int requires_grad(lua_State* L) {
  const bool is_default = lua_isnoneornil(L, 2);
  if (!is_default && !lua_isboolean(L, 2)) fail_type(L, 2, "boolean");
  check_variable(L, 1)->set_requires_grad(is_default || lua_toboolean(L, 2) != 0);
  return itself(L);
}

int backward(lua_State* L) {
  const auto x = check_variable(L, 1);
  compute::run_backward(x, lua_isnoneornil(L, 2) ? nullptr : check_variable(L, 2));
  return 0;
}

}  // namespace

const luaL_Reg variable_in_place[] = {{"copy_", computed<copy, 2>},
                                      {"fill_", computed<copy, 2>},
                                      {"zero_", computed<zero, 1>},
                                      {"add_", computed<add<1>, 3>},
                                      {"sub_", computed<add<-1>, 3>},
                                      {"mul_", computed<binary_in_place<ElementOp::multiply>, 2>},
                                      {"div_", computed<binary_in_place<ElementOp::divide>, 2>},
                                      {"sqrt_", computed<unary_in_place<ElementOp::sqrt>, 1>},
                                      {"neg_", computed<unary_in_place<ElementOp::negate>, 1>},
                                      {"addcmul_", computed<combine<compute::write_addcmul>, 4>},
                                      {"addcdiv_", computed<combine<compute::write_addcdiv>, 4>},
                                      {"lerp_", computed<lerp, 3>},
                                      {"clamp_", computed<clamp_in_place, 3>},
                                      {nullptr, nullptr}};

const luaL_Reg variable_gradients[] = {
    {"requires_grad_", computed<requires_grad, 2>}, {"backward", computed<backward, 2>}, {nullptr, nullptr}};

}  // namespace cbk::lua
