// Methods of Variable that show its elements in another shape.
#include "bindings/variable_methods.hpp"

namespace cbk::lua {
namespace {

int shape(lua_State* L) {
  push_integers(L, check_variable(L, 1)->shape());
  return 1;
}

int size(lua_State* L) {
  const auto x = check_variable(L, 1);
  push_integer(L, x->shape()[static_cast<size_t>(compute::check_dim(check_integer(L, 2), x->dim()))]);
  return 1;
}

int dim(lua_State* L) {
  push_integer(L, check_variable(L, 1)->dim());
  return 1;
}

int numel(lua_State* L) {
  push_integer(L, check_variable(L, 1)->numel());
  return 1;
}

int reshape(lua_State* L) {
  return push_variable(L, compute::reshape(check_variable(L, 1), check_integers(L, 2)));
}
int permute(lua_State* L) {
  return push_variable(L, compute::permute(check_variable(L, 1), check_integers(L, 2)));
}
int expand(lua_State* L) {
  return push_variable(L, compute::expand(check_variable(L, 1), check_integers(L, 2)));
}

int transpose(lua_State* L) {
  return push_variable(L, compute::transpose(check_variable(L, 1), check_integer(L, 2), check_integer(L, 3)));
}

int squeeze(lua_State* L) {
  const auto x = check_variable(L, 1);
  std::optional<int64_t> at;
  if (!lua_isnoneornil(L, 2)) at = check_integer(L, 2);
  return push_variable(L, compute::squeeze(x, at));
}

int unsqueeze(lua_State* L) {
  return push_variable(L, compute::unsqueeze(check_variable(L, 1), check_integer(L, 2)));
}

int slice(lua_State* L) {
  const auto x = check_variable(L, 1);
  return push_variable(L, compute::slice(x, check_integer(L, 2), opt_integer(L, 3, 0),
                                         opt_integer(L, 4, INT64_MAX), opt_integer(L, 5, 1)));
}

int select(lua_State* L) {
  return push_variable(L, compute::select(check_variable(L, 1), check_integer(L, 2), check_integer(L, 3)));
}

/// `t:flatten(first, last)`: the dims from `first` to `last` as one.
int flatten(lua_State* L) {
  const auto x = check_variable(L, 1);
  if (x->dim() == 0) return push_variable(L, compute::reshape(x, {1}));
  const int64_t first = compute::check_dim(opt_integer(L, 2, 0), x->dim());
  const int64_t last = compute::check_dim(opt_integer(L, 3, -1), x->dim());
  if (first > last) fail(Errc::value, "flatten: the first dim {} comes after the last, {}", first, last);
  const Shape& extents = x->shape();
  Shape shape(extents.begin(), extents.begin() + first);
  shape.push_back(numel_of(Shape(extents.begin() + first, extents.begin() + last + 1)));
  shape.insert(shape.end(), extents.begin() + last + 1, extents.end());
  return push_variable(L, compute::reshape(x, shape));
}

/// `t:split(size, dim)`: a list; the last part may be smaller.
int split(lua_State* L) {
  const auto x = check_variable(L, 1);
  const int64_t length = check_integer(L, 2, 1);
  const int64_t at = compute::check_dim(opt_integer(L, 3, 0), x->dim());
  const int64_t extent = x->shape()[static_cast<size_t>(at)];
  lua_newtable(L);
  int count = 0;
  for (int64_t begin = 0; begin == 0 || begin < extent; begin += length) {
    push_variable(L, compute::slice(x, at, begin, std::min(extent, begin + length), 1));
    lua_rawseti(L, -2, ++count);
  }
  return 1;
}

int clone(lua_State* L) {
  return push_variable(L, compute::clone(check_variable(L, 1)));
}
int contiguous(lua_State* L) {
  return push_variable(L, compute::contiguous(check_variable(L, 1)));
}
int detach(lua_State* L) {
  return push_variable(L, check_variable(L, 1)->detached());
}

}  // namespace

const luaL_Reg variable_moves[] = {{"shape", computed<shape, 1>},     {"size", computed<size, 2>},
                                   {"dim", computed<dim, 1>},         {"numel", computed<numel, 1>},
                                   {"reshape", computed<reshape>},    {"permute", computed<permute>},
                                   {"expand", computed<expand>},      {"transpose", computed<transpose, 3>},
                                   {"squeeze", computed<squeeze, 2>}, {"unsqueeze", computed<unsqueeze, 2>},
                                   {"slice", computed<slice, 5>},     {"select", computed<select, 3>},
                                   {"flatten", computed<flatten, 3>}, {"split", computed<split, 3>},
                                   {"clone", computed<clone, 1>},     {"contiguous", computed<contiguous, 1>},
                                   {"detach", computed<detach, 1>},   {nullptr, nullptr}};

}  // namespace cbk::lua
