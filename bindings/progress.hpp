// The option `progress` of what takes long: true for the standard display on stderr, or a function.
#pragma once

#include "bindings/runtime.hpp"
#include "host/plan/plan.hpp"

namespace cbk::lua {

/// Pushes the function that the option stands for, or nil, and gives what calls it: empty for nil. It is good
/// while the function stays on the stack. An error in the function stops the work.
std::function<void(const ExecuteOptions::Progress&)> push_progress(lua_State* L, const Options& options);

}  // namespace cbk::lua
