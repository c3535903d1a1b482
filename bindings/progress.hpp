// The option `progress` of long calls: true for the standard display on stderr, or a function.
#pragma once

#include "bindings/runtime.hpp"
#include "host/streaming/write_all.hpp"

namespace cbk::lua {

/// Pushes the option's function (or nil) and returns a callback for it, empty for nil. The callback is valid
/// while the function stays on the stack. An error in the function stops the work.
std::function<void(const StreamingOptions::Progress&)> push_progress(lua_State* L, const Options& options);

}  // namespace cbk::lua
