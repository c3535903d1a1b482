// Methods and operators of Tensor that compute: casts, sums, products. They read no data yet.
#include <algorithm>

#include "bindings/tensor_methods.hpp"
#include "host/tensor/unpack.hpp"

namespace cbk::lua {
namespace {

int to(lua_State* L) {
  return push_result(L, self_tensor(L).cast(check_dtype(L, 2)));
}

int bits(lua_State* L) {
  const Tensor& tensor = self_tensor(L);
  return push_result(L, lua_isnoneornil(L, 2) ? tensor.bits() : tensor.bits(check_dtype(L, 2)));
}

/// `t:unpack(bits, { dim =, places =, values = })`
int unpack(lua_State* L) {
  const Options options(L, 3, {"dim", "places", "values"});
  Packing packing;
  const int64_t bits = check_integer(L, 2);
  if (bits != 1 && bits != 2 && bits != 4) fail_argument(L, 2, "codes have 1, 2 or 4 bits");
  packing.bits = static_cast<int>(bits);
  const int codes = static_cast<int>(8 * size_of(self_tensor(L).dtype())) / packing.bits;
  if (options.has("places")) {
    options.push("places");
    for (const int64_t place : check_integers(L, lua_gettop(L)))
      packing.places.push_back(static_cast<int>(std::clamp<int64_t>(place, -1, codes)));
  } else {
    for (int i = 0; i < codes; ++i) packing.places.push_back(i);
  }
  for (const double value : numbers_of(L, options, "values"))
    packing.values.push_back(static_cast<float>(value));
  for (int i = 0; !options.has("values") && i < 1 << packing.bits; ++i)
    packing.values.push_back(static_cast<float>(i));
  const int64_t dim = options.integer("dim", INT32_MIN, INT32_MAX).value_or(-1);
  return push_result(L, unpacked(self_tensor(L), packing, dim));
}

int affine(lua_State* L) {
  const double term = lua_isnoneornil(L, 3) ? 0 : check_number(L, 3);
  return push_result(L, self_tensor(L).affine(check_number(L, 2), term));
}

int replace_nan(lua_State* L) {
  return push_result(L, self_tensor(L).replace_nan(check_number(L, 2)));
}

int require_finite(lua_State* L) {
  return push_result(L, self_tensor(L).require_finite(std::string(check_string(L, 2))));
}

int add(lua_State* L) {
  return push_result(L, self_tensor(L).add(check<const TensorLeaf>(L, 2)->tensor));
}

int matmul(lua_State* L) {
  return push_result(L, self_tensor(L).matmul(check<const TensorLeaf>(L, 2)->tensor));
}

// --- operators

/// The number on the other side of a tensor.
double operand(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TNUMBER && !is_int64(L, index) && !is_uint64(L, index)) {
    fail(Errc::usage, "a Tensor operator expects a number or another Tensor, not {}{}",
         lua_isnil(L, index) ? "" : "a ", type_name(L, index));
  }
  return check_number(L, index);
}

int operator_add(lua_State* L) {
  const auto a = test<const TensorLeaf>(L, 1);
  const auto b = test<const TensorLeaf>(L, 2);
  if (a && b) return push_result(L, a->tensor.add(b->tensor));
  return push_result(L, a ? a->tensor.affine(1, operand(L, 2)) : b->tensor.affine(1, operand(L, 1)));
}

int operator_sub(lua_State* L) {
  const auto a = test<const TensorLeaf>(L, 1);
  const auto b = test<const TensorLeaf>(L, 2);
  if (a && b) return push_result(L, a->tensor.add(b->tensor.affine(-1, 0)));
  return push_result(L, a ? a->tensor.affine(1, -operand(L, 2)) : b->tensor.affine(-1, operand(L, 1)));
}

int operator_mul(lua_State* L) {
  const auto a = test<const TensorLeaf>(L, 1);
  const auto b = test<const TensorLeaf>(L, 2);
  if (a && b) return push_result(L, a->tensor.multiply(b->tensor));
  return push_result(L, a ? a->tensor.affine(operand(L, 2), 0) : b->tensor.affine(operand(L, 1), 0));
}

int operator_div(lua_State* L) {
  const auto a = test<const TensorLeaf>(L, 1);
  if (!a || is<const TensorLeaf>(L, 2)) fail(Errc::usage, "a tensor can only be divided by a number");
  return push_result(L, a->tensor.affine(1 / operand(L, 2), 0));
}

int operator_neg(lua_State* L) {
  return push_result(L, self_tensor(L).affine(-1, 0));
}

}  // namespace

const luaL_Reg tensor_arithmetic[] = {{"to", guarded<to>},
                                      {"bits", guarded<bits>},
                                      {"unpack", guarded<unpack>},
                                      {"affine", guarded<affine>},
                                      {"replace_nan", guarded<replace_nan>},
                                      {"add", guarded<add>},
                                      {"matmul", guarded<matmul>},
                                      {"require_finite", guarded<require_finite>},
                                      {nullptr, nullptr}};

const luaL_Reg tensor_operators[] = {{"__add", guarded<operator_add>}, {"__sub", guarded<operator_sub>},
                                     {"__mul", guarded<operator_mul>}, {"__div", guarded<operator_div>},
                                     {"__unm", guarded<operator_neg>}, {nullptr, nullptr}};

}  // namespace cbk::lua
