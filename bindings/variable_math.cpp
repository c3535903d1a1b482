// Methods and operators of Variable that compute new ones.
#include "bindings/variable_methods.hpp"

namespace cbk::lua {
namespace {

/// Both operands are tensors: a step that is not in place may look like this.
template <ElementOp op>
void note_rebound(const Input& x, const Input& y) {
  if constexpr (op == ElementOp::add || op == ElementOp::subtract) {
    const auto* given = std::get_if<compute::VariablePtr>(&x);
    if (given != nullptr && std::holds_alternative<compute::VariablePtr>(y)) (*given)->note_rebound();
  }
}

using compute::ElementOp;
using compute::Input;

template <ElementOp op>
int unary(lua_State* L) {
  return push_variable(L, compute::unary(op, check_variable(L, 1)));
}

template <ElementOp op>
int binary(lua_State* L) {
  check_variable(L, 1);
  const Input x = check_input(L, 1), y = check_input(L, 2);
  note_rebound<op>(x, y);
  return push_variable(L, compute::binary(op, x, y));
}

template <ElementOp op>
int element_method(lua_State* L) {
  if constexpr (compute::traits_of(op).operands == 1) {
    return unary<op>(L);
  } else {
    return binary<op>(L);
  }
}

/// x + alpha·d, or x - alpha·d.
template <int sign>
int add_scaled(lua_State* L) {
  const auto x = check_variable(L, 1);
  Input d = check_input(L, 2);
  if (const auto alpha = input_option(L, 3, "alpha")) {
    const double* factor = std::get_if<double>(&d);
    const double* other = std::get_if<double>(&*alpha);
    d = factor && other ? Input(*factor * *other) : compute::binary(ElementOp::multiply, d, *alpha);
  }
  note_rebound<ElementOp::add>(x, d);
  return push_variable(L, compute::binary(sign > 0 ? ElementOp::add : ElementOp::subtract, x, d));
}

/// An operator's tensor operand may be on either side.
template <ElementOp op>
int operate(lua_State* L) {
  const Input x = check_input(L, 1), y = check_input(L, 2);
  note_rebound<op>(x, y);
  return push_variable(L, compute::binary(op, x, y));
}

int refuse_less(lua_State*) {
  fail(Errc::refused, "tensors are compared with a:lt(b), which gives a tensor; < gives one truth value");
}
int refuse_less_equal(lua_State*) {
  fail(Errc::refused, "tensors are compared with a:le(b), which gives a tensor; <= gives one truth value");
}

int refuse_modulo(lua_State*) {
  fail(Errc::usage, "tensors have no '%'; the remainder is x - (x / y):floor() * y");
}
int refuse_length(lua_State*) {
  fail(Errc::usage, "a tensor has no length: t:size(dim) is an extent, t:numel() counts elements");
}
int refuse_concat(lua_State*) {
  fail(Errc::usage, "a tensor cannot be joined with '..': use t:item() or tostring(t)");
}
int refuse_call(lua_State*) {
  fail(Errc::usage,
       "a tensor is not a function: t:select(dim, i) and t:slice(dim, start, stop) take parts of it");
}

std::optional<Input> opt_input(lua_State* L, int index) {
  if (lua_isnoneornil(L, index)) return std::nullopt;
  return check_input(L, index);
}

int clamp(lua_State* L) {
  const auto x = check_variable(L, 1);
  const auto low = opt_input(L, 2), high = opt_input(L, 3);
  if (!low && !high) fail(Errc::usage, "clamp(min, max) needs at least one of the two bounds");
  return push_variable(L, compute::clamp(x, low, high));
}

int masked_fill(lua_State* L) {
  const auto x = check_variable(L, 1);
  return push_variable(L, compute::where(check_variable(L, 2), check_input(L, 3), x));
}

int to(lua_State* L) {
  return push_variable(L, compute::cast(check_variable(L, 1), check_dtype(L, 2)));
}

using Reducer = compute::VariablePtr (*)(const compute::VariablePtr&, const compute::Dims&, bool);

template <Reducer reducer>
int reduce(lua_State* L) {
  return push_variable(L, reducer(check_variable(L, 1), opt_dims(L, 2), keepdim(L, 3)));
}

int argmax(lua_State* L) {
  const auto x = check_variable(L, 1);
  std::optional<int64_t> dim;
  if (!lua_isnoneornil(L, 2)) dim = check_integer(L, 2);
  return push_variable(L, compute::argmax(x, dim, keepdim(L, 3)));
}

/// `t:topk(k, dim)`: values and their positions.
int topk(lua_State* L) {
  const auto x = check_variable(L, 1);
  const int64_t k = check_integer(L, 2), dim = opt_integer(L, 3, -1);
  const bool is_last = dim == -1 || dim == x->dim() - 1;
  const auto [values, places] = compute::topk(is_last ? x : compute::transpose(x, dim, -1), k);
  push_variable(L, is_last ? values : compute::transpose(values, dim, -1));
  push_variable(L, is_last ? places : compute::transpose(places, dim, -1));
  return 2;
}

int matmul(lua_State* L) {
  return push_variable(L, compute::matmul(check_variable(L, 1), check_variable(L, 2)));
}

template <bool is_log>
int softmax(lua_State* L) {
  return push_variable(L, compute::softmax(check_variable(L, 1), opt_integer(L, 2, -1), is_log));
}

}  // namespace

const luaL_Reg variable_math[] = {
#define CBK_METHOD_method(op, name, operands) {name, computed<element_method<ElementOp::op>, operands>},
#define CBK_METHOD_inner(op, name, operands)
#define CBK_ELEMENT_OP(op, name, access, operands, ...) CBK_METHOD_##access(op, name, operands)
#include "host/compute/element_ops.def"
#undef CBK_ELEMENT_OP
#undef CBK_METHOD_inner
#undef CBK_METHOD_method
    {"add", computed<add_scaled<1>, 3>},
    {"sub", computed<add_scaled<-1>, 3>},
    {"clamp", computed<clamp, 3>},
    {"masked_fill", computed<masked_fill, 3>},
    {"to", computed<to, 2>},
    {"sum", computed<reduce<compute::sum>, 3>},
    {"mean", computed<reduce<compute::mean>, 3>},
    {"amax", computed<reduce<compute::amax>, 3>},
    {"amin", computed<reduce<compute::amin>, 3>},
    {"norm", computed<reduce<compute::norm>, 3>},
    {"argmax", computed<argmax, 3>},
    {"topk", computed<topk, 3>},
    {"matmul", computed<matmul, 2>},
    {"softmax", computed<softmax<false>, 2>},
    {"log_softmax", computed<softmax<true>, 2>},
    {nullptr, nullptr}};

const luaL_Reg variable_operators[] = {{"__add", computed<operate<ElementOp::add>>},
                                       {"__sub", computed<operate<ElementOp::subtract>>},
                                       {"__mul", computed<operate<ElementOp::multiply>>},
                                       {"__div", computed<operate<ElementOp::divide>>},
                                       {"__pow", computed<operate<ElementOp::power>>},
                                       {"__unm", computed<unary<ElementOp::negate>>},
                                       {"__lt", computed<refuse_less>},
                                       {"__le", computed<refuse_less_equal>},
                                       {"__mod", computed<refuse_modulo>},
                                       {"__len", computed<refuse_length>},
                                       {"__concat", computed<refuse_concat>},
                                       {"__call", computed<refuse_call>},
                                       {nullptr, nullptr}};

}  // namespace cbk::lua
