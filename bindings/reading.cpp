#include "bindings/reading.hpp"

namespace cbk::lua {
namespace {

std::vector<fs::path> paths(lua_State* L, const Options& options, const char* name) {
  options.push(name);
  std::vector<fs::path> out;
  if (!lua_isnil(L, -1)) {
    if (!lua_istable(L, -1))
      fail(Errc::usage, "option '{}' should be a list of paths, not a {}", name, type_name(L, -1));
    const int list = lua_gettop(L);
    const auto count = static_cast<int>(lua_objlen(L, list));
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L, list, i);
      out.push_back(check_path(L, -1));
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
  return out;
}

}  // namespace

OpenOptions check_reading(lua_State* L, int index) {
  const Options options(L, index, {"allow_records", "allow_external", "salvage", "max_expansion"});
  return {.allow_records = options.flag("allow_records"),
          .salvage = options.flag("salvage"),
          .allow_external = paths(L, options, "allow_external"),
          .max_expansion = options.size("max_expansion")};
}

}  // namespace cbk::lua
