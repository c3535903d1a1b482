// The functions that register each type in the native module, and the module itself.
#pragma once

#include "bindings/runtime.hpp"

namespace cbk::lua {

// Each registers its types and sets its functions in the module table at the top of the stack.
void bind_value(lua_State* L);
void bind_dict(lua_State* L);
void bind_list(lua_State* L);
void bind_tree(lua_State* L);
void bind_rows(lua_State* L);
void bind_rewrite(lua_State* L);
void bind_tensor(lua_State* L);
void bind_tensor_functions(lua_State* L);
void bind_merge(lua_State* L);
void bind_low_rank(lua_State* L);
void bind_variable(lua_State* L);
void bind_compute(lua_State* L);
void bind_text(lua_State* L);
void bind_fs(lua_State* L);
void bind_config(lua_State* L);
void bind_checkpoint(lua_State* L);
void bind_output(lua_State* L);
void bind_job(lua_State* L);
void bind_team(lua_State* L);
void bind_formats(lua_State* L);
void bind_h5_edit(lua_State* L);  // after bind_formats, which makes cbk.h5
void bind_terminal(lua_State* L);

/// `require "cbk.native"`.
int open_native(lua_State* L);

}  // namespace cbk::lua
