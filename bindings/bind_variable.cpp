// The type Variable: the tensors of `cstorch` scripts.
#include <algorithm>
#include <cmath>

#include "bindings/modules.hpp"
#include "bindings/variable_methods.hpp"
#include "host/compute/context.hpp"

namespace cbk::lua {

std::string_view kind_of(Errc code) {
  switch (code) {
    case Errc::usage:
    case Errc::dtype:
      return "type";
    case Errc::value:
    case Errc::key:
      return "value";
    default:
      return "runtime";
  }
}

namespace {

/// The nearest caller outside cstorch's own files.
void push_script_place(lua_State* L) {
  lua_Debug caller;
  for (int level = 1; lua_getstack(L, level, &caller) != 0; ++level) {
    lua_getinfo(L, "Sl", &caller);
    if (caller.currentline <= 0 ||
        std::string_view(caller.source).find("/lib/cstorch/") != std::string_view::npos)
      continue;
    push(L, std::string_view(fmt::format("{}:{}", caller.short_src, caller.currentline)));
    return;
  }
  lua_pushnil(L);
}

}  // namespace

void push_computed_failure(lua_State* L, Failure failure, std::string_view kind) {
  // Tensors and functions of cstorch have other names in the bindings than in scripts.
  constexpr std::pair<std::string_view, std::string_view> names[] = {
      {"cbk.compute.", ""}, {"cstorch.Tensor", "tensor"},
      {"'__add'", "'+'"},   {"'__sub'", "'-'"},
      {"'__mul'", "'*'"},   {"'__div'", "'/'"},
      {"'__pow'", "'^'"},   {"'__newindex'", "an assignment"}};
  for (const auto& [old, name] : names) {
    std::string& problem = failure.parts.problem;
    for (size_t at = problem.find(old); at != std::string::npos; at = problem.find(old, at))
      problem.replace(at, old.size(), name);
  }
  push_failure(L, failure);
  set_field(L, "kind", kind);
  push_script_place(L);
  lua_setfield(L, -2, "where");
}

void refuse_more(lua_State* L, int most) {
  for (int index = most + 1; index <= lua_gettop(L); ++index) {
    if (lua_isnil(L, index)) continue;
    if (!lua_istable(L, index)) fail_argument(L, index, "it does not take so many arguments");
    lua_pushnil(L);
    if (lua_next(L, index) == 0) continue;
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING) fail_argument(L, index, "it does not take so many arguments");
    fail_argument(L, index, fmt::format("unknown option {}", quote(check_string(L, lua_gettop(L)))));
  }
}

compute::VariablePtr check_variable(lua_State* L, int index) {
  if (auto variable = test<compute::Variable>(L, index)) return variable;
  fail_type(L, index, "tensor");
}

compute::Input check_input(lua_State* L, int index) {
  if (auto variable = test<compute::Variable>(L, index)) return variable;
  if (lua_type(L, index) == LUA_TNUMBER || is_int64(L, index) || is_uint64(L, index))
    return check_number(L, index);
  if (lua_isboolean(L, index)) return lua_toboolean(L, index) != 0 ? 1.0 : 0.0;
  fail_type(
      L, index,
      is<const TensorLeaf>(L, index) ? "tensor of cstorch (cstorch.tensor makes one)" : "tensor or number");
}

int push_variable(lua_State* L, const compute::VariablePtr& variable) {
  // The collector sees only the small objects that own the memory.
  constexpr uint64_t least_garbage = 64ULL << 20;
  static uint64_t limit = least_garbage;
  if (compute::Buffer::count().live_bytes > limit) {
    lua_gc(L, LUA_GCCOLLECT, 0);
    const uint64_t live = compute::Buffer::count().live_bytes;
    limit = live + std::max(least_garbage, live / 2);
  }
  push(L, variable);
  return 1;
}

std::optional<compute::Input> input_option(lua_State* L, int index, const char* name) {
  const Options options(L, index, {name});
  if (!options.has(name)) return std::nullopt;
  options.push(name);
  compute::Input input = check_input(L, lua_gettop(L));
  lua_pop(L, 1);
  return input;
}

compute::Dims opt_dims(lua_State* L, int index) {
  if (lua_isnoneornil(L, index)) return {};
  if (lua_type(L, index) == LUA_TNUMBER) return {check_integer(L, index)};
  return check_integers(L, index);
}

bool keepdim(lua_State* L, int index) {
  return Options(L, index, {"keepdim"}).flag("keepdim");
}

