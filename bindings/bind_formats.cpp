// Low-level access to files that need not be whole checkpoints: cbk.gguf, cbk.pickle, cbk.safetensors,
// cbk.tensorflow. Formats by file name: cbk.format_of_name, cbk.suffixes.
#include <algorithm>

#include "bindings/modules.hpp"
#include "host/checkpoint/formats.hpp"
#include "host/formats/gguf/header.hpp"
#include "host/formats/hdf5/inspect.hpp"
#include "host/formats/safetensors/header.hpp"
#include "host/formats/tensorflow/event.hpp"
#include "host/formats/tensorflow/foreign.hpp"
#include "host/formats/torch/disassembler.hpp"
#include "host/formats/torch/globals.hpp"
#include "host/formats/torch/legacy.hpp"
#include "host/formats/zip/archive.hpp"
#include "host/value/kind.hpp"

namespace cbk::lua {

template <>
struct TypeName<torch::Disassembler> {
  static constexpr const char* value = "Opcodes";
};

namespace {

/// cbk.pickle.records(path): the members of a zip archive in the order of its directory.
int pickle_records(lua_State* L) {
  const fs::path path = check_path(L, 1);
  const auto file = MappedFile::open(path);  // the names are views into it
  const zip::Archive archive = within(path.string(), [&] {
    if (torch::legacy_magic_size(as_text(file->bytes())) > 0)
      fail(Errc::unsupported,
           "a legacy torch file is not an archive; use cbk.pickle.opcodes to see its pickles");
    return zip::Archive(file);
  });
  lua_createtable(L, static_cast<int>(archive.entries().size()), 0);
  int position = 0;
  for (const zip::Entry& entry : archive.entries()) {
    lua_createtable(L, 0, 5);
    set_field(L, "name", entry.name);
    set_integer(L, "size", entry.size);
    set_integer(L, "offset", entry.header_offset);
    set_integer(L, "crc", entry.crc32);
    set_boolean(L, "compressed", entry.method != 0);
    lua_rawseti(L, -2, ++position);
  }
  return 1;
}

/// `cbk.pickle.verify(path)`: compares the checksums of all records; returns the number of records.
int pickle_verify(lua_State* L) {
  const fs::path path = check_path(L, 1);
  const size_t count = within(path.string(), [&] {
    const auto file = MappedFile::open(path);
    if (torch::legacy_magic_size(as_text(file->bytes())) > 0)
      fail(Errc::unsupported, "a legacy torch file has no checksums");
    const zip::Archive archive(file);
    if (!archive.has_checksums()) fail(Errc::unsupported, "the archive was written without checksums");
    for (const zip::Entry& entry : archive.entries()) archive.verify(entry);
    return archive.entries().size();
  });
  push_unsigned(L, count);
  return 1;
}

/// Upvalue: the Disassembler.
int next_opcode(lua_State* L) {
  const auto opcode = check<torch::Disassembler>(L, lua_upvalueindex(1))->next();
  if (!opcode) return 0;
  lua_createtable(L, 0, 3);
  set_integer(L, "offset", opcode->offset);
  set_field(L, "name", opcode->name);
  set_field(L, "argument", opcode->argument);
  return 1;
}

int pickle_opcodes(lua_State* L) {
  const fs::path path = check_path(L, 1);
  push(L,
       within(path.string(), [&] { return std::make_shared<torch::Disassembler>(MappedFile::open(path)); }));
  lua_pushcclosure(L, guarded<next_opcode>, 1);
  return 1;
}

/// cbk.pickle.globals(path): the globals in the pickles of a torch file.
int pickle_globals(lua_State* L) {
  const fs::path path = check_path(L, 1);
  const auto globals = within(path.string(), [&] { return torch::named_globals(MappedFile::open(path)); });
  lua_createtable(L, static_cast<int>(globals.size()), 0);
  int position = 0;
  for (const torch::NamedGlobal& global : globals) {
    lua_createtable(L, 0, 3);
    set_field(L, "name", global.name);
    set_integer(L, "offset", global.offset);
    set_field(L, "kind", torch::name_of(global.kind));
    lua_rawseti(L, -2, ++position);
  }
  return 1;
}

int safetensors_inspect(lua_State* L) {
  const fs::path path = check_path(L, 1);
  const auto header =
      within(path.string(), [&] { return safetensors::read_header(*MappedFile::open(path)); });
  lua_createtable(L, 0, 3);
  set_integer(L, "data_start", header.data_start);
  push(L, header.metadata);
  lua_setfield(L, -2, "metadata");
  lua_createtable(L, static_cast<int>(header.entries.size()), 0);
  int position = 0;
  for (const safetensors::Entry& entry : header.entries) {
    lua_createtable(L, 0, 5);
    set_field(L, "name", entry.name);
    set_field(L, "dtype", entry.dtype->name);
    push_integers(L, entry.shape);
    lua_setfield(L, -2, "shape");
    set_integer(L, "begin", entry.begin);
    set_integer(L, "stop", entry.end);
    lua_rawseti(L, -2, ++position);
  }
  lua_setfield(L, -2, "tensors");
  return 1;
}

int h5_inspect(lua_State* L) {
  push(L, hdf5::inspect(check_path(L, 1)));
  return 1;
}

/// cbk.formats(): all formats, as records.
int formats(lua_State* L) {
  lua_newtable(L);
  int position = 0;
  for (const Format& format : all_formats()) {
    lua_createtable(L, 0, 6);
    set_field(L, "name", format.name);
    push_strings(L, std::vector<std::string>(format.suffixes.begin(), format.suffixes.end()));
    lua_setfield(L, -2, "suffixes");
    set_boolean(L, "read", format.read != nullptr);
    set_boolean(L, "written", format.is_written());
    set_boolean(L, "shards", format.has_shards());
    set_boolean(L, "prefix", format.write_files != nullptr);
    lua_rawseti(L, -2, ++position);
  }
  return 1;
}

/// cbk.format_of_name(path): the format of the suffix if it can be written, or nil.
int format_of_name(lua_State* L) {
  const Format* format = format_of_suffix(check_path(L, 1));
  format != nullptr && format->is_written() ? push(L, format->name) : lua_pushnil(L);
  return 1;
}

/// cbk.suffixes(): all suffixes of formats, as text.
int suffixes(lua_State* L) {
  push(L, std::string_view(list_of_suffixes()));
  return 1;
}

/// cbk.tensorflow.event(wall_time [, step, { tag = number }]): a record of an event file, the tags sorted;
/// without a step the one that a file begins with.
int tensorflow_event(lua_State* L) {
  const double wall_time = check_number(L, 1);
  if (lua_isnoneornil(L, 2)) {
    push(L, std::string_view(tensorflow::first_event_record(wall_time)));
    return 1;
  }
  const int64_t step = check_integer(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  std::vector<tensorflow::Scalar> scalars;
  for (lua_pushnil(L); lua_next(L, 3) != 0; lua_pop(L, 1)) {
    lua_pushvalue(L, -2);  // reading a number as text would change the key
    scalars.push_back({std::string(check_string(L, -1)), static_cast<float>(check_number(L, -2))});
    lua_pop(L, 1);
  }
  std::ranges::sort(scalars, {}, &tensorflow::Scalar::tag);
  push(L, std::string_view(tensorflow::event_record(wall_time, step, scalars)));
  return 1;
}

/// cbk.tensorflow.texts(object): the strings of a string tensor, in C order.
int tensorflow_texts(lua_State* L) {
  const Value value = to_value(L, 1);
  if (!tensorflow::is_foreign(value)) fail(Errc::usage, "a string tensor expected, got {}", a_kind(value));
  const tensorflow::ForeignTensor tensor = tensorflow::to_foreign(value);
  if (tensor.dtype->kind != tensorflow::DTypeInfo::Kind::string) {
    fail(Errc::usage, "a string tensor expected, got a tensor of {}", tensor.dtype->name);
  }
  const Bytes bytes = tensor.elements.to_bytes();
  const auto texts = tensorflow::decode_texts(bytes, numel_of(tensor.shape));
  lua_createtable(L, static_cast<int>(texts.size()), 0);
  int position = 0;
  for (const std::string_view text : texts) {
    push(L, text);
    lua_rawseti(L, -2, ++position);
  }
  return 1;
}

/// cbk.gguf.texts(object): the texts of a long array.
int gguf_texts(lua_State* L) {
  const Value value = to_value(L, 1);
  if (!value.is(Value::Kind::object) || value.as_object().type != gguf::texts_type)
    fail(Errc::usage, "an object of the type {} expected, got {}", gguf::texts_type, a_kind(value));
  push_strings(L, gguf::texts_of(value.as_object()));
  return 1;
}

}  // namespace

void bind_formats(lua_State* L) {
  register_type<torch::Disassembler>(L, {});
  static const luaL_Reg pickle[] = {{"records", guarded<pickle_records>},
                                    {"opcodes", guarded<pickle_opcodes>},
                                    {"globals", guarded<pickle_globals>},
                                    {"verify", guarded<pickle_verify>},
                                    {nullptr, nullptr}};
  set_group(L, "pickle", pickle);
  static const luaL_Reg safetensors[] = {{"inspect", guarded<safetensors_inspect>}, {nullptr, nullptr}};
  set_group(L, "safetensors", safetensors);
  static const luaL_Reg h5[] = {{"inspect", guarded<h5_inspect>}, {nullptr, nullptr}};
  set_group(L, "h5", h5);
  static const luaL_Reg tensorflow[] = {
      {"texts", guarded<tensorflow_texts>}, {"event", guarded<tensorflow_event>}, {nullptr, nullptr}};
  set_group(L, "tensorflow", tensorflow);
  static const luaL_Reg gguf[] = {{"texts", guarded<gguf_texts>}, {nullptr, nullptr}};
  set_group(L, "gguf", gguf);
  static const luaL_Reg functions[] = {{"formats", guarded<formats>},
                                       {"format_of_name", guarded<format_of_name>},
                                       {"suffixes", guarded<suffixes>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
