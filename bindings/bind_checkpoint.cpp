// Checkpoint: what cbk.open gives; a lazy tree with the facts of its files.
#include "bindings/leaves.hpp"
#include "bindings/modules.hpp"
#include "host/checkpoint/checkpoint.hpp"

namespace cbk::lua {

template <>
struct TypeName<const Checkpoint> {
  static constexpr const char* value = "Checkpoint";
};

namespace {

std::shared_ptr<const Checkpoint> self(lua_State* L) {
  return check<const Checkpoint>(L, 1);
}

int open(lua_State* L) {
  const Options options(L, 2, {"allow_records"});
  const OpenOptions open_options{.allow_records = options.flag("allow_records")};
  push(L, std::make_shared<const Checkpoint>(open_checkpoint(check_path(L, 1), open_options)));
  return 1;
}

int checkpoint_index(lua_State* L) {
  const auto checkpoint = self(L);
  const std::string_view key = check_string(L, 2);
  if (key == "root") {
    push(L, checkpoint->root);
  } else if (key == "format") {
    push(L, std::string_view(checkpoint->format));
  } else if (key == "version") {
    push(L, std::string_view(checkpoint->version));
  } else if (key == "path") {
    push(L, std::string_view(checkpoint->path.native()));
  } else if (key == "metadata") {
    push(L, checkpoint->metadata);
  } else if (key == "warnings") {
    push_strings(L, checkpoint->warnings);
  } else if (key == "files") {
    push_strings(L, {checkpoint->files.begin(), checkpoint->files.end()});
  } else if (const Value* value = find_path(checkpoint->root, key)) {
    push(L, *value);
  } else {
    lua_pushnil(L);
  }
  return 1;
}

/// The root with its exact kind, also when it is a number.
int raw_root(lua_State* L) {
  push_raw(L, self(L)->root);
  return 1;
}

template <bool only_tensors>
int iterate(lua_State* L) {
  push_leaves(L, self(L)->root, lua_isnoneornil(L, 2) ? "*" : check_string(L, 2), only_tensors);
  return 1;
}

int checkpoint_tostring(lua_State* L) {
  if (is_closed<const Checkpoint>(L, 1)) return describe_box<const Checkpoint>(L);
  const auto checkpoint = self(L);
  const std::string version = checkpoint->version.empty() ? "" : " " + checkpoint->version;
  push(L, std::string_view(fmt::format("Checkpoint {} ({}{})", quote(checkpoint->path.string()),
                                       checkpoint->format, version)));
  return 1;
}

}  // namespace

void bind_checkpoint(lua_State* L) {
  static const luaL_Reg methods[] = {{"tensors", guarded<iterate<true>>},
                                     {"leaves", guarded<iterate<false>>},
                                     {"raw_root", guarded<raw_root>},
                                     {"close", guarded<close_box<const Checkpoint>>},
                                     {nullptr, nullptr}};
  static const luaL_Reg metamethods[] = {{"__tostring", guarded<checkpoint_tostring>}, {nullptr, nullptr}};
  register_type<const Checkpoint>(L, {methods, metamethods, guarded<checkpoint_index>});
  static const luaL_Reg functions[] = {{"open", guarded<open>}, {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
