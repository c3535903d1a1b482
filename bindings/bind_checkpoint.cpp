// Checkpoint: the result of cbk.open, a lazy tree with facts about its files.
#include <algorithm>
#include <array>

#include "bindings/leaves.hpp"
#include "bindings/modules.hpp"
#include "bindings/reading.hpp"
#include "host/checkpoint/formats.hpp"
#include "host/checkpoint/open.hpp"
#include "host/checkpoint/sharded.hpp"
#include "host/value/walk.hpp"

namespace cbk::lua {

namespace {

std::shared_ptr<const Checkpoint> this_checkpoint(lua_State* L) {
  return check<const Checkpoint>(L, 1);
}

int open(lua_State* L) {
  const OpenOptions open_options = check_reading(L, 2);
  auto checkpoint = std::make_shared<const Checkpoint>(open_checkpoint(check_path(L, 1), open_options));
  make_read_only(checkpoint->root);
  make_read_only(checkpoint->metadata);
  push(L, std::move(checkpoint));
  return 1;
}

/// cbk.container(path): the format of a file by its first and last bytes, "index" for an index of shards; nil
/// for files that are not checkpoints.
int container(lua_State* L) {
  const auto file = MappedFile::open(check_path(L, 1));
  if (const Format* format = detect(*file)) {
    push(L, format->name);
  } else if (is_shard_index(*file)) {
    push(L, std::string_view("index"));
  } else {
    return 0;
  }
  return 1;
}

/// Names to suggest for a misspelt key: leaves, fields and methods.
std::vector<std::string> known_names(lua_State* L, const Value& root) {
  constexpr size_t most = 20'000;  // names to compare with
  std::vector<std::string> out = {"root",     "format",     "version", "path", "metadata",
                                  "warnings", "unreadable", "files",   "lost"};
  for (std::string& method : method_names(L, 1)) out.push_back(std::move(method));
  try {
    each_leaf(root, [&](const std::string& path, const Value&) {
      if (out.size() < most) out.push_back(path);
    });
  } catch (const Error&) {
    // The leaves of a tree that contains itself never end; the first ones are enough.
  }
  return out;
}

/// The keys that have `part` at their end or in their middle, as "model.lm_head.weight" has "lm_head": the
/// nearest ones.
std::vector<std::string> keys_with(const std::vector<std::string>& keys, std::string_view part) {
  const std::string sought = fmt::format(".{}.", part);
  std::vector<std::string> out;
  std::copy_if(keys.begin(), keys.end(), std::back_inserter(out), [&](const std::string& key) {
    return fmt::format(".{}.", key).find(sought) != std::string::npos;
  });
  std::vector<std::string> near = nearest(part, out, 2);
  if (near.empty() && !out.empty()) near.push_back(out.front());
  return near;
}

[[noreturn]] void fail_key(lua_State* L, const Checkpoint& checkpoint, std::string_view key) {
  const std::string name = quote(checkpoint.path.string());
  if (key == "keys" || key == "items" || key == "count")
    fail_member(name, key, {}, fmt::format("use the function cbk.{}(ckpt.root)", key));
  const std::vector<std::string> known = known_names(L, checkpoint.root);
  std::vector<std::string> whole = keys_with(known, key);
  for (std::string& one : whole) one = quote(one);
  if (!whole.empty()) fail_member(name, key, {}, fmt::format("did you mean {}?", fmt::join(whole, " or ")));
  fail_member(name, key, known, "ckpt:get(key) returns nil for a missing key");
}

int checkpoint_index(lua_State* L) {
  const auto checkpoint = this_checkpoint(L);
  if (lua_type(L, 2) != LUA_TSTRING) {
    fail(Errc::usage, "a Checkpoint is indexed by dotted keys, not by a {}; use ckpt.root for other keys",
         type_name(L, 2));
  }
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
  } else if (key == "unreadable") {
    push_strings(L, checkpoint->unreadable);
  } else if (key == "lost") {
    push_strings(L, checkpoint->lost);
  } else if (key == "files") {
    push_strings(L, {checkpoint->files.begin(), checkpoint->files.end()});
  } else if (const Value* value = find_path(checkpoint->root, key)) {
    push(L, *value);
  } else {
    fail_key(L, *checkpoint, key);
  }
  return 1;
}

/// The value at a dotted path, even if a field or method has the same name; nil if it is missing.
int checkpoint_get(lua_State* L) {
  const auto checkpoint = this_checkpoint(L);
  const Value* value = find_path(checkpoint->root, check_string(L, 2));
  value == nullptr ? lua_pushnil(L) : push(L, *value);
  return 1;
}

int checkpoint_has(lua_State* L) {
  lua_pushboolean(L, find_path(this_checkpoint(L)->root, check_string(L, 2)) != nullptr);
  return 1;
}

int refuse_checkpoint_assignment(lua_State* L) {
  fail(Errc::usage, "{} is read-only; use out = cbk.create(path) for a checkpoint whose keys can be set",
       quote(this_checkpoint(L)->path.string()));
}

/// The root with its exact kind, even if it is a number.
int raw_root(lua_State* L) {
  push_raw(L, this_checkpoint(L)->root);
  return 1;
}

template <bool only_tensors>
int iterate(lua_State* L) {
  push_leaves(L, this_checkpoint(L)->root, lua_isnoneornil(L, 2) ? "*" : check_string(L, 2), only_tensors);
  return 1;
}

int checkpoint_tostring(lua_State* L) {
  if (is_closed<const Checkpoint>(L, 1)) return describe_box<const Checkpoint>(L);
  const auto checkpoint = this_checkpoint(L);
  const std::string version = checkpoint->version.empty() ? "" : " " + checkpoint->version;
  push(L, std::string_view(fmt::format("Checkpoint {} ({}{})", quote(checkpoint->path.string()),
                                       checkpoint->format, version)));
  return 1;
}

/// cbk.read_by(how) -> how before: see ReadBy.
int read_by(lua_State* L) {
  constexpr std::array<std::string_view, 3> names = {"default", "pread", "mmap"};  // in the order of ReadBy
  const std::string_view how = check_string(L, 1);
  const auto* const name = std::ranges::find(names, how);
  if (name == names.end())
    fail(Errc::usage, "cbk.read_by: expected pread, mmap or default, got {}", quote(how));
  const ReadBy before = choose_reading(static_cast<ReadBy>(name - names.begin()));
  push(L, names.at(static_cast<size_t>(before)));
  return 1;
}

}  // namespace

void bind_checkpoint(lua_State* L) {
  static const luaL_Reg methods[] = {{"get", guarded<checkpoint_get>},
                                     {"has", guarded<checkpoint_has>},
                                     {"tensors", guarded<iterate<true>>},
                                     {"leaves", guarded<iterate<false>>},
                                     {"raw_root", guarded<raw_root>},
                                     {"close", guarded<close_box<const Checkpoint>>},
                                     {nullptr, nullptr}};
  static const luaL_Reg metamethods[] = {{"__newindex", guarded<refuse_checkpoint_assignment>},
                                         {"__tostring", guarded<checkpoint_tostring>},
                                         {nullptr, nullptr}};
  register_type<const Checkpoint>(L, {methods, metamethods, guarded<checkpoint_index>});
  static const luaL_Reg functions[] = {{"open", guarded<open>},
                                       {"container", guarded<container>},
                                       {"read_by", guarded<read_by>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
