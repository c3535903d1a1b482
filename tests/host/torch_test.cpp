#include <libdeflate.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstring>
#include <limits>
#include <numeric>

#include "host/formats/torch/disassembler.hpp"
#include "host/formats/torch/legacy.hpp"
#include "host/formats/torch/long_integer.hpp"
#include "host/formats/torch/pickle.hpp"
#include "host/formats/torch/pickler.hpp"
#include "host/formats/torch/reader.hpp"
#include "host/formats/torch/writer.hpp"
#include "host/formats/torch/zip.hpp"
#include "host/formats/torch/zip_writer.hpp"
#include "host/plan/plan.hpp"
#include "host/tensor/packed_storage.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/peak_memory.hpp"

using namespace cbk;
using namespace std::string_literals;
using Catch::Contains;

namespace {

// --- pickles by hand
std::string text(std::string_view value) {
  std::string out = "X";
  append_le(out, static_cast<uint32_t>(value.size()));
  return out + std::string(value);
}
std::string global(std::string_view module, std::string_view name) {
  return fmt::format("c{}\n{}\n", module, name);
}
std::string floats(std::string_view key, int numel) {
  return "(" + text("storage") + global("torch", "FloatStorage") + text(key) + text("cpu") + "K" +
         static_cast<char>(numel) + "tQ";
}
std::string repeat(std::string_view part, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += part;
  return out;
}

std::string message_of(const std::function<void()>& body, Errc code) {
  try {
    body();
  } catch (const Error& error) {
    INFO(error.what());
    REQUIRE(name_of(error.code()) == name_of(code));
    return error.what();
  }
  FAIL("no error");
  return "";
}

Value plain(const std::string& pickle) {
  return torch::unpickle("\x80\x02"s + pickle + ".", {});
}

Value number_tensor(int64_t count, float first = 0) {
  Bytes bytes(static_cast<size_t>(count) * 4);
  for (int64_t i = 0; i < count; ++i) store_le(bytes.data() + i * 4, first + static_cast<float>(i));
  return Tensor::from_bytes(DType::float32, {count}, std::move(bytes));
}

StoragePtr storage_of(const Value& value) {
  return value.as_tensor().view()->storage;
}

Value view_of(const Value& base, int64_t offset, Shape shape, Shape strides) {
  return Tensor::from_view({storage_of(base), DType::float32, offset, std::move(shape), std::move(strides)});
}

Value dict_of(std::initializer_list<std::pair<const char*, Value>> entries) {
  Value dict = Value::dict();
  for (const auto& [key, value] : entries) dict.as_dict().set(key, value);
  return dict;
}

void write(const Value& root, const fs::path& path) {
  const auto writer = torch::make_writer(root, path, false);
  execute(*writer, {});
}

Checkpoint read(const fs::path& path, bool allow_records = false) {
  OpenOptions options;
  options.allow_records = allow_records;
  return torch::read(MappedFile::open(path), options);
}

Value written_and_read(const Folder& folder, const Value& root) {
  const fs::path path = folder.path("round.pt");
  fs::remove(path);
  write(root, path);
  return read(path).root;
}

/// An archive of stored or deflated members, as any zip program makes it.
void write_zip(const fs::path& path, const std::vector<std::pair<std::string, std::string>>& members,
               bool deflate = false) {
  std::string out;
  std::string directory;
  for (const auto& [name, content] : members) {
    std::string data = content;
    if (deflate) {
      libdeflate_compressor* compressor = libdeflate_alloc_compressor(6);
      data.resize(libdeflate_deflate_compress_bound(compressor, content.size()));
      data.resize(
          libdeflate_deflate_compress(compressor, content.data(), content.size(), data.data(), data.size()));
      libdeflate_free_compressor(compressor);
    }
    std::string common;
    append_le(common, uint16_t{20});
    append_le(common, uint16_t{0});
    append_le(common, static_cast<uint16_t>(deflate ? 8 : 0));
    append_le(common, uint32_t{0});
    append_le(common, libdeflate_crc32(0, content.data(), content.size()));
    append_le(common, static_cast<uint32_t>(data.size()));
    append_le(common, static_cast<uint32_t>(content.size()));
    append_le(common, static_cast<uint16_t>(name.size()));
    append_le(common, uint16_t{0});
    directory += "PK\x01\x02"s + "\x14\x00"s + common + std::string(10, '\0');
    append_le(directory, static_cast<uint32_t>(out.size()));
    directory += name;
    out += "PK\x03\x04"s + common + name + data;
  }
  std::string end = "PK\x05\x06"s + std::string(4, '\0');
  append_le(end, static_cast<uint16_t>(members.size()));
  append_le(end, static_cast<uint16_t>(members.size()));
  append_le(end, static_cast<uint32_t>(directory.size()));
  append_le(end, static_cast<uint32_t>(out.size()));
  write_file(path, out + directory + end + "\0\0"s, true);
}

std::string tensor_pickle(const std::string& storage, int offset, int size, int stride) {
  const auto number = [](int value) { return "K"s + static_cast<char>(value); };
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + storage + number(offset) + number(size) +
         "\x85" + number(stride) + "\x85\x89" + global("collections", "OrderedDict") + ")RtR";
}

/// Opcodes of protocol 4.
std::string short_text(std::string_view s) {
  return "\x8c" + std::string(1, static_cast<char>(s.size())) + std::string(s);
}

std::string found(std::string_view module, std::string_view name) {
  return short_text(module) + short_text(name) + "\x93";
}

}  // namespace

TEST_CASE("whole numbers of any size survive their two's complement", "[torch]") {
  for (const char* digits :
       {"0", "1", "-1", "127", "128", "-128", "-129", "255", "256", "9223372036854775807",
        "-9223372036854775808", "9223372036854775808", "-9223372036854775809",
        "1267650600228229401496703205376", "-1267650600228229401496703205376"}) {
    const Value value = Value::integer(digits);
    const std::string bytes = torch::encode_long(value.as_integer());
    INFO(digits);
    CHECK(torch::decode_long(bytes).equals(value));
    if (bytes.size() > 1) {  // the shortest form
      const int high = static_cast<signed char>(bytes.back());
      const bool below = static_cast<signed char>(bytes[bytes.size() - 2]) < 0;
      CHECK_FALSE(((high == 0 && !below) || (high == -1 && below)));
    }
  }
  CHECK(torch::encode_long(Integer{255, nullptr, true}) == "\xff\x00"s);
  CHECK_THROWS_AS(torch::decode_long(std::string(9000, '\x11')), Error);
}

