// Errors and types; arguments.cpp and options.cpp hold the rest of runtime.hpp.
#include "bindings/runtime.hpp"

#include <algorithm>
#include <utility>

namespace cbk::lua {
namespace {

// Addresses that serve as registry keys.
char known_nodes_key;
char failure_key;
char advice_key;

/// The text parts of an error, by the names of their fields.
constexpr std::pair<const char*, std::string ErrorParts::*> text_parts[] = {
    {"problem", &ErrorParts::problem},
    {"file", &ErrorParts::file},
    {"key", &ErrorParts::key},
    {"field", &ErrorParts::field},
    {"expected", &ErrorParts::expected},
    {"found", &ErrorParts::found},
    {"supported", &ErrorParts::supported},
    {"advice", &ErrorParts::advice},
    {"where", &ErrorParts::where}};

int failure_tostring(lua_State* L) {
  push(L, std::string_view(text_of(failure_at(L, 1).parts)));
  return 1;
}

/// `message` is made on demand.
int failure_index(lua_State* L) {
  if (lua_type(L, 2) != LUA_TSTRING || check_string(L, 2) != "message") return 0;
  return failure_tostring(L);
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

}  // namespace

// --- errors

void set_overwrite_advice(lua_State* L, std::string_view advice) {
  lua_pushlightuserdata(L, &advice_key);
  push(L, advice);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

namespace {

std::string overwrite_advice(lua_State* L) {
  lua_pushlightuserdata(L, &advice_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  std::string advice = lua_isnil(L, -1) ? "remove it, choose another name or pass overwrite = true"
                                        : std::string(check_string(L, lua_gettop(L)));
  lua_pop(L, 1);
  return advice;
}

/// Pushes "file:line" of the Lua code that called this C function, perhaps through other C functions; or nil.
void push_place(lua_State* L) {
  constexpr int most_levels = 4;
  for (int level = 1; level <= most_levels; ++level) {
    luaL_where(L, level);
    size_t length = 0;
    const char* where = lua_tolstring(L, -1, &length);
    if (length > 2) lua_pushlstring(L, where, length - 2);  // without ": "
    lua_remove(L, length > 2 ? -2 : -1);
    if (length > 2) return;
  }
  lua_pushnil(L);
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {std::string(name_of(error.code())), error.parts()};
  } catch (const std::bad_alloc&) {
    return {"memory", {.problem = "not enough memory"}};
  } catch (const std::exception& error) {
    return {"internal", {.problem = error.what()}};
  }
}

void push_failure(lua_State* L, const Failure& failure) {
  lua_createtable(L, 0, 4);
  set_field(L, "code", failure.code);
  for (const auto& [name, part] : text_parts) {
    if (const std::string& text = failure.parts.*part; !text.empty()) set_field(L, name, text);
  }
  if (failure.code == "exists" && failure.parts.advice.empty()) set_field(L, "advice", overwrite_advice(L));
  if (!failure.parts.context.empty()) {
    lua_createtable(L, static_cast<int>(failure.parts.context.size()), 0);
    int position = 0;
    for (const std::string& context : failure.parts.context) {
      push(L, std::string_view(context));
      lua_rawseti(L, -2, ++position);
    }
    lua_setfield(L, -2, "context");
  }
  if (failure.parts.where.empty()) {
    push_place(L);
    lua_setfield(L, -2, "where");
  }
  lua_pushlightuserdata(L, &failure_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_createtable(L, 0, 3);
    lua_pushcfunction(L, guarded<failure_tostring>);
    lua_setfield(L, -2, "__tostring");
    lua_pushcfunction(L, guarded<failure_index>);
    lua_setfield(L, -2, "__index");
    lua_pushliteral(L, "Error");
    lua_setfield(L, -2, "__name");
    lua_pushlightuserdata(L, &failure_key);
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  lua_setmetatable(L, -2);
}

ErrorParts parts_at(lua_State* L, int index) {
  ErrorParts parts;
  for (const auto& [name, part] : text_parts) parts.*part = member(L, index, name);
  lua_pushliteral(L, "context");
  lua_rawget(L, absolute(L, index));
  const int count = lua_istable(L, -1) ? static_cast<int>(lua_objlen(L, -1)) : 0;
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, -1, i);
    if (lua_type(L, -1) == LUA_TSTRING) parts.context.emplace_back(check_string(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return parts;
}

Failure failure_at(lua_State* L, int index) {
  index = absolute(L, index);
  if (lua_istable(L, index)) {
    Failure failure{member(L, index, "code"), parts_at(L, index)};
    if (failure.parts.problem.empty()) failure.parts.problem = member(L, index, "message");
    if (!failure.parts.problem.empty()) return failure;
  }
  if (lua_isstring(L, index)) {
    lua_pushvalue(L, index);
    Failure failure{"script", {.problem = std::string(check_string(L, lua_gettop(L)))}};
    lua_pop(L, 1);
    return failure;
  }
  return {
      "script",
      {.problem = fmt::format("an error without a text was raised (a {}): raise a string, or use cbk.fail",
                              type_name(L, index))}};
}

void fail_argument(lua_State* L, int index, std::string_view what) {
  const bool has_name = lua_type(L, lua_upvalueindex(1)) == LUA_TSTRING;
  const std::string name = has_name ? lua_tostring(L, lua_upvalueindex(1)) : "";
  const size_t colon = name.find(':');
  if (colon != std::string::npos && --index == 0) {
    fail(Errc::usage, "'{}' is a method; call it with a colon, as in object{}() ({})", name,
         name.substr(colon), what);
  }
  fail(Errc::usage, "bad argument #{} {}({})", index, name.empty() ? "" : fmt::format("to '{}' ", name),
       what);
}

void fail_type(lua_State* L, int index, std::string_view expected) {
  fail_argument(L, index, fmt::format("{} expected, got {}", expected, type_name(L, index)));
}

void fail_member(std::string_view subject, std::string_view name, const std::vector<std::string>& known,
                 std::string_view advice) {
  std::vector<std::string> near = nearest(name, known, 2);
  for (std::string& one : near) one = quote(one);
  std::string message = fmt::format("{} has no {}", subject, quote(name));
  if (!near.empty()) message += fmt::format("; did you mean {}?", fmt::join(near, " or "));
  if (!advice.empty()) message += fmt::format("{} {}", near.empty() ? ";" : "", advice);
  throw Error(Errc::key, message);
}

std::vector<std::string> method_names(lua_State* L, int index) {
  std::vector<std::string> out;
  const int top = lua_gettop(L);
  if (luaL_getmetafield(L, index, "methods") != 0) {
    lua_pushnil(L);
    while (lua_next(L, top + 1) != 0) {
      lua_pop(L, 1);
      out.emplace_back(check_string(L, lua_gettop(L)));
    }
  }
  lua_settop(L, top);
  std::sort(out.begin(), out.end());
  return out;
}

std::string type_name(lua_State* L, int index) {
  if (lua_type(L, index) == LUA_TNONE) return "no value";
  if (is_int64(L, index)) return "int64";
  if (is_uint64(L, index)) return "uint64";
  if (lua_type(L, index) == LUA_TUSERDATA && lua_getmetatable(L, index) != 0) {
    std::string name = member(L, lua_gettop(L), "__name");
    lua_pop(L, 1);
    if (!name.empty()) return name;
  }
  return lua_typename(L, lua_type(L, index));
}

// --- types

void push_function(lua_State* L, const char* name, lua_CFunction function, int upvalues) {
  lua_pushstring(L, name);
  lua_insert(L, -(upvalues + 1));
  lua_pushcclosure(L, function, upvalues + 1);
}

void set_functions(lua_State* L, const luaL_Reg* functions, std::string_view owner) {
  for (; functions != nullptr && functions->name != nullptr; ++functions) {
    push_function(L, (std::string(owner) + functions->name).c_str(), functions->func);
    lua_setfield(L, -2, functions->name);
  }
}

void set_group(lua_State* L, const char* name, const luaL_Reg* functions) {
  lua_newtable(L);
  set_functions(L, functions, fmt::format("cbk.{}.", name));
  lua_setfield(L, -2, name);
}

std::vector<luaL_Reg> joined(std::initializer_list<const luaL_Reg*> tables) {
  std::vector<luaL_Reg> all;
  for (const luaL_Reg* function : tables) {
    for (; function->name != nullptr; ++function) all.push_back(*function);
  }
  all.push_back({nullptr, nullptr});
  return all;
}

namespace detail {

namespace {

/// __index of types with methods: upvalue 1 the methods, upvalue 2 the function for other keys (or nil).
int index_methods(lua_State* L) {
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(1));
  if (!lua_isnil(L, -1)) return 1;
  lua_pop(L, 1);
  if (lua_isnil(L, lua_upvalueindex(2))) {
    fail_member("this " + type_name(L, 1), check_string(L, 2), method_names(L, 1));
  }
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_insert(L, 1);
  lua_call(L, 2, 1);
  return 1;
}

/// Operators that a type does not have; upvalue 1: the message after the type's name.
int refuse_operator(lua_State* L) {
  const std::string name = type_name(L, lua_type(L, 1) == LUA_TUSERDATA ? 1 : 2);
  const std::string_view refusal = lua_tostring(L, lua_upvalueindex(1));
  const bool is_comparison = name == "Tensor" && refusal.starts_with("cannot be compared");
  fail(Errc::usage, "a {} {}{}", name, refusal,
       is_comparison ? "; a:compare(b) says how far they differ" : "");
}

/// `object(…)`; a `for` loop calls the value after `in` with two arguments.
int refuse_call(lua_State* L) {
  const bool is_loop = lua_gettop(L) == 3;
  fail(Errc::usage, "a {} is not a function{}", type_name(L, 1),
       is_loop ? "; loop over it with 'for key, value in cbk.items(x) do' (x.root of a checkpoint)" : "");
}

void set_refused_operators(lua_State* L) {
  constexpr std::pair<const char*, const char*> operators[] = {
      {"__len", "has no length"},
      {"__concat", "cannot be joined with '..'; use tostring(x)"},
      {"__lt", "cannot be compared with '<' or '>'"},
      {"__le", "cannot be compared with '<=' or '>='"},
      {"__add", "cannot be added"},
      {"__sub", "cannot be subtracted"},
      {"__mul", "cannot be multiplied"},
      {"__div", "cannot be divided"},
      {"__mod", "does not support '%'"},
      {"__pow", "does not support '^'"},
      {"__unm", "cannot be negated"}};
  for (const auto& [event, problem] : operators) {
    push_function(L, problem, guarded<refuse_operator>);
    lua_setfield(L, -2, event);
  }
  lua_pushcfunction(L, guarded<refuse_call>);
  lua_setfield(L, -2, "__call");
}

}  // namespace

void make_metatable(lua_State* L, const char* name, const TypeSpec& spec, lua_CFunction collect,
                    lua_CFunction equal, lua_CFunction tostring) {
  luaL_newmetatable(L, name);
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__name");
  const luaL_Reg common[] = {
      {"__gc", collect}, {"__eq", equal}, {"__tostring", tostring}, {nullptr, nullptr}};
  set_refused_operators(L);
  set_functions(L, common, "");
  set_functions(L, spec.metamethods, "");
  if (spec.methods == nullptr) {
    lua_pushcfunction(L, spec.index);
  } else {
    lua_newtable(L);
    set_functions(L, spec.methods, std::string(name) + ":");
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "methods");  // so that completion and help can list them without calling anything
    if (spec.index != nullptr) {
      lua_pushcfunction(L, spec.index);
    } else {
      lua_pushnil(L);
    }
    lua_pushcclosure(L, guarded<index_methods>, 2);
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
  fail(Errc::usage, "this {} is closed; open it again to use it", name);
}

}  // namespace detail

}  // namespace cbk::lua
