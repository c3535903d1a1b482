#include "bindings/progress.hpp"

namespace cbk::lua {
namespace {

void push_function(lua_State* L, const Options& options) {
  options.push("progress");
  if (!lua_isboolean(L, -1)) return;
  const bool wanted = lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  if (!wanted) {
    lua_pushnil(L);
    return;
  }
  lua_getglobal(L, "require");
  lua_pushliteral(L, "cbk.progress");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "display");
  lua_remove(L, -2);
  lua_call(L, 0, 1);
}

void report(lua_State* L, int index, const StreamingOptions::Progress& progress) {
  lua_pushvalue(L, index);
  lua_createtable(L, 0, 4);
  set_integer(L, "done", progress.done);
  set_integer(L, "total", progress.total);
  set_number(L, "seconds", progress.seconds);
  set_field(L, "key", progress.key);
  if (lua_pcall(L, 1, 0, 0) == 0) return;
  const Failure failure = failure_at(L, -1);
  lua_pop(L, 1);
  throw Error(failure.code == "interrupted" ? Errc::interrupted : Errc::usage, failure.parts);
}

}  // namespace

std::function<void(const StreamingOptions::Progress&)> push_progress(lua_State* L, const Options& options) {
  push_function(L, options);
  const int function = lua_gettop(L);
  if (lua_isnil(L, function)) return {};
  if (!lua_isfunction(L, function))
    fail(Errc::usage, "option 'progress' should be true, false or a function");
  return [L, function](const StreamingOptions::Progress& progress) { report(L, function, progress); };
}

}  // namespace cbk::lua