TEST_CASE("pickles give Python's plain values", "[torch]") {
  CHECK(plain("N").is_none());
  CHECK(plain("\x88").as_bool());
  CHECK(plain("M\x00\x01"s).as_int() == 256);
  CHECK(plain("J\xff\xff\xff\xff").as_int() == -1);
  CHECK(plain("G\xbf\xf8"s + std::string(6, '\0')).as_double() == -1.5);
  CHECK(plain(text("h\xc3\xa4")).as_string() == "hä");
  CHECK(plain(global("_codecs", "encode") + text("\0\xc3\xbf"s) + text("latin1") + "\x86R").as_bytes().data ==
        "\0\xff"s);
  CHECK(plain(global("__builtin__", "set") + "]K\x07"
                                             "a\x85R")
            .as_sequence()
            .kind == Sequence::Kind::set);
  CHECK(plain(global("torch", "device") + text("cuda") + "K\x01\x86R").as_object().repr == "cuda:1");
  CHECK(plain(global("torch", "bfloat16")).as_object().type == "torch.dtype");
  CHECK(plain(global("collections", "OrderedDict")).as_object().repr == "collections.OrderedDict");

  const Value shared = plain("(]q\x00K\x01"s + "ah\x00l"s);
  CHECK(shared.as_sequence().items[0].same(shared.as_sequence().items[1]));

  const Value ordered = plain(global("collections", "OrderedDict") + ")R(" + text("b") + "K\x01" + text("a") +
                              "K\x02u}" + text("_metadata") + "Nsb");
  CHECK(ordered.as_dict().kind == Dict::Kind::ordered);
  CHECK(ordered.as_dict().entries().front().first.as_string() == "b");
  CHECK(ordered.as_dict().attributes.find("_metadata") != nullptr);

  size_t consumed = 0;
  torch::unpickle("\x80\x02K\x01.tail", {}, &consumed);
  CHECK(consumed == 5);
}

TEST_CASE("what is not data is refused by name, all of it at once, before anything else is judged",
          "[torch]") {
  const std::string touch = text("touch x") + "\x85R";
  for (const auto& refused : std::vector<std::pair<std::string, std::string>>{{"posix", "system"},
                                                                              {"__builtin__", "eval"},
                                                                              {"builtins", "getattr"},
                                                                              {"subprocess", "Popen"},
                                                                              {"torch.serialization", "load"},
                                                                              {"dill._dill", "_create_code"},
                                                                              {"torch.hub", "load"},
                                                                              {"sys", "exit"}}) {
    const std::string message = message_of(
        [&] { plain("}" + text("w") + global(refused.first, refused.second) + touch + "s"); }, Errc::refused);
    CHECK_THAT(message, Contains(refused.second));
  }
  const std::string both = message_of(
      [&] { plain("(" + global("os", "system") + touch + global("nt", "remove") + touch + "l\x94zzz"); },
      Errc::refused);
  CHECK_THAT(both, Contains("os.system") && Contains("nt.remove"));

  // Everything a pickle can do with a global: call, instantiate, set the state of, use as a key or a
  // persistent id.
  for (const std::string& use :
       {global("os", "system") + touch, "(" + text("x") + "ios\nsystem\n",
        "(" + global("os", "system") + text("x") + "o", global("os", "system") + ")\x81",
        "\x8c\x02os\x8c\x06system\x93"s + touch, global("os", "system") + touch + "Q",
        "}" + global("os", "system") + touch + "K\x01s",
        global("collections", "OrderedDict") + ")R" + global("os", "system") + "b"}) {
    INFO(quote(use));
    CHECK_THAT(message_of([&] { plain(use); }, Errc::refused), Contains("os.system"));
  }
  CHECK_THAT(message_of([&] { plain(global("argparse", "Namespace") + ")\x81}" + text("a") + "K\x01sb"); },
                        Errc::refused),
             Contains("argparse.Namespace"));
  const std::string many = message_of(
      [&] {
        std::string body = "(";
        for (int i = 0; i < 500; ++i) body += global("evil", fmt::format("name_{}", i));
        plain(body + "l");
      },
      Errc::refused);
  CHECK(many.size() < 600);
}

TEST_CASE("hostile pickles end in an error, in bounded time and memory", "[torch]") {
  std::string laughs = "]q" + "\0"s + "(" + repeat("K\x01", 10) + "e";
  for (char i = 1; i < 60; ++i)
    laughs += "0]q"s + i + "(" + repeat("h"s + static_cast<char>(i - 1), 10) + "e";
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"deep lists", repeat("]", 300000) + repeat("a", 299999)},
      {"deep tuples", "K\x01" + repeat("\x85", 300000)},
      {"deep, and dropped", "K\x01" + repeat("\x85", 300000) + "0"},
      {"only marks", repeat("(", 300000)},
      {"a list in itself", "]q" + "\0h\0a"s},
      {"a dict in itself", "}q\0"s + text("a") + "h\0s"s},
      {"a key in itself", "]q\0h\0\x85}h\0\x85K\1s"s},
      {"a thousand million laughs", laughs},
      {"a huge text",
       "X\xff\xff\xff\xff"
       "abc"},
      {"a huge frame", "\x95\xff\xff\xff\xff\xff\xff\xff\x7fN"},
      {"a far memo index", "K\x01r\xff\xff\xff\xff"},
      {"an unknown memo index", "j\xff\xff\xff\x7f"},
      {"an unhashable key", "}]K\x01s"},
      {"no STOP", ""},
      {"an unknown opcode", "\xff"},
      {"text that is not UTF-8", "X\x02\x00\x00\x00\xc3\x28"s},
      {"a call of a constant", global("torch", "float32") + ")R"},
      {"items for a tuple",
       ")K\x01"
       "a"},
      {"a state for a list", "]}b"},
      {"the stack below a mark", "K\x01(\x85"},
      {"a persistent id where none belongs", floats("0", 4)},
  };
  for (const auto& [name, body] : cases) {
    INFO(name);
    const std::string stop = name == "no STOP"s ? "" : ".";
    CHECK_THROWS_AS(torch::unpickle("\x80\x04"s + body + stop, {}), Error);
  }
  // Copies of one text through the memo count as memory.
  CHECK_THROWS_AS(plain(text(std::string(1 << 20, 'x')) + "q\0("s + repeat("h\0"s, 200000) + "l"), Error);
}

