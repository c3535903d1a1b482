// Plain arguments and results: numbers, 64-bit integers as LuaJIT's cdata, text, paths, lists of them.
#include <cmath>
#include <cstring>

#include "bindings/runtime.hpp"
#include "host/base/bytes.hpp"

namespace cbk::lua {
namespace {

constexpr int64_t exact_limit = int64_t{1} << 53;  // doubles hold whole numbers exactly up to here

char ffi_helpers_key;  // its address is a key of the registry

// The C API cannot tell the cdata types apart, so a few lines of Lua do that.
constexpr const char* ffi_helpers = R"(
local ffi = require "ffi"
local int64, uint64, slot = ffi.typeof "int64_t", ffi.typeof "uint64_t", ffi.new "int64_t[1]"
return {
  kind = function(x) return ffi.istype(int64, x) and 1 or ffi.istype(uint64, x) and 2 or 0 end,
  slot = slot,
  int64 = function() return slot[0] end,
  uint64 = function() return ffi.cast(uint64, slot[0]) end,
  pointer = function(ctype, address) return ffi.cast(ctype, address) end,
}
)";

/// Pushes one of the helpers above.
void push_helper(lua_State* L, const char* name) {
  lua_pushlightuserdata(L, &ffi_helpers_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    if (luaL_loadbuffer(L, ffi_helpers, std::strlen(ffi_helpers), "=ffi_helpers") != 0) lua_error(L);
    lua_call(L, 0, 1);
    lua_pushlightuserdata(L, &ffi_helpers_key);
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  lua_getfield(L, -1, name);
  lua_remove(L, -2);
}

constexpr int lua_tcdata = 10;

/// 0: no 64-bit cdata, 1: int64, 2: uint64.
int cdata_kind(lua_State* L, int index) {
  if (lua_type(L, index) != lua_tcdata) return 0;
  lua_pushvalue(L, index);
  push_helper(L, "kind");
  lua_insert(L, -2);
  lua_call(L, 1, 1);
  const int kind = static_cast<int>(lua_tointeger(L, -1));
  lua_pop(L, 1);
  return kind;
}

void push_cdata(lua_State* L, const char* kind, uint64_t bits) {
  push_helper(L, "slot");
  std::memcpy(const_cast<void*>(lua_topointer(L, -1)), &bits, sizeof bits);
  lua_pop(L, 1);
  push_helper(L, kind);
  lua_call(L, 0, 1);
}

}  // namespace

bool is_int64(lua_State* L, int index) {
  return cdata_kind(L, index) == 1;
}
bool is_uint64(lua_State* L, int index) {
  return cdata_kind(L, index) == 2;
}

uint64_t cdata_bits(lua_State* L, int index) {
  return load_le<uint64_t>(lua_topointer(L, index));
}

std::optional<int64_t> to_integer(lua_State* L, int index) {
  if (lua_type(L, index) == LUA_TNUMBER) {
    const double number = lua_tonumber(L, index);
    if (std::floor(number) != number || std::abs(number) > static_cast<double>(exact_limit))
      return std::nullopt;
    return static_cast<int64_t>(number);
  }
  const int kind = cdata_kind(L, index);
  if (kind == 0) return std::nullopt;
  const auto bits = static_cast<int64_t>(cdata_bits(L, index));
  if (kind == 2 && bits < 0) return std::nullopt;
  return bits;
}

int64_t check_integer(lua_State* L, int index, int64_t min, int64_t max) {
  const auto value = to_integer(L, index);
  if (!value) {
    if (lua_type(L, index) == LUA_TNUMBER) {
      fail_argument(L, index, fmt::format("a whole number expected, got {}", lua_tonumber(L, index)));
    }
    fail_type(L, index, "integer");
  }
  if (*value < min || *value > max) {
    fail_argument(L, index, fmt::format("{} is out of range ({} to {})", *value, min, max));
  }
  return *value;
}

int64_t opt_integer(lua_State* L, int index, int64_t otherwise, int64_t min, int64_t max) {
  return lua_isnoneornil(L, index) ? otherwise : check_integer(L, index, min, max);
}

double check_number(lua_State* L, int index) {
  if (lua_type(L, index) == LUA_TNUMBER) return lua_tonumber(L, index);
  const int kind = cdata_kind(L, index);
  if (kind == 1) return static_cast<double>(static_cast<int64_t>(cdata_bits(L, index)));
  if (kind == 2) return static_cast<double>(cdata_bits(L, index));
  fail_type(L, index, "number");
}

std::string_view check_string(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TSTRING) fail_type(L, index, "string");
  size_t length = 0;
  const char* text = lua_tolstring(L, index, &length);
  return {text, length};
}

std::filesystem::path check_path(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TSTRING) fail_type(L, index, "path");
  const std::string_view text = check_string(L, index);
  if (text.empty()) fail_argument(L, index, "a path expected, got an empty string");
  if (text.find('\0') != std::string_view::npos) fail_argument(L, index, "a path cannot contain a zero byte");
  return std::filesystem::path(text);
}

std::vector<int64_t> check_integers(lua_State* L, int index) {
  std::vector<int64_t> out;
  const auto list = test<Sequence>(L, index);
  if (list) {
    out.reserve(list->items.size());
    for (const Value& item : list->items) out.push_back(item.as_int());
    return out;
  }
  if (!lua_istable(L, index)) fail_type(L, index, "list of integers");
  const size_t count = lua_objlen(L, index);
  out.reserve(count);
  for (size_t i = 1; i <= count; ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    const auto item = to_integer(L, -1);
    if (!item)
      fail_argument(L, index, fmt::format("integers expected, got {} at position {}", type_name(L, -1), i));
    out.push_back(*item);
    lua_pop(L, 1);
  }
  return out;
}

DType check_dtype(lua_State* L, int index) {
  return parse_dtype(check_string(L, index));
}

void push(lua_State* L, std::string_view text) {
  lua_pushlstring(L, text.data(), text.size());
}

void push_integer(lua_State* L, int64_t value) {
  if (value >= -exact_limit && value <= exact_limit) {
    lua_pushnumber(L, static_cast<double>(value));
  } else {
    push_cdata(L, "int64", static_cast<uint64_t>(value));
  }
}

void push_unsigned(lua_State* L, uint64_t value) {
  if (value <= static_cast<uint64_t>(exact_limit)) {
    lua_pushnumber(L, static_cast<double>(value));
  } else {
    push_cdata(L, "uint64", value);
  }
}

void push_integers(lua_State* L, const std::vector<int64_t>& integers) {
  lua_createtable(L, static_cast<int>(integers.size()), 0);
  for (size_t i = 0; i < integers.size(); ++i) {
    push_integer(L, integers[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

void push_strings(lua_State* L, const std::vector<std::string>& texts) {
  lua_createtable(L, static_cast<int>(texts.size()), 0);
  for (size_t i = 0; i < texts.size(); ++i) {
    push(L, std::string_view(texts[i]));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

void push_pointer(lua_State* L, const char* ctype, const void* address) {
  push_helper(L, "pointer");
  lua_pushstring(L, ctype);
  lua_pushlightuserdata(L, const_cast<void*>(address));
  lua_call(L, 2, 1);
}

void set_integer(lua_State* L, const char* name, uint64_t value) {
  push_unsigned(L, value);
  lua_setfield(L, -2, name);
}

void set_number(lua_State* L, const char* name, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, name);
}

void set_boolean(lua_State* L, const char* name, bool value) {
  lua_pushboolean(L, value);
  lua_setfield(L, -2, name);
}

}  // namespace cbk::lua
