#include <catch2/catch.hpp>
#include <limits>

#include "host/formats/pickle/long_integer.hpp"
#include "host/formats/pickle/pickler.hpp"
#include "host/formats/pickle/unpickler.hpp"
#include "tests/host/pickles.hpp"

using namespace cbk;
using namespace std::string_literals;
using Catch::Contains;

TEST_CASE("whole numbers of any size survive their two's complement", "[pickle]") {
  for (const char* digits :
       {"0", "1", "-1", "127", "128", "-128", "-129", "255", "256", "9223372036854775807",
        "-9223372036854775808", "9223372036854775808", "-9223372036854775809",
        "1267650600228229401496703205376", "-1267650600228229401496703205376"}) {
    const Value value = Value::integer(digits);
    const std::string bytes = pickle::encode_long(value.as_integer());
    INFO(digits);
    CHECK(pickle::decode_long(bytes).equals(value));
    if (bytes.size() > 1) {  // the shortest form
      const int high = static_cast<signed char>(bytes.back());
      const bool below = static_cast<signed char>(bytes[bytes.size() - 2]) < 0;
      CHECK_FALSE(((high == 0 && !below) || (high == -1 && below)));
    }
  }
  CHECK(pickle::encode_long(Integer{255, nullptr, true}) == "\xff\x00"s);
  CHECK_THROWS_AS(pickle::decode_long(std::string(9000, '\x11')), Error);
}

TEST_CASE("pickles give Python's plain values", "[pickle]") {
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
  pickle::load("\x80\x02K\x01.tail", {}, &consumed);
  CHECK(consumed == 5);
}

TEST_CASE("what is not data is refused by name, all of it at once, before anything else is judged",
          "[pickle]") {
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

TEST_CASE("hostile pickles end in an error, in bounded time and memory", "[pickle]") {
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
    CHECK_THROWS_AS(pickle::load("\x80\x04"s + body + stop, {}), Error);
  }
  // Copies of one text through the memo count as memory.
  CHECK_THROWS_AS(plain(text(std::string(1 << 20, 'x')) + "q\0("s + repeat("h\0"s, 200000) + "l"), Error);
}

TEST_CASE("dill's pickles of objects and tree specs are read as data", "[pickle]") {
  pickle::UnpickleOptions options;
  options.dill = true;
  const auto load = [&](const std::string& body) { return pickle::load("\x80\x04"s + body + ".", options); };
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
  CHECK(pickle::load(pickle::dump_dill(spec), options).equals(spec));

  // What goes beyond the list is refused; of records, only those that do nothing when they are loaded are
  // written.
  const std::string record = found("my.config", "Thing") + ")\x81}" + short_text("x") + "K\x05sb";
  CHECK_THAT(message_of([&] { load(record); }, Errc::refused), Contains("'my.config.Thing'"));
  options.allow_records = true;
  CHECK(load(record).as_object().state.find("x")->as_int() == 5);
  for (const auto& [module, name] : {std::pair{"argparse", "Namespace"}, std::pair{"__main__", "Thing"}}) {
    const Value inert = load(found(module, name) + ")\x81}" + short_text("x") + "K\x05sb");
    CHECK(pickle::load(pickle::dump_dill(inert), options).equals(inert));
  }
  const std::string wrapper =
      found("torch.utils.data.datapipes.datapipe", "_IterDataPipeSerializationWrapper");
  for (const std::string& acting :
       {record, wrapper + ")\x81}sb", found("dumbdbm", "_Database") + ")\x81",
        found("test.__main__", "Thing") + ")\x81", found("__main__", "a.b") + ")\x81"}) {
    CAPTURE(acting);
    std::string why;
    try {
      pickle::dump_dill(load(acting));
    } catch (const Error& error) {
      why = error.what();
    }
    CHECK_FALSE(why.empty());
  }
  CHECK_THAT(
      message_of([&] { pickle::dump_dill(load(found("torch.utils.collect_env", "run"))); }, Errc::refused),
      Contains("run code of that class"));
}