TEST_CASE("dill's pickles of objects and tree specs are read as data", "[torch]") {
  torch::UnpickleOptions options;
  options.dill = true;
  const auto load = [&](const std::string& body) {
    return torch::unpickle("\x80\x04"s + body + ".", options);
  };
  const std::string load_type = found("dill._dill", "_load_type");
  CHECK(load(load_type + short_text("bytearray") +
             "\x85R"
             "C\x03xyz\x85R")
            .as_bytes()
            .is_mutable);
  CHECK(load(load_type + short_text("DictType") + "\x85R").as_object().repr == "builtins.dict");
  CHECK(load(found("dill._dill", "_eval_repr") + short_text("range(3, 9)") + "\x85R").as_object().repr ==
        "range(3, 9)");
  CHECK(load("(K\x01K\x0a\x91").as_sequence().kind == Sequence::Kind::frozenset);
  for (const char* evil :
       {"__import__('os')", "range(3)", "range(3, 9", "range(3, 9, 1, 1)", "range(3, os)", "range(3,9)"}) {
    CHECK_THAT(message_of([&] { load(found("dill._dill", "_eval_repr") + short_text(evil) + "\x85R"); },
                          Errc::refused),
               Contains("_eval_repr"));
  }
  CHECK_THROWS_AS(load(load_type + short_text("CodeType") + "\x85R"), Error);

  const std::string number = found("numpy.core.multiarray", "scalar") + found("numpy", "dtype") +
                             short_text("f4") + "\x89\x88\x87R(K\x03" + short_text("<") +
                             "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"s;
  const Value scalar = load(number + "C\x04\x00\x00\xc0\x3f\x86R"s);
  CHECK(scalar.as_leaf().role == TensorLeaf::Role::np_scalar);
  CHECK(load_le<float>(scalar.as_tensor().to_bytes().data()) == 1.5F);

  const std::string leaf_spec = found("torch.utils._pytree", "LeafSpec") + ")\x81}(" + short_text("type") +
                                "N" + short_text("children_specs") + "]ub";
  const Value spec = load(found("torch.utils._pytree", "TreeSpec") + ")\x81}(" + short_text("type") +
                          load_type + short_text("dict") + "\x85R" + short_text("context") + "]" +
                          short_text("a") + "a" + short_text("children_specs") + "]" + leaf_spec + "aub");
  CHECK(spec.as_object().type == "torch.utils._pytree.TreeSpec");
  CHECK(spec.as_object().state.find("type")->as_object().repr == "builtins.dict");
  CHECK(spec.as_object().state.find("children_specs")->as_sequence().items[0].as_object().type ==
        "torch.utils._pytree.LeafSpec");
  CHECK(torch::unpickle(torch::dill_pickle(spec), options).equals(spec));

  // What goes beyond the list is refused; of records, only those that do nothing when they are loaded are
  // written.
  const std::string record = found("my.config", "Thing") + ")\x81}" + short_text("x") + "K\x05sb";
  CHECK_THAT(message_of([&] { load(record); }, Errc::refused), Contains("'my.config.Thing'"));
  options.allow_records = true;
  CHECK(load(record).as_object().state.find("x")->as_int() == 5);
  for (const auto& [module, name] : {std::pair{"argparse", "Namespace"}, std::pair{"__main__", "Thing"}}) {
    const Value inert = load(found(module, name) + ")\x81}" + short_text("x") + "K\x05sb");
    CHECK(torch::unpickle(torch::dill_pickle(inert), options).equals(inert));
  }
  const std::string wrapper =
      found("torch.utils.data.datapipes.datapipe", "_IterDataPipeSerializationWrapper");
  for (const std::string& acting :
       {record, wrapper + ")\x81}sb", found("dumbdbm", "_Database") + ")\x81",
        found("test.__main__", "Thing") + ")\x81", found("__main__", "a.b") + ")\x81"}) {
    CAPTURE(acting);
    std::string why;
    try {
      torch::dill_pickle(load(acting));
    } catch (const Error& error) {
      why = error.what();
    }
    CHECK_FALSE(why.empty());
  }
  CHECK_THAT(
      message_of([&] { torch::dill_pickle(load(found("torch.utils.collect_env", "run"))); }, Errc::refused),
      Contains("run code of that class"));
}

TEST_CASE("no way of a pickle to call something unknown is read, with records or without", "[torch]") {
  const std::string system = found("posix", "system"), text_true = short_text("true");
  const std::string arguments = text_true + "\x85";
  const std::string ordered = found("collections", "OrderedDict");
  const std::vector<std::pair<std::string, std::string>> table = {
      {"REDUCE", system + arguments + "R"},
      {"a value", system},
      {"dropped", system + "0N"},
      {"in the memo", system + "\x94" + "0h\0"s + arguments + "R"},
      {"NEWOBJ", system + arguments + "\x81"},
      {"NEWOBJ_EX", system + arguments + "}\x92"},
      {"OBJ", "(" + system + text_true + "o"},
      {"INST", "(" + text_true + "iposix\nsystem\n"},
      {"GLOBAL", "cposix\nsystem\n" + arguments + "R"},
      {"STACK_GLOBAL by memo",
       short_text("posix") + "\x94" + short_text("system") + "\x93" + arguments + "R"},
      {"a dict's key", "}" + system + "Ns"},
      {"a dict's value", "}" + short_text("a") + system + "s"},
      {"a state", ordered + ")R}" + short_text("a") + system + "sb"},
      {"behind a value", "N" + system + arguments + "R0"},
      {"a factory", found("collections", "defaultdict") + system + "\x85R"},
      {"a reconstructor",
       found("copyreg", "_reconstructor") + system + found("builtins", "object") + "N\x87R"},
      {"dill's type", found("dill._dill", "_load_type") + short_text("FunctionType") + "\x85R"},
      {"dill's function", found("dill._dill", "_create_function") + ")R"},
      {"getattr", found("builtins", "getattr") + system + short_text("x") + "\x86R"},
      {"eval", found("builtins", "eval") + arguments + "R"},
      {"a name with dots", found("argparse", "_os.system") + arguments + "\x81"},
      {"a value with dots", found("argparse", "_os.system")},
      {"numpy.memmap", found("numpy", "memmap") + arguments + "\x81"},
      {"a class in C", found("_io", "FileIO") + arguments + "\x81"},
      {"torch.load", found("torch", "load") + arguments + "R"},
      {"a class that acts when it goes", found("fileinput", "FileInput") + ")\x81}" +
                                             short_text("_backupfilename") + short_text("victim") + "sb"},
      {"a class of Python's library", found("weakref", "finalize") + ")\x81"},
      {"a class of a package of it", found("xml.dom", "minidom") + ")\x81"},
  };
  for (const auto& [name, body] : table) {
    CAPTURE(name);
    const std::string pickle = "\x80\x04"s + body + ".";
    for (const bool is_dill : {false, true}) {
      for (const bool allow_records : {false, true}) {
        torch::UnpickleOptions options;
        options.dill = is_dill;
        options.allow_records = allow_records;
        CHECK_FALSE(message_of([&] { torch::unpickle(pickle, options); }, Errc::refused).empty());
      }
    }
  }
}

