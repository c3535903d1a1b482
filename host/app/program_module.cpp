#include "host/app/program_module.hpp"

#include "bindings/runtime.hpp"
#include "host/app/locations.hpp"
#include "host/app/signals.hpp"

namespace cbk::app {
namespace {

int clear_interrupt(lua_State* L) {
  reset_interrupt(L);
  return 0;
}

int commands(lua_State* L) {
  lua::push_strings(L, command_names(scripts_folder()));
  return 1;
}

int find_command_file(lua_State* L) {
  lua::push(L, std::string_view(find_command(scripts_folder(), lua::check_string(L, 1)).native()));
  return 1;
}

}  // namespace

int open_program(lua_State* L) {
  static const luaL_Reg functions[] = {{"clear_interrupt", lua::guarded<clear_interrupt>},
                                       {"commands", lua::guarded<commands>},
                                       {"find_command", lua::guarded<find_command_file>},
                                       {nullptr, nullptr}};
  lua_newtable(L);
  lua::set_functions(L, functions);
  return 1;
}

}  // namespace cbk::app
