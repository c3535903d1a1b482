// Signals. First Ctrl-C: the interrupt flag for native work, and a hook that stops interpreted Lua. Second
// Ctrl-C: the program ends at once with 130. SIGBUS (an input became shorter while it was mapped) ends it
// with a clear line and 1, SIGPIPE quietly. In each case temporary files of outputs under construction are
// removed first.
#pragma once

#include <lua.hpp>

namespace cbk::app {

/// Once, before any other thread starts.
void install_signal_handlers(lua_State* L);

/// Replaces the thread that acts on signals by one with the rights that the calling thread has by now.
void restart_signal_thread();

/// For a REPL: clears an interrupt that has been handled.
void reset_interrupt(lua_State* L);

}  // namespace cbk::app
