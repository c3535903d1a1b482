#include "bindings/modules.hpp"
#include "host/base/sha256.hpp"
#include "host/base/team.hpp"
#include "host/streaming/provenance.hpp"

namespace cbk::lua {
namespace {

/// cbk.team_place(): the number of this process among those that work together, from 0, and how many they
/// are.
int team_place(lua_State* L) {
  lua_pushinteger(L, Team::world().rank());
  lua_pushinteger(L, Team::world().size());
  return 2;
}

/// cbk.team_exchange(bytes): the bytes of all processes, in their order. All have to call it.
int team_exchange(lua_State* L) {
  const std::vector<std::string> all = Team::world().exchange(std::string(check_string(L, 1)));
  lua_createtable(L, static_cast<int>(all.size()), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    lua_pushlstring(L, all[i].data(), all[i].size());
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

/// cbk.team_done(bytes): says how many bytes this process has read; returns how many the others have.
int team_done(lua_State* L) {
  Team::world().set_done(static_cast<uint64_t>(check_number(L, 1)));
  lua_pushnumber(L, static_cast<double>(Team::world().done_elsewhere()));
  return 1;
}

/// cbk.file_digest(paths): of the sizes, times, beginnings and ends of files.
int file_digest(lua_State* L) {
  if (!lua_istable(L, 1)) fail_type(L, 1, "list of paths");
  Sha256 digest;
  for (size_t i = 1; i <= lua_objlen(L, 1); ++i) {
    lua_rawgeti(L, 1, static_cast<int>(i));
    const auto file = MappedFile::open(check_path(L, -1));
    lua_pop(L, 1);
    digest.add(as_bytes(fmt::format("{} {} {}\n", file->size(), file->modified(), source_ends(*file))));
  }
  push(L, std::string_view(to_hex(digest.digest())));
  return 1;
}

}  // namespace

void bind_team(lua_State* L) {
  static const luaL_Reg functions[] = {{"team_place", guarded<team_place>},
                                       {"team_exchange", guarded<team_exchange>},
                                       {"team_done", guarded<team_done>},
                                       {"file_digest", guarded<file_digest>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