namespace {

/// One element as a Lua value.
void push_element(lua_State* L, DType, double value) {
  lua_pushnumber(L, value);
}
void push_element(lua_State* L, DType dtype, int64_t value) {
  if (dtype == DType::boolean) {
    lua_pushboolean(L, value != 0);
  } else {
    push_integer(L, value);
  }
}

template <typename T>
void push_nested(lua_State* L, DType dtype, const Shape& shape, size_t dim, const T*& values) {
  if (dim == shape.size()) return push_element(L, dtype, *values++);
  luaL_checkstack(L, 3, "tolist");
  lua_createtable(L, static_cast<int>(shape[dim]), 0);
  for (int64_t i = 0; i < shape[dim]; ++i) {
    push_nested(L, dtype, shape, dim + 1, values);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

template <typename T>
int push_list(lua_State* L, const compute::Variable& x) {
  const std::vector<T> values = x.to_values<T>();
  const T* at = values.data();
  push_nested(L, x.dtype(), x.shape(), 0, at);
  return 1;
}

int tolist(lua_State* L) {
  const auto x = check_variable(L, 1);
  constexpr int64_t most = 100'000'000;
  Shape tables = x->shape();  // also without elements
  std::replace(tables.begin(), tables.end(), int64_t{0}, int64_t{1});
  if (numel_of(tables) > most)
    fail(Errc::value, "tolist() of a tensor of shape {} is too much for Lua; take a slice",
         to_string(x->shape()));
  return is_floating(x->dtype()) ? push_list<double>(L, *x) : push_list<int64_t>(L, *x);
}

int item(lua_State* L) {
  const auto x = check_variable(L, 1);
  if (x->numel() != 1) {
    fail(Errc::value, "item() needs a tensor of one element, not of shape {}; use tolist()",
         to_string(x->shape()));
  }
  if (is_floating(x->dtype())) {
    lua_pushnumber(L, x->item());
  } else {
    push_element(L, x->dtype(), x->to_values<int64_t>()[0]);
  }
  return 1;
}

int describe(lua_State* L) {
  const auto x = check_variable(L, 1);
  constexpr int64_t most = 8;
  std::string text = fmt::format("Tensor {} {}", name_of(x->dtype()), to_string(x->shape()));
  const auto add = [&text](const auto& values, const char* how) {
    for (size_t i = 0; i < values.size(); ++i)
      text += fmt::format("{}{}", i == 0 ? ": " : ", ", fmt::format(fmt::runtime(how), values[i]));
  };
  if (is_floating(x->dtype())) {
    auto values = x->to_values<double>(most);
    for (double& value : values) value = std::isnan(value) ? std::abs(value) : value;  // not "-nan"
    add(values, "{:.6g}");
  } else {
    add(x->to_values<int64_t>(most), "{}");
  }
  if (x->numel() > most) text += ", …";
  push(L, std::string_view(text));
  return 1;
}

int index(lua_State* L) {
  const auto x = check_variable(L, 1);
  if (lua_type(L, 2) != LUA_TSTRING)
    fail(Errc::usage, "a tensor is indexed with t:select(dim, i) or t:slice(dim, start, stop), from 0");
  const std::string_view key = check_string(L, 2);
  if (key == "dtype") {
    push(L, name_of(x->dtype()));
  } else if (key == "device") {
    push(L, name_of(x->device()));
  } else if (key == "requires_grad") {
    lua_pushboolean(L, x->requires_grad());
  } else if (key == "is_leaf") {
    lua_pushboolean(L, x->is_leaf());
  } else if (key == "grad") {
    if (!x->grad()) return 0;
    push(L, x->grad());
  } else {
    std::vector<std::string> known = method_names(L, 1);
    known.insert(known.end(), {"dtype", "device", "requires_grad", "grad", "is_leaf"});
    const bool is_extreme = key == "min" || key == "max";
    fail_member("a tensor", key, is_extreme ? std::vector<std::string>{} : known,
                is_extreme ? fmt::format("x:a{}() has it", key) : "");
  }
  return 1;
}

int assign(lua_State* L) {
  const auto x = check_variable(L, 1);
  const std::string_view key = check_string(L, 2);
  if (key == "requires_grad") {
    if (!lua_isboolean(L, 3)) fail_type(L, 3, "boolean");
    x->set_requires_grad(lua_toboolean(L, 3) != 0);
  } else if (key == "grad") {
    if (lua_isnil(L, 3)) return x->set_grad(nullptr), 0;
    const auto gradient = check_variable(L, 3);
    if (gradient->shape() != x->shape() || gradient->dtype() != x->dtype()) {
      fail(Errc::shape, "the gradient of a tensor {} {} must be the same, not {} {}", name_of(x->dtype()),
           to_string(x->shape()), name_of(gradient->dtype()), to_string(gradient->shape()));
    }
    x->set_grad(gradient);
  } else {
    fail(Errc::usage, "'{}' of a tensor cannot be assigned; grad and requires_grad can", key);
  }
  return 0;
}

/// Names the methods of an object hidden behind `index` above.
const luaL_Reg own[] = {{"tolist", computed<tolist, 1>}, {"item", computed<item, 1>}, {nullptr, nullptr}};

}  // namespace

void bind_variable(lua_State* L) {
  static const luaL_Reg own_metamethods[] = {
      {"__tostring", computed<describe>}, {"__newindex", computed<assign>}, {nullptr, nullptr}};
  const auto methods = joined({own, variable_math, variable_moves, variable_in_place, variable_gradients});
  const auto metamethods = joined({own_metamethods, variable_operators});
  register_type<compute::Variable>(L, {methods.data(), metamethods.data(), computed<index>});
}

}  // namespace cbk::lua
