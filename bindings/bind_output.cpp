// Output: a checkpoint to be written. Lua fills its tree, `plan` reports what a commit would do, `commit`
// streams it.
#include <algorithm>
#include <unordered_set>

#include "bindings/containers.hpp"
#include "bindings/job.hpp"
#include "bindings/modules.hpp"
#include "bindings/progress.hpp"
#include "bindings/unfinished.hpp"
#include "host/base/replaced.hpp"
#include "host/base/team.hpp"
#include "host/checkpoint/make_writer.hpp"
#include "host/streaming/forecast.hpp"
#include "host/streaming/provenance.hpp"
#include "host/tensor/expression.hpp"
#include "host/value/values_digest.hpp"
#include "host/value/walk.hpp"

namespace cbk::lua {

/// A copy of a container that a script gave, and how often each container in that one had been changed.
struct OwnCopy {
  Value copy;
  std::vector<std::pair<Value, uint32_t>> given;
};

/// The tree that a script gives stays the script's: `out[key] = value` changes a copy, and so does what is
/// read from the output. What the script still changes in its own tree after that would be lost, and is an
/// error.
struct Output {
  fs::path target;
  WriteOptions options;
  Value root;
  std::vector<OwnCopy> own;  // the tree and the containers at its top that are the output's own
  bool is_written = false;
};
template <>
struct TypeName<Output> {
  static constexpr const char* value = "Output";
};
template <>
struct TypeName<const MappedFile> {
  static constexpr const char* value = "SourceFile";
};

namespace {

std::shared_ptr<Output> this_output(lua_State* L) {
  return check<Output>(L, 1);
}

void read_companions(lua_State* L, const Options& options, WriteOptions& out) {
  if (!options.has("companions")) return;
  options.push("companions");
  const Value companions = to_value(L, -1);
  lua_pop(L, 1);
  for (const auto& [name, content] : companions.as_dict().entries()) {
    out.companions.emplace_back(name.as_string(), content.as_string());
  }
}

void read_shards(lua_State* L, const Options& options, WriteOptions& out) {
  if (!options.has("shards")) return;
  options.push("shards");
  const Value shards = to_value(L, -1);
  lua_pop(L, 1);
  for (const auto& [name, number] : shards.as_dict().entries()) {
    if (!number.is(Value::Kind::integer) || number.as_int() < 1)
      fail(Errc::usage, "shards: expected a number from 1 for each name");
    out.shards.emplace(name.as_string(), static_cast<uint64_t>(number.as_int()));
  }
}

Compression check_compression(const std::string& name) {
  if (name.empty()) return Compression::none;
  if (name == "deflate") return Compression::deflate;
  if (name == "lz4") return Compression::lz4;
  if (name == "zstd") return Compression::zstd;
  fail(Errc::usage, "compression: expected deflate, lz4 or zstd, got {}", quote(name));
}

bool is_own(const Output& output, const Value& container) {
  return std::any_of(output.own.begin(), output.own.end(),
                     [&](const OwnCopy& one) { return one.copy.same(container); });
}

bool is_container(const Value& value) {
  return value.is(Value::Kind::dict) || value.is(Value::Kind::sequence);
}

/// A copy of what a script gave; the containers at the top of a copied tree are the output's own as well.
Value own_copy(Output& output, const Value& given) {
  OwnCopy& own = output.own.emplace_back(OwnCopy{deep_copy(given), {}});
  each_container(given, [&](const Value& container, const Edits& edits) {
    own.given.emplace_back(container, edits.count);
  });
  return own.copy;
}

/// Makes the tree the output's own.
void own_tree(Output& output) {
  if (is_own(output, output.root) || !output.root.is(Value::Kind::dict)) return;
  output.root = own_copy(output, output.root);
  for (const auto& [key, value] : output.root.as_dict().entries()) {
    if (is_container(value)) output.own.push_back({value, {}});
  }
}

/// Makes the container at the top under a key the output's own, if there is one.
void own_part(Output& output, const Value& key) {
  own_tree(output);
  const Value* value = output.root.is(Value::Kind::dict) ? output.root.as_dict().find(key) : nullptr;
  if (value == nullptr || !is_container(*value) || is_own(output, *value)) return;
  Value copy = own_copy(output, *value);
  output.root.as_dict().set(key, std::move(copy));
}

void check_given(const Output& output) {
  const auto is_in_tree = [&](const Value& copy) {
    if (copy.same(output.root)) return true;
    const auto parts = output.root.as_dict().entries();
    return std::any_of(parts.begin(), parts.end(),
                       [&](const auto& entry) { return entry.second.same(copy); });
  };
  for (const OwnCopy& one : output.own) {
    for (const auto& [container, count] : one.given) {
      const uint32_t now = container.is(Value::Kind::dict) ? container.as_dict().edits.count
                                                           : container.as_sequence().edits.count;
      if (now == count || !is_in_tree(one.copy)) continue;
      fail(Errc::usage,
           "the tree for {} was changed after `out[key] = value` had made the output's own of it, so that "
           "the "
           "change would be lost: give a tree when it is complete, or change that of out:root()",
           quote(output.target.string()));
    }
  }
}

int create(lua_State* L) {
  const Options options(
      L, 2,
      {"root", "overwrite", "format", "h5_version", "framework_version", "shard_size", "shards",
       "single_file", "shard_stem", "keep_texts", "metadata", "companions", "compression"});
  auto output = std::make_shared<Output>();
  output->target = check_path(L, 1);
  output->options.overwrite = options.flag("overwrite") || is_replay();
  output->options.format = options.text("format");
  output->options.h5_version = options.text("h5_version");
  output->options.framework_version = options.text("framework_version");
  output->options.shard_size = options.size("shard_size");
  output->options.single_file = options.flag("single_file");
  output->options.compression = check_compression(options.text("compression"));
  read_shards(L, options, output->options);
  output->options.shard_stem = options.text("shard_stem");
  output->options.keep_texts = options.flag("keep_texts");
  if (options.has("metadata")) {
    options.push("metadata");
    output->options.metadata = to_value(L, -1);
  }
  read_companions(L, options, output->options);
  output->root = Value::dict();
  output->own.push_back({output->root, {}});
  if (options.has("root")) {
    options.push("root");
    output->root = to_value(L, -1);
  }
  const bool is_prefix = output->options.format == "tensorflow" || output->options.format == "tf";
  output->options.may_exist = job_of(output->target) != nullptr;
  if (!is_prefix) refuse_existing(output->target, output->options.overwrite || output->options.may_exist);
  const std::string problem = fmt::format(
      "cannot write {}: out:commit() is missing; call it, or out:close() if nothing is to be written",
      quote(output->target.string()));
  push(L, std::move(output));
  mark_unfinished(L, -1, problem);
  return 1;
}

/// The output, if it can still change.
std::shared_ptr<Output> unwritten(lua_State* L, int index = 1) {
  auto output = check<Output>(L, index);
  if (output->is_written)
    fail(Errc::usage, "'{}' was already written; use cbk.create for another output", output->target.string());
  return output;
}

constexpr std::string_view model_part = "model.";

/// The place of a key: in the tree's dict, or in the model's. A Cerebras checkpoint has a state dict below
/// "model", and a script that copies tensors by their whole keys ("model.layers.0.weight") means that one.
struct KeyPlace {
  Dict* dict;  // nullptr: there is no model yet
  Value key;
};

KeyPlace place_of(const Output& output, Value key) {
  Dict& top = output.root.as_dict();
  const bool is_below_model = key.is(Value::Kind::string) && key.as_string().starts_with(model_part) &&
                              top.find(key) == nullptr && makes_tree(output.target, output.options);
  if (!is_below_model) return {&top, std::move(key)};
  const Value* model = output.root.find("model");
  if (model != nullptr && !model->is(Value::Kind::dict)) return {&top, std::move(key)};
  return {model == nullptr ? nullptr : &model->as_dict(), key.as_string().substr(model_part.size())};
}

const Value* find(const Output& output, const Value& key) {
  const KeyPlace place = place_of(output, key);
  return place.dict == nullptr ? nullptr : place.dict->find(place.key);
}

/// The same for a script, which may change a container that it gets.
const Value* find_own(Output& output, const Value& key) {
  const Value* value = find(output, key);
  if (value == nullptr || !is_container(*value) || output.is_written) return value;
  own_part(output, key);
  return find(output, key);
}

/// Fails for dotted keys at the top: such a file would look like a tree without being one.
void refuse_dotted(const Output& output, const Value& key, const Value& value) {
  if (!key.is(Value::Kind::string) || key.as_string().find('.') == std::string::npos) return;
  if (!makes_tree(output.target, output.options) || output.root.as_dict().find(key) != nullptr) return;
  const std::string& text = key.as_string();
  const std::string usual = value.is(Value::Kind::tensor)
                                ? fmt::format("for a weight of the model write out[{}] = tensor",
                                              quote(std::string(model_part) + text))
                                : fmt::format("assign whole parts, as in out.{} = cbk.dict {{ … }}",
                                              text.substr(0, text.find('.')));
  fail(Errc::key,
       "cannot set {} in '{}': an H5 checkpoint is a tree, and only below 'model' are keys with dots; {}, "
       "or "
       "the "
       "whole tree with cbk.create(path, {{ root = tree }}); h5_version = \"flat\" makes a file without a "
       "tree",
       quote(text, 1000), output.target.string(), usual);
}

/// A key with dots that is one of a dict in the output would be a second value of the same name.
void refuse_second(const Output& output, const Value& key) {
  if (!key.is(Value::Kind::string) || output.root.as_dict().find(key) != nullptr) return;
  const std::string& text = key.as_string();
  for (size_t dot = text.find('.'); dot != std::string::npos; dot = text.find('.', dot + 1)) {
    const Value* part = output.root.find(text.substr(0, dot));
    const std::string rest = text.substr(dot + 1);
    if (part == nullptr || !part->is(Value::Kind::dict) || part->find(rest) == nullptr) continue;
    fail(Errc::key, "cannot set {} in '{}': its dict {} has {}; set it there, as in out[{}][{}] = value",
         quote(text, 1000), output.target.string(), quote(text.substr(0, dot)), quote(rest, 1000),
         quote(text.substr(0, dot)), quote(rest, 1000));
  }
}

/// Keys only: facts about the output itself are methods, so that any key can be set.
int output_index(lua_State* L) {
  const auto output = this_output(L);
  const Value key = key_at(L, 2);
  const Value* value = find_own(*output, key);
  const Dict& dict = output->root.as_dict();
  if (value == nullptr) {
    std::vector<std::string> known = method_names(L, 1);
    for (const auto& [other, ignored] : dict.entries()) known.push_back(key_text(other));
    fail_member(quote(output->target.string()), key_text(key), known,
                "out:get(key) returns nil for a key that is not set");
  }
  push(L, *value);
  return 1;
}

int output_get(lua_State* L) {
  const Value* value = find_own(*this_output(L), key_at(L, 2));
  value == nullptr ? lua_pushnil(L) : push(L, *value);
  return 1;
}

int output_has(lua_State* L) {
  lua_pushboolean(L, find(*this_output(L), key_at(L, 2)) != nullptr);
  return 1;
}

int output_newindex(lua_State* L) {
  const auto output = unwritten(L);
  const Value key = key_at(L, 2);
  const bool is_removal = lua_isnil(L, 3);
  Value value = is_removal ? Value() : within(quote(key_text(key)), [&] { return to_value(L, 3); });
  own_tree(*output);
  if (key.is(Value::Kind::string) && key.as_string().starts_with(model_part))
    own_part(*output, Value("model"));
  KeyPlace place = place_of(*output, key);
  Dict& top = output->root.as_dict();
  if (place.dict == nullptr) {
    if (is_removal) return 0;
    const Value model = Value::dict();
    output->own.push_back({model, {}});
    top.set("model", model);
    place.dict = &model.as_dict();
  }
  if (place.dict == &top && !is_removal) {
    refuse_dotted(*output, key, value);
    refuse_second(*output, key);
  }
  if (is_removal) {
    place.dict->erase(place.key);
  } else {
    place.dict->set(std::move(place.key), std::move(value));
  }
  return 0;
}

int root(lua_State* L) {
  const auto output = this_output(L);
  if (!output->is_written) own_tree(*output);
  push(L, output->root);
  return 1;
}

int set_root(lua_State* L) {
  const auto output = unwritten(L);
  output->root = to_value(L, 2);
  return 0;
}

int path(lua_State* L) {
  push(L, std::string_view(this_output(L)->target.native()));
  return 1;
}

StreamingOptions streaming_options(const Options& options) {
  StreamingOptions out;
  out.threads = static_cast<int>(options.integer("threads", 0, 1024).value_or(0));
  out.memory = options.size("memory").value_or(out.memory);
  out.sync = options.flag("sync");
  out.allow_overflow = options.flag("allow_overflow");
  out.max_expansion = options.size("max_expansion");
  return out;
}

/// Pushes the effects of a commit, as a table that prints well.
int push_plan(lua_State* L, const Forecast& forecast, const std::vector<std::string>& warnings) {
  lua_createtable(L, 0, 7);
  set_integer(L, "bytes_read", forecast.bytes_read);
  set_integer(L, "bytes_written", forecast.bytes_written);
  set_integer(L, "peak_memory", forecast.peak_memory);
  set_integer(L, "tensors", forecast.tensors);
  push_strings(L, forecast.lossy);
  lua_setfield(L, -2, "lossy");
  push_strings(L, warnings);
  lua_setfield(L, -2, "warnings");
  luaL_getmetatable(L, "cbk.Plan");
  lua_setmetatable(L, -2);
  return 1;
}

/// A list of { key, dtype, numel, overflowed, changed, vanished }.
void push_lost(lua_State* L, const std::vector<LostValues>& lost) {
  lua_createtable(L, static_cast<int>(lost.size()), 0);
  for (size_t i = 0; i < lost.size(); ++i) {
    const auto& [key, dtype, numel, losses] = lost[i];
    lua_createtable(L, 0, 6);
    set_field(L, "key", key);
    set_field(L, "dtype", name_of(dtype));
    set_integer(L, "numel", static_cast<uint64_t>(numel));
    set_integer(L, "overflowed", static_cast<uint64_t>(losses.overflowed));
    set_integer(L, "changed", static_cast<uint64_t>(losses.changed));
    set_integer(L, "vanished", static_cast<uint64_t>(losses.vanished));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

int plan(lua_State* L) {
  const auto output = this_output(L);
  const Options options(L, 2, {"threads", "memory", "sync", "allow_overflow", "max_expansion"});
  mark_finished(L, 1);
  check_given(*output);
  const auto writer = make_writer(output->root, output->target, output->options);
  return push_plan(L, forecast(*writer, streaming_options(options)), writer->warnings());
}

int plan_tostring(lua_State* L) {
  const auto field = [&](const char* name) {
    lua_getfield(L, 1, name);
    const auto value = static_cast<uint64_t>(to_integer(L, -1).value_or(0));
    lua_pop(L, 1);
    return value;
  };
  const auto names = [&](const char* name) {
    std::vector<std::string> out;
    lua_getfield(L, 1, name);
    const int list = lua_gettop(L);
    for (size_t i = 1; lua_istable(L, list) && i <= lua_objlen(L, list); ++i) {
      lua_rawgeti(L, list, static_cast<int>(i));
      out.emplace_back(check_string(L, -1));
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return out;
  };
  std::string text =
      fmt::format("reads {}, writes at most {} ({} stored tensor{}), memory for blocks {}",
                  format_size(field("bytes_read")), format_size(field("bytes_written")), field("tensors"),
                  field("tensors") == 1 ? "" : "s", format_size(field("peak_memory")));
  const auto lossy = names("lossy");
  if (!lossy.empty()) text += "\nmay lose precision (values are not read): " + shown(listed(lossy, 5));
  for (const std::string& warning : names("warnings")) text += "\nwarning: " + one_line(warning);
  push(L, std::string_view(text));
  return 1;
}

Options commit_options(lua_State* L) {
  return {
      L,
      2,
      {"threads", "memory", "sync", "allow_overflow", "max_expansion", "progress", "sources", "provenance"}};
}

/// The current state of a file that is not a checkpoint, for the option `sources`.
int source_file(lua_State* L) {
  push(L, MappedFile::open(check_path(L, 1)));
  return 1;
}

SourceFiles sources_of(lua_State* L, const Options& options) {
  SourceFiles files;
  options.push("sources");
  for (size_t i = 1; lua_istable(L, -1) && i <= lua_objlen(L, -1); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i));
    files.insert(check<const MappedFile>(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return files;
}

/// What outputs that are committed together are made of.
std::string origin_of(const std::vector<std::shared_ptr<Output>>& outputs,
                      const StreamingOptions& streaming) {
  SourceFiles files = streaming.inputs;
  std::unordered_set<const Expression*> seen;
  for (const auto& output : outputs) {
    each_leaf(output->root, [&](const std::string&, const Value& leaf) {
      if (leaf.is(Value::Kind::tensor)) add_source_files(*leaf.as_tensor().expression(), files, seen);
    });
  }
  return origin_text(*streaming.provenance, files);
}

/// Streams `outputs` and commits them as one; pushes the plan of each, in order.
void commit_all(lua_State* L, const std::vector<std::shared_ptr<Output>>& outputs, const Options& options) {
  StreamingOptions streaming = streaming_options(options);
  streaming.progress = push_progress(L, options);
  if (!outputs.empty()) streaming.job = job_of(outputs[0]->target);
  streaming.is_replay = streaming.job != nullptr && streaming.job->action == JobOptions::Action::replay;
  if (options.has("provenance") || streaming.is_replay) {
    streaming.provenance.emplace(ProvenanceOptions{words_of(L, options, "provenance"), CBK_VERSION, {}});
    for (const auto& output : outputs) {
      const fs::path file = provenance_of(output->target);
      if (!streaming.is_replay) refuse_existing(file, output->options.overwrite || streaming.job != nullptr);
      streaming.provenance->files.push_back(file);
    }
  }
  streaming.inputs = sources_of(L, options);
  const std::string origin = options.has("provenance") ? origin_of(outputs, streaming) : "";
  std::vector<std::unique_ptr<Writer>> writers;
  std::vector<Forecast> planned;
  for (const auto& output : outputs) {
    check_given(*output);
    output->options.origin = origin;
    writers.push_back(make_writer(output->root, output->target, output->options));
    planned.push_back(forecast(*writers.back(), streaming));
  }
  Transaction transaction;
  const bool is_shared = streaming.job != nullptr || !Team::world().is_alone();
  for (const auto& output : outputs) {
    streaming.targets.push_back(output->target);
    streaming.values.push_back(is_shared ? values_digest(output->root) : "");
  }
  std::vector<Writer*> all;
  all.reserve(writers.size());
  for (const auto& writer : writers) all.push_back(writer.get());
  Written written = write_all(all, streaming, transaction);
  written.lost.resize(outputs.size());
  if (written.is_committed && streaming.job) end_job(written.job);
  if (!written.is_committed) end_with_job(L, *streaming.job, written);
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i]->is_written = true;
    std::vector<std::string> warnings = writers[i]->warnings();
    for (std::string& warning : warnings_of(written.lost[i])) warnings.push_back(std::move(warning));
    push_plan(L, planned[i], warnings);
    push_lost(L, written.lost[i]);
    lua_setfield(L, -2, "lost");
  }
}

int output_commit(lua_State* L) {
  const auto output = unwritten(L);
  const Options options = commit_options(L);
  mark_finished(L, 1);
  commit_all(L, {output}, options);
  return 1;
}

/// cbk.commit(outputs, options): all of them, or none; a list of plans.
int commit_together(lua_State* L) {
  if (!lua_istable(L, 1)) fail(Errc::usage, "cbk.commit expects a list of outputs made by cbk.create");
  const Options options = commit_options(L);
  std::vector<std::shared_ptr<Output>> outputs;
  const auto count = static_cast<int>(lua_objlen(L, 1));
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, 1, i);
    outputs.push_back(unwritten(L, lua_gettop(L)));
    mark_finished(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  if (lua_checkstack(L, count + 8) == 0) fail(Errc::usage, "cbk.commit: too many outputs");
  commit_all(L, outputs, options);
  lua_createtable(L, count, 0);
  lua_insert(L, -(count + 1));
  for (int i = count; i >= 1; --i) lua_rawseti(L, -(i + 1), i);
  return 1;
}

int output_close(lua_State* L) {
  mark_finished(L, 1);
  return close_box<Output>(L);
}

int output_tostring(lua_State* L) {
  if (is_closed<Output>(L, 1)) return describe_box<Output>(L);
  const auto output = this_output(L);
  push(L, std::string_view(fmt::format("Output {}", quote(output->target.string()))));
  return 1;
}

}  // namespace

void bind_output(lua_State* L) {
  static const luaL_Reg methods[] = {{"get", guarded<output_get>},
                                     {"has", guarded<output_has>},
                                     {"plan", guarded<plan>},
                                     {"commit", guarded<output_commit>},
                                     {"root", guarded<root>},
                                     {"set_root", guarded<set_root>},
                                     {"path", guarded<path>},
                                     {"close", guarded<output_close>},
                                     {nullptr, nullptr}};
  static const luaL_Reg metamethods[] = {
      {"__newindex", guarded<output_newindex>}, {"__tostring", guarded<output_tostring>}, {nullptr, nullptr}};
  register_type<Output>(L, {methods, metamethods, guarded<output_index>});
  register_type<const MappedFile>(L, {});
  luaL_newmetatable(L, "cbk.Plan");
  lua_pushcfunction(L, guarded<plan_tostring>);
  lua_setfield(L, -2, "__tostring");
  lua_pop(L, 1);
  static const luaL_Reg functions[] = {{"create", guarded<create>},
                                       {"commit", guarded<commit_together>},
                                       {"source_file", guarded<source_file>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
