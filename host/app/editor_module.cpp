#include "host/app/editor_module.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/runtime.hpp"
#include "host/app/line_editor.hpp"
#include "host/app/script.hpp"
#include "host/app/signals.hpp"
#include "host/base/interrupt.hpp"

namespace cbk::lua {
template <>
struct TypeName<app::LineEditor> {
  static constexpr const char* value = "LineEditor";
};
}  // namespace cbk::lua

namespace cbk::app {
namespace {

using lua::guarded;

/// Calls the Lua function in the registry. Any error there means that there is no completion, because no
/// error may pass through libedit.
LineEditor::Completion ask(lua_State* L, int reference, std::string_view line, size_t cursor) {
  LineEditor::Completion found;
  const int top = lua_gettop(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, reference);
  lua::push(L, line);
  lua_pushnumber(L, static_cast<double>(cursor));
  if (lua_pcall(L, 2, 2, 0) == 0 && lua_isnumber(L, -2) && lua_istable(L, -1)) {
    found.begin = std::min(cursor, static_cast<size_t>(lua_tonumber(L, -2)));
    const auto count = static_cast<int>(lua_objlen(L, -1));
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L, -1, i);
      size_t length = 0;
      if (const char* text = lua_tolstring(L, -1, &length)) found.candidates.emplace_back(text, length);
      lua_pop(L, 1);
    }
  }
  lua_settop(L, top);
  return found;
}

/// editor.open{ history = path, complete = function(line, cursor) return begin, { candidates } end }
int open(lua_State* L) {
  const lua::Options options(L, 1, {"history", "complete"});
  options.push("complete");
  if (!lua_isfunction(L, -1)) fail(Errc::usage, "option 'complete' should be a function");
  const int reference = luaL_ref(L, LUA_REGISTRYINDEX);
  auto complete = [L, reference](std::string_view line, size_t cursor) {
    return ask(L, reference, line, cursor);
  };
  lua::push(L, std::make_shared<LineEditor>(options.text("history"), std::move(complete)));
  return 1;
}

/// editor:read(prompt): a line, or nil and "interrupted" or "end".
int read(lua_State* L) {
  const auto editor = lua::check<LineEditor>(L, 1);
  std::string line;
  const LineEditor::Outcome outcome = editor->read(std::string(lua::check_string(L, 2)), line);
  if (outcome == LineEditor::Outcome::line) {
    lua::push(L, std::string_view(line));
    return 1;
  }
  if (outcome == LineEditor::Outcome::interrupted) reset_interrupt(L);
  lua_pushnil(L);
  lua::push(L, std::string_view(outcome == LineEditor::Outcome::interrupted ? "interrupted" : "end"));
  return 2;
}

int remember(lua_State* L) {
  lua::check<LineEditor>(L, 1)->remember(std::string(lua::check_string(L, 2)));
  return 0;
}

/// editor.call(f, ...): true and the results, or false and { error, traceback }. A Ctrl-C during the call
/// only ends the call.
int call(lua_State* L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_pushcfunction(L, with_traceback);
  lua_insert(L, 1);
  const int status = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 1);
  reset_interrupt(L);
  lua_pushboolean(L, status == 0);
  lua_replace(L, 1);
  return lua_gettop(L);
}

}  // namespace

int open_editor_module(lua_State* L) {
  static const luaL_Reg methods[] = {{"read", guarded<read>},
                                     {"remember", guarded<remember>},
                                     {"close", guarded<lua::close_box<LineEditor>>},
                                     {nullptr, nullptr}};
  lua::register_type<LineEditor>(L, {.methods = methods});
  static const luaL_Reg functions[] = {{"open", guarded<open>}, {"call", call}, {nullptr, nullptr}};
  lua_newtable(L);
  lua::set_functions(L, functions);
  return 1;
}

}  // namespace cbk::app