TEST_CASE("with records allowed, instances of unknown classes are data, calls of unknown functions are not",
          "[torch]") {
  torch::UnpickleOptions options;
  options.allow_records = true;
  const auto load = [&](const std::string& body) {
    return torch::unpickle("\x80\x02" + body + ".", options);
  };
  const Value space = load(global("argparse", "Namespace") + ")\x81}" + text("lr") + "K\x03sb");
  CHECK(space.as_object().type == "argparse.Namespace");
  CHECK(space.as_object().state.find("lr")->as_int() == 3);
  const Value named = load(global("my.types", "Pair") + "K\x01K\x02\x86\x81");
  CHECK(named.as_sequence().type == "my.types.Pair");
  CHECK_THAT(message_of([&] { torch::pickle(Value::list({named}), {}); }, Errc::unsupported),
             Contains("'my.types.Pair'") && Contains("made of arguments"));
  CHECK(torch::unpickle(torch::pickle(space, {}), options).equals(space));
  CHECK_THROWS_AS(torch::unpickle(torch::pickle(space, {}), {}), Error);
  const std::string array = global("numpy.core.multiarray", "_reconstruct") + global("numpy", "ndarray") +
                            "K\0\x85"s + text("b") + "\x87Rq\1(K\1K\1\x85"s + global("numpy", "dtype") +
                            text("U1") + "\x89\x88\x87R\x89" + text("x\0\0\0"s) + "tb";
  const Value words = load("(" + array + "h\1l"s);
  CHECK(words.as_sequence().items[0].as_object().type == "numpy.ndarray");
  CHECK(words.as_sequence().items[1].same(words.as_sequence().items[0]));
  CHECK_THAT(message_of([&] { plain(array); }, Errc::unsupported), Contains("U1"));
  for (const std::string& call : {global("my.code", "run") + ")R", global("os", "system") + ")\x81",
                                  global("builtins", "eval") + ")\x81"}) {
    CHECK_THROWS_AS(load(call), Error);
  }
}

TEST_CASE("values of every kind survive both spellings of a pickle", "[torch]") {
  const Value list = Value::list({1, 2.5, "x"});
  const Value root = dict_of(
      {{"none", {}},
       {"flags", Value::list({true, false})},
       {"ints", Value::list({0, 255, 65536, -1, Value::integer("-170141183460469231731687303715884105728")})},
       {"complex", std::complex<double>(1, -2)},
       {"bytes", Value::bytes("\0\xff\x80"s)},
       {"empty", Value::bytes("")},
       {"tuple", Value::tuple({1, Value::tuple({}), Value::tuple({1, 2, 3, 4})})},
       {"shared", Value::list({list, list})},
       {"range", std::make_shared<Object>(Object{"builtins.range", "range(3, 9, 2)", {}})},
       {"dtype", std::make_shared<Object>(Object{"torch.dtype", "torch.float16", {}})},
       {"device", std::make_shared<Object>(Object{"torch.device", "cuda:2", {}})}});
  for (auto kind :
       {Sequence::Kind::set, Sequence::Kind::frozenset, Sequence::Kind::deque, Sequence::Kind::torch_size}) {
    root.as_dict().set(fmt::format("sequence {}", static_cast<int>(kind)),
                       std::make_shared<Sequence>(Sequence{kind, {1, 2}, {}, {}}));
  }
  auto ordered = std::make_shared<Dict>(Dict::Kind::ordered);
  ordered->set("z", 1);
  ordered->set(7, "int key");
  ordered->set(Value::tuple({1, "a"}), "tuple key");
  ordered->attributes = dict_of({{"_metadata", 3}});
  root.as_dict().set("ordered", ordered);
  for (int i = 0; i < 2500; ++i) root.as_dict().set(fmt::format("key {}", i), i);
  auto array = std::make_shared<TensorLeaf>(
      TensorLeaf{number_tensor(6).as_tensor(), TensorLeaf::Role::ndarray, false});
  for (const torch::PicklerOptions& options :
       {torch::PicklerOptions{2, false, {}}, torch::PicklerOptions{4, true, {}}}) {
    torch::UnpickleOptions reading;
    reading.dill = options.dill;
    const Value back = torch::unpickle(torch::pickle(root, options), reading);
    CHECK(back.equals(root));
    const auto& shared = back.find("shared")->as_sequence().items;
    CHECK(shared[0].same(shared[1]));
    CHECK(back.find("ordered")->as_dict().attributes.find("_metadata") != nullptr);
    const Value numbers =
        torch::unpickle(torch::pickle(Value(std::shared_ptr<const TensorLeaf>(array)), options), reading);
    CHECK(numbers.as_leaf().role == TensorLeaf::Role::ndarray);
    CHECK(numbers.as_tensor().to_bytes() == array->tensor.to_bytes());
  }
  CHECK_THAT(message_of(
                 [&] {
                   torch::dill_pickle(dict_of({{"a", Value::list({number_tensor(1)})}}));
                 },
                 Errc::value),
             Contains("a.0"));
  const Value graph = std::make_shared<Object>(Object{"cerebras.graph_tensor", "", Value::dict()});
  CHECK_THAT(message_of(
                 [&] {
                   torch::pickle(dict_of({{"g", graph}}), {});
                 },
                 Errc::value),
             Contains("'g'") && Contains("graph"));
}

