#include "bindings/runtime.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "host/base/bytes.hpp"

namespace cbk::lua {
namespace {

constexpr int64_t exact_limit = int64_t{1} << 53;  // doubles hold whole numbers exactly up to here

// Addresses that serve as registry keys.
char known_nodes_key;
char ffi_helpers_key;
char failure_key;

int failure_tostring(lua_State* L) {
  lua_getfield(L, 1, "message");
  return 1;
}

std::string member(lua_State* L, int index, const char* name) {
  lua_pushstring(L, name);
  lua_rawget(L, index);
  size_t length = 0;
  const char* text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &length) : "";
  std::string out(text, length);
  lua_pop(L, 1);
  return out;
}

int absolute(lua_State* L, int index) {
  return index > 0 || index <= LUA_REGISTRYINDEX ? index : lua_gettop(L) + index + 1;
}

// The C API cannot tell the cdata types apart, so a few lines of Lua do.
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
  index = absolute(L, index);
  push_helper(L, "kind");
  lua_pushvalue(L, index);
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

// --- errors

void push_failure(lua_State* L, const Failure& failure) {
  lua_createtable(L, 0, 3);
  set_field(L, "code", failure.code);
  set_field(L, "message", failure.message);
  luaL_where(L, 1);
  size_t length = 0;
  const char* where = lua_tolstring(L, -1, &length);
  if (length > 2) {
    lua_pushlstring(L, where, length - 2);  // without ": "
    lua_setfield(L, -3, "where");
  }
  lua_pop(L, 1);
  lua_pushlightuserdata(L, &failure_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_createtable(L, 0, 2);
    lua_pushcfunction(L, failure_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pushliteral(L, "Error");
    lua_setfield(L, -2, "__name");
    lua_pushlightuserdata(L, &failure_key);
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  lua_setmetatable(L, -2);
}

Failure failure_at(lua_State* L, int index) {
  index = absolute(L, index);
  if (lua_istable(L, index)) {
    Failure failure{member(L, index, "code"), member(L, index, "message")};
    if (!failure.message.empty()) return failure;
  }
  size_t length = 0;
  if (lua_isstring(L, index)) {
    lua_pushvalue(L, index);
    const char* text = lua_tolstring(L, -1, &length);
    Failure failure{"script", std::string(text, length)};
    lua_pop(L, 1);
    return failure;
  }
  return {"script", fmt::format("(error object is a {} value)", type_name(L, index))};
}

void fail_argument(lua_State* L, int index, std::string_view what) {
  lua_Debug info{};
  std::string name = "?";
  if (lua_getstack(L, 0, &info) != 0 && lua_getinfo(L, "n", &info) != 0) {
    if (info.name != nullptr) {
      name = info.name;
    } else if (lua_type(L, lua_upvalueindex(1)) == LUA_TSTRING) {
      name = lua_tostring(L, lua_upvalueindex(1));
    }
    if (info.namewhat != nullptr && std::strcmp(info.namewhat, "method") == 0) {
      --index;
      if (index == 0)
        fail(Errc::usage, "calling '{}' on a wrong object ({}); write it with a colon", name, what);
    }
  }
  fail(Errc::usage, "bad argument #{} to '{}' ({})", index, name, what);
}

void fail_type(lua_State* L, int index, std::string_view expected) {
  fail_argument(L, index, fmt::format("{} expected, got {}", expected, type_name(L, index)));
}

std::string type_name(lua_State* L, int index) {
  if (lua_type(L, index) == LUA_TNONE) return "no value";
  if (const int kind = cdata_kind(L, index); kind != 0) return kind == 1 ? "int64" : "uint64";
  if (lua_type(L, index) == LUA_TUSERDATA && lua_getmetatable(L, index) != 0) {
    const std::string name = member(L, lua_gettop(L), "__name");
    lua_pop(L, 1);
    if (!name.empty()) return name;
  }
  return lua_typename(L, lua_type(L, index));
}

// --- types

void set_functions(lua_State* L, const luaL_Reg* functions) {
  for (; functions != nullptr && functions->name != nullptr; ++functions) {
    lua_pushstring(L, functions->name);  // for messages: a tail call leaves no name on the stack
    lua_pushcclosure(L, functions->func, 1);
    lua_setfield(L, -2, functions->name);
  }
}

namespace detail {

namespace {

/// __index of types with methods: upvalue 1 the methods, upvalue 2 the function for other keys (or nil).
int index_methods(lua_State* L) {
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(1));
  if (!lua_isnil(L, -1) || lua_isnil(L, lua_upvalueindex(2))) return 1;
  lua_pop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_insert(L, 1);
  lua_call(L, 2, 1);
  return 1;
}

}  // namespace

void make_metatable(lua_State* L, const char* name, const TypeSpec& spec, lua_CFunction collect,
                    lua_CFunction equal, lua_CFunction tostring) {
  luaL_newmetatable(L, name);
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__name");
  const luaL_Reg common[] = {
      {"__gc", collect}, {"__eq", equal}, {"__tostring", tostring}, {nullptr, nullptr}};
  set_functions(L, common);
  set_functions(L, spec.metamethods);
  if (spec.methods == nullptr) {
    lua_pushcfunction(L, spec.index);
  } else {
    lua_newtable(L);
    set_functions(L, spec.methods);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "methods");  // so that completion and help can list them without calling anything
    if (spec.index != nullptr) {
      lua_pushcfunction(L, spec.index);
    } else {
      lua_pushnil(L);
    }
    lua_pushcclosure(L, index_methods, 2);
  }
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

void* find_userdata(lua_State* L, int index, const char* name) {
  if (lua_type(L, index) != LUA_TUSERDATA || lua_getmetatable(L, index) == 0) return nullptr;
  luaL_getmetatable(L, name);
  const bool same = lua_rawequal(L, -1, -2) != 0;
  lua_pop(L, 2);
  return same ? lua_touserdata(L, index) : nullptr;
}

void* new_userdata(lua_State* L, size_t size) {
  return lua_newuserdata(L, size);
}

void set_metatable(lua_State* L, const char* name) {
  luaL_getmetatable(L, name);
  lua_setmetatable(L, -2);
}

namespace {

void push_known_nodes(lua_State* L) {
  lua_pushlightuserdata(L, &known_nodes_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_isnil(L, -1)) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushlightuserdata(L, &known_nodes_key);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

}  // namespace

bool push_known(lua_State* L, const void* node, const char* name) {
  luaL_checkstack(L, 8, "too many values");
  push_known_nodes(L);
  lua_pushlightuserdata(L, const_cast<void*>(node));
  lua_rawget(L, -2);
  lua_remove(L, -2);
  if (!lua_isnil(L, -1) && find_userdata(L, -1, name) != nullptr) return true;
  lua_pop(L, 1);
  return false;
}

void remember(lua_State* L, const void* node) {
  push_known_nodes(L);
  lua_pushlightuserdata(L, const_cast<void*>(node));
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

void forget(lua_State* L, const void* node) {
  push_known_nodes(L);
  lua_pushlightuserdata(L, const_cast<void*>(node));
  lua_pushnil(L);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

void fail_closed(const char* name) {
  fail(Errc::usage, "this {} was closed; open it again to use it", name);
}

}  // namespace detail

// --- plain arguments

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
  const std::string_view text = check_string(L, index);
  if (text.empty()) fail_argument(L, index, "a path expected, got an empty text");
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

// --- options

Options::Options(lua_State* L, int index, std::initializer_list<std::string_view> known)
    : L_(L), index_(index) {
  if (lua_isnoneornil(L, index)) {
    index_ = 0;
    return;
  }
  if (!lua_istable(L, index)) fail_type(L, index, "table of options");
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING) {
      fail_argument(L, index, fmt::format("option names are texts, got a {}", type_name(L, -1)));
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
    if (lua_type(L_, -1) != LUA_TSTRING) fail_option(name, "a text");
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
    if (!number || *number < 0) fail_option(name, "a number of bytes or a text such as '512MiB'");
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
