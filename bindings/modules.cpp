#include "bindings/modules.hpp"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "host/base/interrupt.hpp"

namespace cbk::lua {
namespace {

/// `cbk.clock()`
int clock_seconds(lua_State* L) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now().time_since_epoch();
  lua_pushnumber(L, seconds.count());
  return 1;
}

/// `cbk.sleep(seconds)`: Ctrl-C ends it, noticed within a tenth of a second.
int sleep_seconds(lua_State* L) {
  const double seconds = check_number(L, 1);
  if (!(seconds >= 0 && seconds <= 1e6))
    fail(Errc::usage, "cbk.sleep: expected 0 to 1000000 seconds, found {}", seconds);
  using Clock = std::chrono::steady_clock;
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (check_interrupt(); Clock::now() < end; check_interrupt())
    std::this_thread::sleep_until(std::min(end, Clock::now() + std::chrono::milliseconds(100)));
  return 0;
}

/// `cbk.trim_memory()`: what the host has freed is given back to the system, so that Lua, which has memory of
/// its own, can have it.
int trim_memory(lua_State*) {
  malloc_trim(0);
  return 0;
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
  static const luaL_Reg functions[] = {{"clock", guarded<clock_seconds>},
                                       {"sleep", guarded<sleep_seconds>},
                                       {"trim_memory", guarded<trim_memory>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
  set_field(L, "version", std::string_view(CBK_VERSION));
  return 1;
}

}  // namespace cbk::lua