TEST_CASE("a torch file keeps ties, shared storages and strides", "[torch]") {
  const Folder folder;
  const Value base = number_tensor(24);
  const auto parameter = std::make_shared<const TensorLeaf>(
      TensorLeaf{number_tensor(4).as_tensor(), TensorLeaf::Role::parameter, true});
  const Value root =
      dict_of({{"base", base},
               {"grid", view_of(base, 0, {4, 6}, {6, 1})},
               {"turned", view_of(base, 0, {6, 4}, {1, 6})},
               {"column", view_of(base, 2, {4}, {6})},
               {"wide", view_of(base, 3, {2, 5}, {1, 0})},
               {"scalar", view_of(base, 7, {}, {})},
               {"nothing", view_of(base, 5, {0}, {1})},
               {"again", base},
               {"parameter", Value(parameter)},
               {"half", Tensor::full(DType::bfloat16, {3}, 0.5)},
               {"computed", view_of(base, 0, {4, 6}, {6, 1}).as_tensor().transpose(0, 1)},
               {"small", Tensor::from_bytes(DType::uint16, {2}, Bytes(4, std::byte{7}))},
               {"tiny", Tensor::from_bytes(DType::float8_e4m3fn, {3}, Bytes(3, std::byte{9}))}});
  const Value back = written_and_read(folder, root);
  REQUIRE(back.as_dict().size() == root.as_dict().size());
  for (const auto& [key, value] : root.as_dict().entries()) {
    INFO(key.as_string());
    const Tensor& was = value.as_tensor();
    const Tensor& is = back.find(key.as_string())->as_tensor();
    CHECK(is.dtype() == was.dtype());
    CHECK(is.shape() == was.shape());
    CHECK(is.to_bytes() == was.to_bytes());
    if (was.view() != nullptr && storage_of(value) == storage_of(base)) {
      CHECK(storage_of(*back.find(key.as_string())) == storage_of(*back.find("base")));
      CHECK(is.view()->strides == was.view()->strides);
      CHECK(is.view()->offset == was.view()->offset);
    }
  }
  CHECK(back.find("base")->same(*back.find("again")));
  CHECK(back.find("parameter")->as_leaf().role == TensorLeaf::Role::parameter);
  CHECK(back.find("parameter")->as_leaf().requires_grad);
  CHECK(storage_of(*back.find("computed")) != storage_of(*back.find("base")));
  CHECK(folder.names().size() == 1);
}

TEST_CASE("only what is referred to is written, when that is less than half", "[torch]") {
  const Folder folder;
  const Value big = number_tensor(10000);
  const Value root = dict_of({{"head", view_of(big, 0, {10}, {1})},
                              {"middle", view_of(big, 5000, {10, 10}, {10, 1})},
                              {"inside", view_of(big, 5010, {5}, {1})},
                              {"column", view_of(big, 8000, {10}, {100})}});
  const Value back = written_and_read(folder, root);
  CHECK(fs::file_size(folder.path("round.pt")) < 4000);
  for (const auto& [key, value] : root.as_dict().entries()) {
    const Value& now = *back.find(key.as_string());
    CHECK(now.as_tensor().to_bytes() == value.as_tensor().to_bytes());
    CHECK(storage_of(now) == storage_of(*back.find("head")));
  }
  CHECK(storage_of(*back.find("head"))->size() == 4 * (10 + 100 + 10));
}

TEST_CASE("checksums that the source tells are not computed again", "[torch]") {
  const Folder folder;
  write(dict_of({{"a", number_tensor(100)}, {"b", number_tensor(50)}}), folder.path("a.pt"));
  const Value root = read(folder.path("a.pt")).root;
  root.as_dict().set("c", root.find("a")->as_tensor().cast(DType::float64));
  const auto writer = torch::make_writer(root, folder.path("b.pt"), false);
  REQUIRE(writer->items().size() == 3);
  for (const Item& item : writer->items()) CHECK((item.checksum == Checksum::crc32) == (item.key == "c"));
  uint64_t total = writer->overhead();
  for (const Item& item : writer->items()) total += item.tensor.nbytes();
  execute(*writer, {});
  CHECK(fs::file_size(folder.path("b.pt")) == total);
  const torch::ZipArchive archive(MappedFile::open(folder.path("b.pt")));
  for (const torch::ZipEntry& entry : archive.entries()) archive.verify(entry);
  CHECK_THROWS_AS(torch::make_writer(root, folder.path("b.pt"), false), Error);

  write(root, folder.path("b2.pt"));
  fs::create_directories(folder.path("x"));
  write(root, folder.path("x/b2.pt"));
  CHECK(read_file(folder.path("b2.pt")) == read_file(folder.path("x/b2.pt")));
}

TEST_CASE("sparse and quantized tensors survive", "[torch]") {
  const Folder folder;
  const auto size = std::make_shared<Sequence>(Sequence{Sequence::Kind::torch_size, {2, 3}, {}, {}});
  const Tensor indices = Tensor::from_bytes(DType::int64, {2, 1}, Bytes(16));
  const Value sparse = std::make_shared<Object>(Object{
      "torch.sparse_coo", "",
      dict_of({{"shape", size}, {"indices", indices}, {"values", number_tensor(1)}, {"is_coalesced", {}}})});
  const Tensor whole = Tensor::from_bytes(DType::int8, {2, 2}, Bytes(4, std::byte{3}));
  const Value quantized = std::make_shared<Object>(Object{"torch.quantized", "",
                                                          dict_of({{"dtype", "qint8"},
                                                                   {"int_repr", whole},
                                                                   {"qscheme", "torch.per_channel_affine"},
                                                                   {"scales", Value::list({0.5, 0.25})},
                                                                   {"zero_points", Value::list({0, 5})},
                                                                   {"axis", 0},
                                                                   {"requires_grad", false}})});
  const Value back = written_and_read(folder, dict_of({{"s", sparse}, {"q", quantized}}));
  const Dict& s = back.find("s")->as_object().state.as_dict();
  CHECK(s.at("shape").equals(size));
  CHECK(s.at("values").as_tensor().to_bytes() == number_tensor(1).as_tensor().to_bytes());
  const Dict& q = back.find("q")->as_object().state.as_dict();
  CHECK(q.at("scales").equals(Value::list({0.5, 0.25})));
  CHECK(q.at("zero_points").equals(Value::list({0, 5})));
  CHECK(q.at("int_repr").as_tensor().to_bytes() == whole.to_bytes());
}

