#include "bindings/modules.hpp"

#include <chrono>

namespace cbk::lua {
namespace {

/// `cbk.clock()`
int clock_seconds(lua_State* L) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now().time_since_epoch();
  lua_pushnumber(L, seconds.count());
  return 1;
}

}  // namespace

int open_native(lua_State* L) {
  lua_newtable(L);
  for (auto* bind : {bind_value,   bind_dict,     bind_list,     bind_tree,
                     bind_rows,    bind_rewrite,  bind_tensor,   bind_tensor_functions,
                     bind_merge,   bind_low_rank, bind_variable, bind_compute,
                     bind_text,    bind_fs,       bind_config,   bind_checkpoint,
                     bind_output,  bind_job,      bind_team,     bind_formats,
                     bind_h5_edit, bind_terminal}) {
    bind(L);
  }
  static const luaL_Reg functions[] = {{"clock", guarded<clock_seconds>}, {nullptr, nullptr}};
  set_functions(L, functions);
  set_field(L, "version", std::string_view(CBK_VERSION));
  return 1;
}

}  // namespace cbk::lua
