// cbk.rewrite: a tree with other paths and other leaves.
#include "bindings/modules.hpp"
#include "bindings/reading.hpp"
#include "host/value/rewrite.hpp"

namespace cbk::lua {
namespace {

void check_function(lua_State* L, const Options& options, const char* name) {
  options.push(name);
  if (!lua_isnil(L, -1) && !lua_isfunction(L, -1))
    fail(Errc::usage, "option '{}' should be a function", name);
}

/// The function at `index` is called with the path and the value; its result is at the top of the stack.
void call(lua_State* L, int index, const std::string& path, const Value& leaf) {
  luaL_checkstack(L, 8, "too many values");
  lua_pushvalue(L, index);
  push(L, std::string_view(path));
  push_raw(L, leaf);  // given back unchanged, it keeps its kind
  lua_call(L, 2, 1);
}

int rewrite_tree(lua_State* L) {
  const Value root = to_value(L, 1);
  const Options options(L, 2, {"path", "leaf", "checkpoint"});
  lua_settop(L, 2);
  check_function(L, options, "path");
  check_function(L, options, "leaf");
  constexpr int path_function = 3;
  constexpr int leaf_function = 4;
  Rewrite rules;
  options.push("checkpoint");
  if (!lua_isnil(L, -1)) {
    const MemoryBudget& memory = *check<const Checkpoint>(L, -1)->memory;
    rules.memory = std::make_shared<MemoryBudget>(memory.file_size());  // as much again as for its own tree
  }
  lua_pop(L, 1);
  if (!lua_isnil(L, path_function)) {
    rules.path = [L](const std::string& path, const Value& leaf) -> std::optional<std::string> {
      call(L, path_function, path, leaf);
      std::optional<std::string> chosen;
      if (lua_type(L, -1) == LUA_TSTRING) {
        chosen = std::string(check_string(L, -1));
      } else if (lua_toboolean(L, -1) != 0) {
        fail(Errc::usage, "option 'path' should return a string or nil, not a {}", type_name(L, -1));
      }
      lua_pop(L, 1);
      return chosen;
    };
  }
  if (!lua_isnil(L, leaf_function)) {
    rules.leaf = [L](const std::string& path, const Value& leaf) {
      call(L, leaf_function, path, leaf);
      Value value = within(quote(path), [&] { return to_value(L, -1); });
      lua_pop(L, 1);
      return value;
    };
  }
  push(L, rewrite(root, rules));
  return 1;
}

}  // namespace

void bind_rewrite(lua_State* L) {
  static const luaL_Reg functions[] = {{"rewrite", guarded<rewrite_tree>}, {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