TEST_CASE("archives of other programs are read: deflated, big-endian, without torch's padding", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("other.pt");
  const std::string pickle = "\x80\x02}" + text("w") + tensor_pickle(floats("0", 4), 0, 4, 1) + "s.";
  const std::string data = "\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40"s;
  std::string swapped;
  for (size_t i = 0; i < data.size(); ++i) swapped.push_back(data[i / 4 * 4 + 3 - i % 4]);
  for (bool deflate : {false, true}) {
    write_zip(path, {{"m/data.pkl", pickle}, {"m/data/0", data}, {"m/version", "3\n"}}, deflate);
    CHECK(as_text(read(path).root.find("w")->as_tensor().to_bytes()) == data);
    write_zip(path,
              {{"m/data.pkl", pickle}, {"m/byteorder", "big"}, {"m/data/0", swapped}, {"m/version", "3\n"}},
              deflate);
    CHECK(as_text(read(path).root.find("w")->as_tensor().to_bytes()) == data);
  }
}

TEST_CASE("damaged and foreign files are refused with the reason", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("bad.pt");
  const auto pickle = [](const std::string& tensor) { return "\x80\x02}" + text("w") + tensor + "s."; };
  const std::string good = pickle(tensor_pickle(floats("0", 4), 0, 4, 1));
  const std::string data(16, 'x');
  struct Case {
    std::vector<std::pair<std::string, std::string>> members;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {{{"m/data.pkl", good}, {"m/version", "3\n"}}, "not in the archive"},
      {{{"m/data.pkl", good}, {"m/data/0", data + "x"}, {"m/version", "3\n"}}, "17 bytes"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/version", "11\n"}}, "newer"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/byteorder", "mid"}}, "byteorder"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/data/0", data}}, "two members"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/constants.pkl", ""}}, "TorchScript"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/code/x.py", ""}}, "TorchScript"},
      {{{"m/weights.npy", "x"}}, "data.pkl"},
      {{{"m/data.pkl", pickle(tensor_pickle(floats("0", 4), 1, 4, 1))}, {"m/data/0", data}},
       "beyond its storage"},
      {{{"m/data.pkl", pickle(tensor_pickle(floats("0", 4), 0, 3, 2))}, {"m/data/0", data}},
       "beyond its storage"},
      {{{"m/data.pkl", pickle(tensor_pickle(floats("../0", 4), 0, 3, 1))}, {"m/data/0", data}},
       "not in the archive"},
  };
  for (const Case& bad : cases) {
    write_zip(path, bad.members);
    try {
      read(path);
      FAIL(bad.reason);
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Contains(bad.reason));
    }
  }
  write_zip(path, {{"m/data.pkl", good}, {"m/data/0", data}, {"m/version", "3\n"}});
  const std::string whole = read_file(path);
  for (size_t length = 0; length < whole.size(); length += 7) {
    write_file(path, whole.substr(0, length), true);
    CHECK_THROWS_AS(read(path), Error);
  }
  std::string flipped = whole;
  flipped[whole.find(data) + 5] ^= 1;
  write_file(path, flipped, true);
  CHECK_THAT(message_of([&] { read(path); }, Errc::format), Contains("CRC-32"));
  write_file(path, "PYTORCH1" + std::string(600, '\0'), true);
  CHECK_THAT(message_of([&] { read(path); }, Errc::unsupported), Contains("preview"));
  write_file(path, std::string(257, '\0') + "ustar" + std::string(600, '\0'), true);
  CHECK_THAT(message_of([&] { read(path); }, Errc::unsupported), Contains("tar"));
}

TEST_CASE("legacy streams: shared storages, parts of storages, byte order", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("old.pt");
  const std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e\x80\x02M\xe9\x03."s;
  const auto system = [](bool little) {
    return "\x80\x02}" + text("little_endian") + (little ? "\x88s." : "\x89s.");
  };
  const std::string part = "(" + text("storage") + global("torch", "FloatStorage") + text("7") + text("cpu") +
                           "K\x04(" + text("8") + "K\x01K\x02ttQ";
  const std::string whole =
      "(" + text("storage") + global("torch", "FloatStorage") + text("7") + text("cpu") + "K\x04NtQ";
  const std::string object = "\x80\x02}(" + text("a") + tensor_pickle(whole, 0, 4, 1) + text("b") +
                             tensor_pickle(part, 1, 1, 1) + "u.";
  const std::string keys = "\x80\x02]" + text("7") + "a.";
  const std::string numbers = "\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40"s;
  std::string swapped;
  for (size_t i = 0; i < numbers.size(); ++i) swapped.push_back(numbers[i / 4 * 4 + 3 - i % 4]);
  const std::string stream = magic + system(true) + object + keys + "\4\0\0\0\0\0\0\0"s + numbers;
  for (const std::string& content :
       {stream, stream + "trailing", magic + system(false) + object + keys + "\0\0\0\0\0\0\0\4"s + swapped}) {
    write_file(path, content, true);
    const Value root = read(path).root;
    CHECK(as_text(root.find("a")->as_tensor().to_bytes()) == numbers);
    CHECK(as_text(root.find("b")->as_tensor().to_bytes()) == numbers.substr(8, 4));
    CHECK(storage_of(*root.find("a")) == storage_of(*root.find("b")));
  }
  for (size_t length = 15; length < stream.size(); length += 11) {
    write_file(path, stream.substr(0, length), true);
    CHECK_THROWS_AS(read(path), Error);
  }
}

