// cbk.terminal: whether stdin, stdout and stderr are terminals, and the widths of terminals and texts.
#include <sys/ioctl.h>
#include <unistd.h>

#include "bindings/modules.hpp"
#include "host/base/columns.hpp"
#include "host/base/message.hpp"

namespace cbk::lua {
namespace {

int descriptor(lua_State* L) {
  const std::string_view name = lua_isnoneornil(L, 1) ? "stdout" : check_string(L, 1);
  if (name == "stdin") return STDIN_FILENO;
  if (name == "stdout") return STDOUT_FILENO;
  if (name == "stderr") return STDERR_FILENO;
  fail_argument(L, 1, "stdin, stdout or stderr expected");
}

int is_tty(lua_State* L) {
  lua_pushboolean(L, ::isatty(descriptor(L)));
  return 1;
}

/// Columns, or nil without a terminal.
int width(lua_State* L) {
  winsize size{};
  if (::ioctl(descriptor(L), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 0;
  lua_pushinteger(L, size.ws_col);
  return 1;
}

/// Lines, or nil without a terminal.
int height(lua_State* L) {
  winsize size{};
  if (::ioctl(descriptor(L), TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return 0;
  lua_pushinteger(L, size.ws_row);
  return 1;
}

/// `cbk.terminal.columns(text)`
int columns(lua_State* L) {
  lua_pushinteger(L, static_cast<lua_Integer>(columns_of(check_string(L, 1))));
  return 1;
}

/// `cbk.terminal.progress(text)`: shows it in the last line of stderr's terminal; "": no more.
int progress(lua_State* L) {
  show_progress(check_string(L, 1));
  return 0;
}

/// `cbk.terminal.error(text)`: prints "cbk: …" on stderr.
int error_message(lua_State* L) {
  write_message(MessageKind::error, check_string(L, 1));
  return 0;
}

}  // namespace

void bind_terminal(lua_State* L) {
  static const luaL_Reg functions[] = {{"is_tty", guarded<is_tty>},
                                       {"width", guarded<width>},
                                       {"height", guarded<height>},
                                       {"columns", guarded<columns>},
                                       {"progress", guarded<progress>},
                                       {"error", guarded<error_message>},
                                       {nullptr, nullptr}};
  set_group(L, "terminal", functions);
}

}  // namespace cbk::lua
