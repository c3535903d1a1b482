// cbk.h5.edit: changes an H5 file without rewriting its tensors, and the trees of old checkpoints.
#include <chrono>

#include "bindings/modules.hpp"
#include "bindings/progress.hpp"
#include "bindings/reading.hpp"
#include "bindings/unfinished.hpp"
#include "host/formats/h5/edit.hpp"
#include "host/formats/h5/spec_v04.hpp"

namespace cbk::lua {

template <>
struct TypeName<h5::FileEdit> {
  static constexpr const char* value = "H5Edit";
};

namespace {

using h5::FileEdit;

/// Runs `body` with the edit; errors name the file.
template <typename Body>
decltype(auto) with_edit(lua_State* L, Body&& body) {
  const auto edit = check<FileEdit>(L, 1);
  return within(quote(edit->path().string()), [&]() -> decltype(auto) { return body(*edit); });
}

/// The same for a change that the script must finish.
template <typename Body>
int change(lua_State* L, Body&& body) {
  with_edit(L, body);
  mark_unfinished(L, 1,
                  fmt::format("cannot change {}: edit:commit() or edit:save_as() is missing; call one, "
                              "or edit:close() if nothing is to be changed",
                              quote(check<FileEdit>(L, 1)->path().string())));
  return 0;
}

std::string name_at(lua_State* L, int index) {
  return std::string(check_string(L, index));
}

int open_edit(lua_State* L) {
  const fs::path path = check_path(L, 1);
  const OpenOptions reading = check_reading(L, 2);
  auto file = MappedFile::open(path);
  push(L, within(quote(path.string()), [&] { return std::make_shared<FileEdit>(std::move(file), reading); }));
  return 1;
}

int names(lua_State* L) {
  push_strings(L, check<FileEdit>(L, 1)->names());
  return 1;
}

int edit_has(lua_State* L) {
  lua_pushboolean(L, check<FileEdit>(L, 1)->has(name_at(L, 2)));
  return 1;
}

int attribute(lua_State* L) {
  const auto value = with_edit(L, [&](FileEdit& edit) { return edit.attribute(name_at(L, 2)); });
  if (!value) return 0;
  push(L, *value);
  return 1;
}

int scalar(lua_State* L) {
  push(L, with_edit(L, [&](FileEdit& edit) { return edit.scalar(name_at(L, 2)); }));
  return 1;
}

int is_changed(lua_State* L) {
  lua_pushboolean(L, check<FileEdit>(L, 1)->is_changed());
  return 1;
}

int set_attribute(lua_State* L) {
  return change(L, [&](FileEdit& edit) { edit.set_attribute(name_at(L, 2), name_at(L, 3)); });
}

int link(lua_State* L) {
  return change(L, [&](FileEdit& edit) { edit.link(name_at(L, 2), name_at(L, 3)); });
}

int set_value(lua_State* L) {
  const Value value = to_value(L, 3);
  return change(L, [&](FileEdit& edit) { edit.set_value(name_at(L, 2), value); });
}

int save_as(lua_State* L) {
  const fs::path target = check_path(L, 2);
  const Options options(L, 3, {"overwrite", "sync", "progress"});
  mark_finished(L, 1);
  const auto report = push_progress(L, options);
  const auto start = std::chrono::steady_clock::now();
  std::function<void(uint64_t, uint64_t)> progress;
  if (report) {
    progress = [&](uint64_t done, uint64_t total) {
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      report({done, total, seconds.count(), target.filename().string()});
    };
  }
  check<FileEdit>(L, 1)->save_as(target, options.flag("overwrite"), options.flag("sync"), progress);
  return 0;
}

int edit_commit(lua_State* L) {
  const Options options(L, 2, {"sync"});
  mark_finished(L, 1);
  check<FileEdit>(L, 1)->commit(options.flag("sync"));
  return close_box<FileEdit>(L);
}

int edit_close(lua_State* L) {
  mark_finished(L, 1);
  return close_box<FileEdit>(L);
}

/// cbk.h5.parse_spec(text): the tree of a checkpoint of format 0.1 to 0.4.
int parse_spec(lua_State* L) {
  const std::string_view text = check_string(L, 1);
  MemoryBudget memory(text.size());
  const h5::TreeSpec spec = within("__spec__", [&] { return h5::parse_spec_v04(text, memory); });
  lua_createtable(L, 0, 2);
  push_strings(L, h5::leaf_keys(spec, memory));
  lua_setfield(L, -2, "keys");
  set_field(L, "text", h5::to_spec_v04(spec));
  return 1;
}

}  // namespace

void bind_h5_edit(lua_State* L) {
  static const luaL_Reg methods[] = {{"names", guarded<names>},
                                     {"has", guarded<edit_has>},
                                     {"attribute", guarded<attribute>},
                                     {"scalar", guarded<scalar>},
                                     {"is_changed", guarded<is_changed>},
                                     {"set_attribute", guarded<set_attribute>},
                                     {"link", guarded<link>},
                                     {"set_value", guarded<set_value>},
                                     {"save_as", guarded<save_as>},
                                     {"commit", guarded<edit_commit>},
                                     {"close", guarded<edit_close>},
                                     {nullptr, nullptr}};
  register_type<FileEdit>(L, {methods});
  static const luaL_Reg functions[] = {
      {"edit", guarded<open_edit>}, {"parse_spec", guarded<parse_spec>}, {nullptr, nullptr}};
  lua_getfield(L, -1, "h5");
  set_functions(L, functions);
  lua_pop(L, 1);
}

}  // namespace cbk::lua