TEST_CASE("views without elements may have any offset and strides", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("old.pt");
  const std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e\x80\x02M\xe9\x03."s;
  const std::string largest = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s;  // 2^63 - 1
  const std::string part = "(" + text("storage") + global("torch", "FloatStorage") + text("7") + text("cpu") +
                           "K\x04(" + text("8") + "K\x01K\x02ttQ";
  const auto tensor = [&](const std::string& size, const std::string& strides) {
    return global("torch._utils", "_rebuild_tensor_v2") + "(" + part + largest + "(" + size + "t(" + strides +
           "t\x89" + global("collections", "OrderedDict") + ")RtR";
  };
  const std::string object = "\x80\x02}(" + text("a") + tensor("K\0"s, largest) + text("b") +
                             tensor("K\0"s + largest + largest, largest + largest + largest) + "u.";
  const std::string keys = "\x80\x02]" + text("7") + "a.";
  write_file(path,
             magic + "\x80\x02}" + text("little_endian") + "\x88s." + object + keys + "\4\0\0\0\0\0\0\0"s +
                 std::string(16, 'x'),
             true);
  const Value root = read(path).root;
  const int64_t most = std::numeric_limits<int64_t>::max();
  CHECK(root.find("a")->as_tensor().to_bytes().empty());
  CHECK(root.find("b")->as_tensor().shape() == Shape{0, most, most});
  CHECK(root.find("b")->as_tensor().permute({2, 1, 0}).slice(0, 5, 7).shape() == Shape{2, most, 0});
  CHECK(written_and_read(folder, root).find("b")->as_tensor().numel() == 0);
  CHECK(contiguous_strides({0, most, most}).size() == 3);
}