TEST_CASE("no way of a pickle to call something unknown is read, with records or without", "[pickle]") {
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
        pickle::UnpickleOptions options;
        options.dill = is_dill;
        options.allow_records = allow_records;
        CHECK_FALSE(message_of([&] { pickle::load(pickle, options); }, Errc::refused).empty());
      }
    }
  }
}

TEST_CASE("with records allowed, instances of unknown classes are data, calls of unknown functions are not",
          "[pickle]") {
  pickle::UnpickleOptions options;
  options.allow_records = true;
  const auto load = [&](const std::string& body) { return pickle::load("\x80\x02" + body + ".", options); };
  const Value space = load(global("argparse", "Namespace") + ")\x81}" + text("lr") + "K\x03sb");
  CHECK(space.as_object().type == "argparse.Namespace");
  CHECK(space.as_object().state.find("lr")->as_int() == 3);
  const Value named = load(global("my.types", "Pair") + "K\x01K\x02\x86\x81");
  CHECK(named.as_sequence().type == "my.types.Pair");
  CHECK_THAT(message_of([&] { pickle::dump(Value::list({named}), {}); }, Errc::unsupported),
             Contains("'my.types.Pair'") && Contains("made of arguments"));
  CHECK(pickle::load(pickle::dump(space, {}), options).equals(space));
  CHECK_THROWS_AS(pickle::load(pickle::dump(space, {}), {}), Error);
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

TEST_CASE("values of every kind survive both spellings of a pickle", "[pickle]") {
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
  for (const pickle::PicklerOptions& options :
       {pickle::PicklerOptions{2, false, {}}, pickle::PicklerOptions{4, true, {}}}) {
    pickle::UnpickleOptions reading;
    reading.dill = options.dill;
    const Value back = pickle::load(pickle::dump(root, options), reading);
    CHECK(back.equals(root));
    const auto& shared = back.find("shared")->as_sequence().items;
    CHECK(shared[0].same(shared[1]));
    CHECK(back.find("ordered")->as_dict().attributes.find("_metadata") != nullptr);
    const Value numbers =
        pickle::load(pickle::dump(Value(std::shared_ptr<const TensorLeaf>(array)), options), reading);
    CHECK(numbers.as_leaf().role == TensorLeaf::Role::ndarray);
    CHECK(numbers.as_tensor().to_bytes() == array->tensor.to_bytes());
  }
  CHECK_THAT(message_of(
                 [&] {
                   pickle::dump_dill(dict_of({{"a", Value::list({number_tensor(1)})}}));
                 },
                 Errc::value),
             Contains("a.0"));
  const Value graph = std::make_shared<Object>(Object{"cerebras.graph_tensor", "", Value::dict()});
  CHECK_THAT(message_of(
                 [&] {
                   pickle::dump(dict_of({{"g", graph}}), {});
                 },
                 Errc::value),
             Contains("'g'") && Contains("graph"));
}

TEST_CASE("texts of protocols 0 and 1 have escapes", "[pickle]") {
  const auto value = [](std::string_view pickle) { return pickle::load(pickle, {}); };
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

TEST_CASE("what takes the place of instances is there wherever they are fetched", "[pickle]") {
  // [a, b, c, …, a]: the first instance is fetched again; those after it may be at its address
  pickle::UnpickleOptions options;
  options.describes = true;
  options.replace = [](std::string_view type, const Value& state) -> std::optional<Value> {
    if (type != "mine.Piece") return std::nullopt;
    return Value(state.find("n")->as_int());
  };
  const auto piece = [](int number, std::string_view put) {
    const std::string state = "}" + text("n") + "K" + static_cast<char>(number) + "s";
    return global("mine", "Piece") + ")\x81" + std::string(put) + state + "b";
  };
  std::string opcodes = "\x80\x02]q\x63" + piece(1, "q\x01") + "a";
  for (int i = 2; i < 100; ++i) opcodes += piece(i, fmt::format("q{}", static_cast<char>(i))) + "a";
  opcodes +=
      "h\x01"
      "a.";
  const Value list = pickle::load(opcodes, options);
  const auto& items = list.as_sequence().items;
  REQUIRE(items.size() == 100);
  for (size_t i = 0; i < 99; ++i) CHECK(items[i].as_int() == static_cast<int64_t>(i + 1));
  CHECK(items.back().as_int() == 1);
}

TEST_CASE("states of one form are read at once, as they are one by one", "[pickle]") {
  const std::string size = "h\x01";  // torch.Size, fetched
  const std::string dims = "K\x04M\x00\x01\x86\x85R"s;
  const auto named = [](std::string_view number, std::string_view of_size) {
    return text("number") + std::string(number) + text("name") + text("abc") + text("size") +
           std::string(of_size);
  };
  struct Case {
    std::vector<std::string> states;
    size_t once;  // that are read at once
  };
  const std::vector<Case> cases = {
      {{named("K\x01", size + dims), named("M\x02\x03", size + ")\x85R"),
        named("N", size + "(K\x01K\x02K\x03K\x04t\x85R"), named("\x8a\x05\x01\x02\x03\x04\x05"s, "N"),
        named("h\x02", size + "K\x07\x85q\x09\x85R")},
       3},
      // fetched after the list, and in the same state; a number that is given twice
      {{named("K\x01", size + dims), named("K\x02", size + dims + "q\x03"), named("K\x03", "h\x03"),
        named("K\x04", size + dims)},
       3},
      {{named("K\x01", "N"),
        text("number") + size + dims + "q\x03" + text("name") + "h\x03" + text("size") + "h\x03"},
       0},
      // other names, another order, more of them, a list, a list in a size
      {{named("K\x01", "N"), text("number") + "N" + text("size") + "N", named("K\x02", "N"),
        named("K\x03", "N"), named("K\x04", "]")},
       1},
      {{named("K\x01", "N"), named("K\x02", size + "]\x85R")}, 0},
      {{named("K\x01", "N"), named("K\x02", "h\x03")}, 0},  // never put
  };
  for (const Case& one : cases) {
    std::vector<std::string> found;
    for (const std::string& frame : {std::string(), "\x95" + std::string(8, '\0')}) {  // an opcode between
      std::vector<Value> states;
      std::string said;
      pickle::UnpickleOptions options;
      options.describes = true;
      options.replace = [&](std::string_view, const Value& state) -> std::optional<Value> {
        for (const auto& [key, value] : state.as_dict().entries()) {
          said += key.as_string() + "=" + value.kind_name();
          if (value.is(Value::Kind::integer)) said += fmt::format(" {}", value.as_int());
          if (value.is(Value::Kind::string)) said += " " + value.as_string();
          for (const Value& item :
               value.is(Value::Kind::sequence) ? value.as_sequence().items : std::vector<Value>())
            said += fmt::format(" {}", item.as_int());
          said += "\n";
        }
        if (std::ranges::none_of(states, [&](const Value& other) { return other.same(state); }))
          states.push_back(state);
        return Value(said);
      };
      std::string opcodes = "\x80\x02" + global("torch", "Size") + "q\x01" + "0" + "K\x63q\x02" + "0]";
      for (const std::string& state : one.states)
        opcodes += global("mine", "Piece") + ")\x81" + frame + "q\x0a}(" + state + "uba";
      try {
        const Value list = pickle::load(opcodes + ".", options);
        CHECK(list.as_sequence().items.back().as_string() == said);
        if (frame.empty()) CHECK(one.states.size() - states.size() == one.once - (one.once > 0 ? 1 : 0));
      } catch (const Error& error) {
        said += name_of(error.code());
      }
      found.push_back(said);
    }
    CHECK(found[0] == found[1]);
    CHECK_FALSE(found[0].empty());
  }
}
