#include "bindings/unfinished.hpp"

#include <algorithm>

namespace cbk::lua {
namespace {

char unfinished_key;  // its address is a key of the registry

/// Pushes the table from a value to its problem.
void push_table(lua_State* L) {
  lua_pushlightuserdata(L, &unfinished_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_isnil(L, -1)) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushlightuserdata(L, &unfinished_key);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

/// Pops the problem (or nil) at the top, and records it for the value at `index`.
void note(lua_State* L, int index) {
  lua_pushvalue(L, index);
  lua_insert(L, -2);
  push_table(L);
  lua_insert(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

}  // namespace

void mark_unfinished(lua_State* L, int index, std::string_view problem) {
  push(L, problem);
  note(L, index < 0 ? index - 1 : index);
}

void mark_finished(lua_State* L, int index) {
  if (lua_isnoneornil(L, index)) return;  // a method called without its object: another check reports it
  lua_pushnil(L);
  note(L, index < 0 ? index - 1 : index);
}

std::vector<std::string> unfinished(lua_State* L) {
  std::vector<std::string> out;
  push_table(L);
  lua_pushnil(L);
  while (lua_next(L, -2) != 0) {
    out.emplace_back(check_string(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace cbk::lua