TEST_CASE("a small file cannot ask for much memory", "[torch][memory]") {
  constexpr uint64_t small = 16 << 20;
  const std::string many = std::string(64 << 20, 'N');
  const auto number = [](const std::string& bytes) {
    std::string out = "\x8b";
    append_le(out, static_cast<uint32_t>(bytes.size()));
    return out + bytes;
  };
  const std::string args =
      "(" + text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") + "K\x04tq\x05";
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"a high stack", std::string(8 << 20, 'N')},
      {"marks", std::string(8 << 20, '(')},
      {"lists", std::string(1 << 20, ']')},
      {"persistent ids", args + repeat("h\x05Q", 1 << 18)},
      {"long integers", repeat(number(std::string(100, 'x')), 130'000)},
      {"arrays that are not filled", global("numpy.core.multiarray", "_reconstruct") + "q\1"s + "(" +
                                         global("numpy", "ndarray") + "K\0\x85"s + "C\1b"s + "tq\2" +
                                         repeat("h\1h\2R", 1 << 18)},
      {"a list that is copied", "](" + std::string(100'000, 'N') + "e\x85q\1"s + global("builtins", "list") +
                                    "q\2" + repeat("h\2h\1R", 200)},
  };
  for (const auto& [name, body] : cases) {
    INFO(name);
    const std::string pickle = "\x80\x04" + body + ".";
    MemoryBudget budget(0);
    torch::UnpickleOptions options;
    options.budget = &budget;
    options.persistent_load = [](const Value&) {
      const Tensor elements = Tensor::from_bytes(DType::float32, {4}, Bytes(16));
      return std::make_shared<Object>(Object{"torch.storage", "FloatStorage", elements});
    };
    CHECK_THAT(message_of([&] { torch::unpickle(pickle, options); }, Errc::format), Contains("memory"));
    CHECK(budget.left() == budget.limit());  // what was not handed out is refunded
  }
  const Folder folder;
  const fs::path path = folder.path("bomb.pt");
  write_zip(path, {{"m/data.pkl", "\x80\x02" + many + "."}}, true);
  REQUIRE(fs::file_size(path) < 100'000);
  CHECK_THAT(message_of([&] { read(path); }, Errc::format),
             Contains("'m/data.pkl'") && Contains("64.0 MiB") && Contains("40."));
  write_zip(path, {{"m/data.pkl", "\x80\x02" + many.substr(0, small) + "."}}, true);
  CHECK_THAT(message_of([&] { read(path); }, Errc::format), Contains("memory"));
}

TEST_CASE("a deflated record is unpacked in a window", "[torch][memory]") {
  const Folder folder;
  const fs::path path = folder.path("zeros.pt");
  constexpr int64_t count = 24 << 20;  // floats
  std::string number = "J";
  append_le(number, static_cast<int32_t>(count));
  const std::string storage =
      "(" + text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") + number + "tQ";
  const std::string pickle = "\x80\x02}" + text("w") + global("torch._utils", "_rebuild_tensor_v2") + "(" +
                             storage + "K\0"s + number + "\x85K\x01\x85\x89" +
                             global("collections", "OrderedDict") + ")RtRs.";
  {
    std::string data(count * 4, '\0');
    for (size_t at = 0; at < data.size(); at += 1 << 16) data[at] = static_cast<char>(at >> 16);
    write_zip(path, {{"m/data.pkl", pickle}, {"m/data/0", data}, {"m/version", "3\n"}}, true);
  }
  REQUIRE(fs::file_size(path) < 1 << 20);
  const Value root = read(path).root;
  const Tensor& tensor = root.find("w")->as_tensor();
  CHECK(stored_size(*tensor.view()->storage) < 1 << 20);
  const auto first_of = [&](int64_t element) {
    Bytes one(4);
    tensor.read(element, one);
    return std::to_integer<int>(one[0]);
  };
  for (const int threads : {1, 3}) {
    const PeakMemory memory;
    const fs::path out = folder.path(fmt::format("copy{}.pt", threads));
    const auto writer = torch::make_writer(root, out, false);
    ExecuteOptions options;
    options.threads = threads;
    execute(*writer, options);
    CHECK(memory.growth() < 64 << 20);
    CHECK(fs::file_size(out) > count * 4);
  }
  CHECK(first_of(20 << 20) == 20 * 64 % 256);  // backwards, and on
  CHECK(first_of(1 << 20) == 64);
  CHECK(first_of((24 << 20) - (1 << 14)) == 255);

  // A member that is longer or shorter than it says.
  std::string content = read_file(path);
  const size_t entry = content.rfind("m/data/0") - 46;
  for (const int change : {-4, 4}) {
    std::string wrong = content;
    store_le(wrong.data() + entry + 24, static_cast<uint32_t>(count * 4 + change));
    write_file(path, wrong, true);
    const torch::ZipArchive archive(MappedFile::open(path));
    const torch::ZipEntry& record = *archive.find("m/data/0");
    const StoragePtr unpacked = archive.storage(record);
    std::byte last{};
    CHECK_THAT(message_of(
                   [&] {
                     unpacked->read(unpacked->size() - 1, {&last, 1});
                   },
                   Errc::format),
               Contains("'m/data/0'"));
    CHECK_THAT(message_of([&] { archive.verify(record); }, Errc::format), Contains("'m/data/0'"));
  }
}

TEST_CASE("lists of numbers and many tensors fit their budget", "[torch][memory]") {
  const std::string part = "(" + repeat("J\x12\x34\x56\x00"s, 1000) + "e";
  const Value list = plain("]" + repeat(part, 1000));
  CHECK(list.as_sequence().items.size() == 1'000'000);
  const Folder folder;
  const Value root = Value::dict();
  for (int i = 0; i < 20'000; ++i) root.as_dict().set(fmt::format("layer.{}.weight", i), number_tensor(3));
  CHECK(written_and_read(folder, root).as_dict().size() == 20'000);
}

TEST_CASE("opcodes are shown one at a time", "[torch][memory]") {
  const Folder folder;
  const auto names = [](const fs::path& path) {
    std::string out;
    torch::Disassembler opcodes(MappedFile::open(path));
    while (const auto opcode = opcodes.next())
      out +=
          fmt::format("{}{} {} {}", out.empty() ? "" : "; ", opcode->offset, opcode->name, opcode->argument);
    return out;
  };
  CHECK(names(folder.write("none", "")).empty());
  CHECK(names(folder.write("plain", "\x80\x02K\x07.and more")) == "0 PROTO 2; 2 BININT1 7; 4 STOP ");
  CHECK(names(folder.write("legacy", "L119547037146038801333356L\n.I1001\n.")) ==
        "0 LONG '119547037146038801333356L'; 27 STOP ; 28 INT '1001'; 34 STOP ");
  CHECK_THROWS_WITH(names(folder.write("cut", "\x80\x02K")), Contains("ends too early"));
  const fs::path path = folder.path("x.pt");
  write_zip(path, {{"m/version", "3"}}, true);
  CHECK_THROWS_WITH(names(path), Contains("has no data.pkl"));
  constexpr size_t count = 2 << 20;
  write_zip(path, {{"m/data.pkl", "\x80\x02(" + std::string(count, 'N') + "l."}}, true);
  const PeakMemory memory;
  torch::Disassembler opcodes(MappedFile::open(path));
  size_t found = 0;
  while (opcodes.next()) ++found;
  CHECK(found == count + 4);
  CHECK(memory.growth() < (8 << 20));
}

TEST_CASE("texts of protocols 0 and 1 have escapes", "[torch]") {
  const auto value = [](std::string_view pickle) { return torch::unpickle(pickle, {}); };
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"V\\u0041\\U0001F600\xe9\n.", "A\xf0\x9f\x98\x80\xc3\xa9"},
      {"V\\ud800\n.", "\xed\xa0\x80"},
      {"V\\\\u0041\\n\\\n.", "\\\\u0041\\n\\"},  // neither a backslash nor \n is an escape here
      {"S'a\\'b\\\\c\\n\\x41\\101\\7\\q'\n.", "a'b\\c\nAA\a\\q"}};
  for (const auto& [pickle, text] : texts) CHECK(value(pickle).as_string() == text);
  for (const std::string pickle : {"V\\u12\n.", "V\\U00110000\n.", "S'\\x4'\n.", "S'\\'\n."})
    CHECK_THROWS_AS(value(pickle), Error);
  CHECK_THAT(message_of([&] { value("P('storage', 1)\n."); }, Errc::unsupported), Contains("protocol 0"));
}

TEST_CASE("legacy streams of every protocol begin with the magic number", "[torch]") {
  const std::string number = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  for (const std::string& magic :
       {"L119547037146038801333356L\n."s, "\x80\x03" + number, "\x80\x05\x95\x0d\0\0\0\0\0\0\0"s + number}) {
    CHECK(torch::legacy_magic_size(magic + "rest") == magic.size());
    for (size_t length = 0; length < magic.size(); ++length)
      CHECK(torch::legacy_magic_size(magic.substr(0, length)) == 0);
  }
  CHECK(torch::legacy_magic_size("\x80\x06" + number) == 0);
}

TEST_CASE("a zip layout beyond 4 GiB says so in zip64 fields", "[torch]") {
  torch::ZipLayout layout;
  const uint64_t large = 5ULL << 30;
  layout.add("m/data.pkl", 10);
  CHECK(layout.add("m/data/0", large) % torch::ZipLayout::alignment == 0);
  const uint64_t after = layout.add("m/version", 2);
  CHECK(after > large);
  CHECK(after % torch::ZipLayout::alignment == 0);
  const std::string header = layout.header(1, 0x12345678);
  CHECK(layout.header_offset(1) + header.size() == align_up(layout.header_offset(1) + header.size(), 64));
  CHECK(load_le<uint32_t>(header.data() + 18) == 0xffffffff);
  CHECK(load_le<uint64_t>(header.data() + 30 + 8 + 4) == large);

  const Folder folder;
  Transaction transaction;
  StagedFile& file = transaction.file(folder.path("big.zip"), false);
  const std::vector<uint32_t> crcs = {1, 2, 3};
  const std::string directory = layout.directory(crcs);
  CHECK(layout.directory_offset() + directory.size() == layout.total_size());
  for (size_t i = 0; i < 3; ++i) file.write(layout.header_offset(i), as_bytes(layout.header(i, crcs[i])));
  file.write(layout.directory_offset(), as_bytes(directory));  // a sparse file: no blocks for the 5 GiB
  transaction.commit(false);
  const torch::ZipArchive archive(MappedFile::open(folder.path("big.zip")));
  REQUIRE(archive.entries().size() == 3);
  CHECK(archive.entries()[1].size == large);
  CHECK(archive.entries()[2].header_offset > large);
  CHECK(archive.storage(archive.entries()[1])->size() == large);
  CHECK(archive.storage(archive.entries()[1])->crc32() == 2U);
}
