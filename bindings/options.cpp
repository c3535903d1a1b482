// Options: named arguments in a table.
#include <algorithm>

#include "bindings/runtime.hpp"
#include "host/base/bytes.hpp"

namespace cbk::lua {

Options::Options(lua_State* L, int index, std::initializer_list<std::string_view> known)
    : L_(L), index_(index) {
  if (lua_isnoneornil(L, index)) {
    index_ = 0;
    return;
  }
  if (!lua_istable(L, index)) {
    fail_type(L, index, fmt::format("table of options such as {{ {} = … }}", *known.begin()));
  }
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING) {
      fail_argument(L, index, fmt::format("option names are strings, got a {}", type_name(L, -1)));
    }
    const std::string name = lua_tostring(L, -1);
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    const auto near = nearest(name, names, 1);
    fail_argument(
        L, index,
        fmt::format("unknown option {}; {}known: {}", quote(name),
                    near.empty() ? "" : fmt::format("did you mean '{}'? ", near[0]), listed(names)));
  }
}

bool Options::has(const char* name) const {
  push(name);
  const bool present = !lua_isnil(L_, -1);
  lua_pop(L_, 1);
  return present;
}

void Options::push(const char* name) const {
  if (index_ == 0) {
    lua_pushnil(L_);
  } else {
    lua_pushstring(L_, name);
    lua_rawget(L_, index_);
  }
}

bool Options::flag(const char* name, bool otherwise) const {
  push(name);
  if (!lua_isnil(L_, -1) && !lua_isboolean(L_, -1)) fail_option(name, "true or false");
  const bool value = lua_isnil(L_, -1) ? otherwise : lua_toboolean(L_, -1) != 0;
  lua_pop(L_, 1);
  return value;
}

std::string Options::text(const char* name, std::string_view otherwise) const {
  push(name);
  std::string value(otherwise);
  if (!lua_isnil(L_, -1)) {
    if (lua_type(L_, -1) != LUA_TSTRING) fail_option(name, "a string");
    size_t length = 0;
    const char* text = lua_tolstring(L_, -1, &length);
    value.assign(text, length);
  }
  lua_pop(L_, 1);
  return value;
}

std::optional<int64_t> Options::integer(const char* name, int64_t min, int64_t max) const {
  push(name);
  std::optional<int64_t> value;
  if (!lua_isnil(L_, -1)) {
    value = to_integer(L_, -1);
    if (!value || *value < min || *value > max)
      fail_option(name, fmt::format("a whole number from {} to {}", min, max));
  }
  lua_pop(L_, 1);
  return value;
}

double Options::number(const char* name, double otherwise) const {
  push(name);
  if (!lua_isnil(L_, -1) && lua_type(L_, -1) != LUA_TNUMBER) fail_option(name, "a number");
  const double value = lua_isnil(L_, -1) ? otherwise : lua_tonumber(L_, -1);
  lua_pop(L_, 1);
  return value;
}

std::optional<uint64_t> Options::size(const char* name) const {
  push(name);
  std::optional<uint64_t> value;
  if (lua_type(L_, -1) == LUA_TSTRING) {
    value = within(fmt::format("option '{}'", name), [&] { return parse_size(lua_tostring(L_, -1)); });
  } else if (!lua_isnil(L_, -1)) {
    const auto number = to_integer(L_, -1);
    if (!number || *number < 0) fail_option(name, "a number of bytes or a string such as '512MiB'");
    value = static_cast<uint64_t>(*number);
  }
  lua_pop(L_, 1);
  return value;
}

DType Options::dtype(const char* name, DType otherwise) const {
  const std::string text = this->text(name);
  return text.empty() ? otherwise : parse_dtype(text);
}

void Options::fail_option(const char* name, std::string_view expected) const {
  fail(
      Errc::usage, "option '{}' should be {}, not a {}", name, expected,
      lua_type(L_, -1) == LUA_TNUMBER ? fmt::format("value of {}", lua_tonumber(L_, -1)) : type_name(L_, -1));
}

}  // namespace cbk::lua
