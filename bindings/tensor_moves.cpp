// Methods of Tensor that move elements without computing. They read no data.
#include <algorithm>

#include "bindings/tensor_methods.hpp"

namespace cbk::lua {
namespace {

int reshape(lua_State* L) {
  return push_result(L, self_tensor(L).reshape(check_integers(L, 2)));
}

int permute(lua_State* L) {
  return push_result(L, self_tensor(L).permute(check_integers(L, 2)));
}

int transpose(lua_State* L) {
  return push_result(L, self_tensor(L).transpose(check_integer(L, 2), check_integer(L, 3)));
}

int slice(lua_State* L) {
  const int64_t start = opt_integer(L, 3, 0);
  const int64_t stop = opt_integer(L, 4, INT64_MAX);
  return push_result(L, self_tensor(L).slice(check_integer(L, 2), start, stop, opt_integer(L, 5, 1)));
}

int64_t dim_at(lua_State* L, int index, const Tensor& tensor) {
  const int64_t value = check_integer(L, index);
  if (value < -tensor.dim() || value >= tensor.dim()) {
    fail(Errc::shape, "dim {} is out of range for a tensor of shape {}", value, to_string(tensor.shape()));
  }
  return value < 0 ? value + tensor.dim() : value;
}

int select(lua_State* L) {
  const Tensor& tensor = self_tensor(L);
  const int64_t along = dim_at(L, 2, tensor);
  const int64_t extent = tensor.shape()[static_cast<size_t>(along)];
  int64_t index = check_integer(L, 3);
  if (index < -extent || index >= extent) {
    fail(Errc::shape, "index {} is out of range in dim {} of a tensor of shape {}", index, along,
         to_string(tensor.shape()));
  }
  if (index < 0) index += extent;
  Shape rest = tensor.shape();
  rest.erase(rest.begin() + along);
  return push_result(L, tensor.slice(along, index, index + 1).reshape(rest));
}

int expand(lua_State* L) {
  return push_result(L, self_tensor(L).expand(check_integers(L, 2)));
}

int flip(lua_State* L) {
  return push_result(L, self_tensor(L).flip(check_integer(L, 2)));
}

int index_select(lua_State* L) {
  return push_result(L, self_tensor(L).index_select(check_integer(L, 2), check_integers(L, 3)));
}

int split(lua_State* L) {
  const Tensor& tensor = self_tensor(L);
  const int64_t along = lua_isnoneornil(L, 3) ? 0 : dim_at(L, 3, tensor);
  if (tensor.dim() == 0) fail(Errc::shape, "a tensor without dims cannot be split");
  const int64_t extent = tensor.shape()[static_cast<size_t>(along)];
  std::vector<int64_t> sizes;
  if (const auto size = to_integer(L, 2)) {
    if (*size <= 0) fail_argument(L, 2, "the size of a part must be positive");
    for (int64_t at = 0; at < extent; at += *size) sizes.push_back(std::min(*size, extent - at));
  } else {
    sizes = check_integers(L, 2);
  }
  int64_t total = 0;
  for (const int64_t size : sizes) {
    if (size < 0 || size > extent - total) total = extent;  // too much: reported below
    total += size < 0 ? 1 : size;
  }
  if (total != extent) {
    fail(Errc::shape, "expected sizes that add up to {} (dim {} of shape {}), got {}", extent, along,
         to_string(tensor.shape()), to_string(sizes));
  }
  lua_createtable(L, static_cast<int>(sizes.size()), 0);
  int64_t at = 0;
  int position = 0;
  for (const int64_t size : sizes) {
    push_result(L, tensor.slice(along, at, at + size));
    lua_rawseti(L, -2, ++position);
    at += size;
  }
  return 1;
}

}  // namespace

const luaL_Reg tensor_moves[] = {{"reshape", guarded<reshape>},     {"permute", guarded<permute>},
                                 {"transpose", guarded<transpose>}, {"slice", guarded<slice>},
                                 {"select", guarded<select>},       {"expand", guarded<expand>},
                                 {"flip", guarded<flip>},           {"index_select", guarded<index_select>},
                                 {"split", guarded<split>},         {nullptr, nullptr}};

}  // namespace cbk::lua
