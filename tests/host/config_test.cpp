#include "host/config/config.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "host/base/file.hpp"
#include "host/config/yaml_scalar.hpp"
#include "host/value/json.hpp"
#include "tests/host/folder.hpp"

using namespace cbk;

namespace {

Value yaml_value(std::string_view text) {
  return parse_config(text, ConfigFormat::yaml);
}

std::string yaml_text(const Value& value, bool sort = false) {
  ConfigWriteOptions options;
  options.sort_keys = sort;
  return dump_config(value, ConfigFormat::yaml, options);
}

/// One line of JSON: order, kinds and values at a glance.
std::string as_json(std::string_view text) {
  JsonWriteOptions options;
  options.python = true;
  return to_json(yaml_value(text), options);
}

Error error_of(std::string_view text, ConfigFormat format = ConfigFormat::yaml) {
  try {
    parse_config(text, format);
  } catch (const Error& error) {
    return error;
  }
  return {Errc::internal, "no error"};
}

}  // namespace

TEST_CASE("config: plain scalars mean what PyYAML takes them for, and 1e-5 is a float") {
  const std::vector<std::pair<std::string, std::string>> table = {
      // whole numbers
      {"12", "int 12"},
      {"+12", "int 12"},
      {"-0", "int 0"},
      {"0x1F", "int 31"},
      {"-0x1f", "int -31"},
      {"017", "int 15"},
      {"0b101", "int 5"},
      {"1_000", "int 1000"},
      {"1:30", "int 90"},
      {"0_", "int 0"},
      {"123456789012345678901234567890", "int 123456789012345678901234567890"},
      {"0xFFFFFFFFFFFFFFFFFF", "int 4722366482869645213695"},
      {"-9223372036854775808", "int -9223372036854775808"},
      {"08", "str"},
      {"0o17", "str"},
      {"0x", "str"},
      {"0b_", "str"},
      {"1__", "int 1"},
      {"_1", "str"},
      {"12a", "str"},
      {"1:60", "str"},
      {"0:30", "str"},
      {"1:5", "int 65"},
      // floats
      {"1.", "float 1.0"},
      {".5", "float 0.5"},
      {"-.5", "str"},
      {"1.5e+3", "float 1500.0"},
      {"1e-5", "float 1e-05"},
      {"1E5", "float 100000.0"},
      {"1.5e3", "float 1500.0"},
      {"6.02e23", "float 6.02e+23"},
      {"1e", "str"},
      {"e5", "str"},
      {"1e5x", "str"},
      {"1_0.5_0", "float 10.5"},
      {"1:30.5", "float 90.5"},
      {".inf", "float inf"},
      {"-.INF", "float -inf"},
      {"+.inf", "float inf"},
      {"1e999", "float inf"},
      {"1e-999", "float 0.0"},
      {".", "str"},
      {"..", "str"},
      {"1.2.3", "str"},
      {"-", "str"},
      {"+", "str"},
      // words
      {"true", "bool True"},
      {"Yes", "bool True"},
      {"off", "bool False"},
      {"NO", "bool False"},
      {"y", "str"},
      {"tRue", "str"},
      {"null", "None"},
      {"~", "None"},
      {"", "None"},
      {"Null", "None"},
      {"nULL", "str"},
      {"none", "str"},
      {"=", "str"},
      // dates
      {"2024-01-31", "datetime.date"},
      {"2024-1-31", "str"},
      {"2024-1-31 1:02:03", "datetime.datetime"},
      {"2024-01-31T01:02:03.5+01:00", "datetime.datetime"},
      {"2024-01-31T01:02", "str"},
      {"20240131", "int 20240131"}};
  for (const auto& [text, wanted] : table) {
    const Value value = yaml::resolve(text);
    std::string found = value.kind_name();
    if (value.is(Value::Kind::integer) || value.is(Value::Kind::real)) found += " " + key_text(value);
    if (value.is(Value::Kind::boolean)) found += value.as_bool() ? " True" : " False";
    CAPTURE(text);
    if (wanted == "float 1e-05" || wanted == "float 6.02e+23" || wanted == "float inf" ||
        wanted == "float -inf") {
      CHECK(value.as_double() == std::strtod(wanted.c_str() + 6, nullptr));
    } else {
      CHECK(found == wanted);
    }
    // Whatever it was: as text it is quoted, so that it stays text.
    const Value copy = yaml_value(yaml_text(Value(text)));
    REQUIRE(copy.is(Value::Kind::string));
    CHECK(copy.as_string() == text);
  }
  CHECK(std::isnan(yaml::resolve(".nan").as_double()));
}

TEST_CASE("config: YAML comes back as it was, comments and styles aside") {
  const std::string text = R"(model:
    lr: 1e-5
    eps: 1.0e-05
    hex: 0x1F
    octal: 017
    big: 123456789012345678901234567890
    grouped: 1_000
    when: 2024-01-31
    name: '0123'
    switch: 'yes'
    nothing: null
    words: it's plain, with [brackets] and {braces}
    colon: 'a: b'
    hash: 'a #b'
    path: a:b#c
    unicode: größe 𝄞
    empty: ''
    text: |
        first
          second

        # third
    chomped: |-
        a
        b
    tail: "a\n\n"
    control: "\x01\t\\\""
list:
- 1
-   x: 1
    w:
    - 2
    z:
        q: .inf
-   - 3
    -   - -.inf
- []
- {}
7: int key
true: bool key
null: null key
2.5: float key
'1': text key
bytes: !!binary "YWJjAA=="
set: !!set
    ? x
    ? 1
no set: !!set {}
pairs: !!pairs
-   b: 1
-   b:
    - !!pairs
        -   x: null
        -   2: {}
    -   - !!set
            ? z
-   '2024-01-31': !!pairs
    -   true: 2001-12-14 21:59:43.10-05:00
)";
  const Value value = yaml_value(text);
  CHECK(yaml_text(value) == text);
  CHECK(value.as_dict().at("model").find("text")->as_string() == "first\n  second\n\n# third\n");
  for (const char* tagged : {"!!omap [b: 1, a: {x: 2}]", "!!pairs [b: 1, b: [2]]", "!!omap [? 'long' : 1]",
                             "!!set {x, 2}", "!!timestamp '2024-01-31'", "!!binary ''", "!!omap []",
                             "!!float 3", "!!str x", "! 3", "[!!set {}]"}) {
    CAPTURE(tagged);
    const Value tree = yaml_value(tagged);
    CHECK(yaml_value(yaml_text(tree)).equals(tree));
  }
}

TEST_CASE("config: floats without a YAML spelling are written so that PyYAML reads floats") {
  const auto written = [](const Value& value) { return yaml_text(value); };
  CHECK(written(1e-5) == "1.0e-05\n");
  CHECK(written(1e16) == "1.0e+16\n");
  CHECK(written(1.5e-7) == "1.5e-07\n");
  CHECK(written(1.0) == "1.0\n");
  CHECK(written(std::numeric_limits<double>::quiet_NaN()) == ".nan\n");
  CHECK(written(parse_config("1e-5", ConfigFormat::json)) == "1.0e-05\n");
  CHECK(written(parse_config("0.00001", ConfigFormat::json)) == "0.00001\n");
  CHECK(written(parse_config("1E+2", ConfigFormat::json)) == "100.0\n");
  CHECK(dump_config(parse_config("1e-5", ConfigFormat::json), ConfigFormat::json) == "1e-5\n");
  CHECK(dump_config(yaml_value("1_0.5"), ConfigFormat::json) == "10.5\n");
  CHECK(dump_config(yaml_value("{a: 0x1F, b: 1e-5, c: .inf, d: 2024-01-01}"), ConfigFormat::json) ==
        "{\n    \"a\": 31,\n    \"b\": 1e-5,\n    \"c\": Infinity,\n    \"d\": \"2024-01-01\"\n}\n");
}

TEST_CASE("config: keys may be sorted, as Python sorts") {
  CHECK(yaml_text(yaml_value("{b: {z: 1, a: 2}, B: 3, a: 4}"), true) ==
        "B: 3\na: 4\nb:\n    a: 2\n    z: 1\n");
  CHECK(yaml_text(yaml_value("{10: a, 9: b}"), true) == "9: b\n10: a\n");
  CHECK(yaml_text(yaml_value("{b: a, 9: b}"), true) == "b: a\n9: b\n");
}

TEST_CASE("config: anchors, aliases and merge keys are resolved into values of their own") {
  CHECK(as_json("a: &x {p: 1, q: [2]}\nb: *x\nc: {<<: *x, q: 3, r: 4}\n") ==
        R"({"a": {"p": 1, "q": [2]}, "b": {"p": 1, "q": [2]}, "c": {"p": 1, "q": 3, "r": 4}})");
  // Of several the first wins; what is merged in stands first.
  CHECK(as_json("a: &x {k: 1, m: 1}\nb: &y {k: 2, n: 2}\nc: {z: 0, <<: [*x, *y]}\n") ==
        R"({"a": {"k": 1, "m": 1}, "b": {"k": 2, "n": 2}, "c": {"k": 1, "n": 2, "m": 1, "z": 0}})");
  CHECK(as_json("'<<': 1\nb: <<\n") == R"({"<<": 1, "b": "<<"})");
  CHECK(as_json("- &a 1e-5\n- *a\n- &b\n- *b\n") == "[1e-5, 1e-5, null, null]");
  const Value value = yaml_value("a: &x {p: 1}\nb: *x\n");
  value.as_dict().at("a").as_dict().set("p", 2);
  CHECK(value.as_dict().at("b").find("p")->as_int() == 1);
}

TEST_CASE("config: YAML's own tags are read, others are refused") {
  CHECK(yaml_text(yaml_value("!!set {x}")) == "!!set\n? x\n");
  CHECK(as_json("[!!str 12, !!int '0x10', !!float 1, !!bool 'no', !!null x, !!str, ! 7]") ==
        R"(["12", 16, 1.0, false, null, "", "7"])");
  CHECK(as_json("!!omap [b: 1, a: 2]") == R"([["b", 1], ["a", 2]])");
  CHECK(as_json("!!pairs [b: 1, b: 2]") == R"([["b", 1], ["b", 2]])");
  CHECK(yaml_text(yaml_value("a: !!set {x, 1}")) == "a: !!set\n    ? x\n    ? 1\n");
  CHECK(yaml_value("!!binary aGk=").as_bytes().data == "hi");
  for (const char* text : {"!!python/object/apply:os.system ['x']", "!lua x", "!<tag:example.org,2000:x> {}",
                           "a: !!python/tuple [1]"}) {
    CHECK(error_of(text).code() == Errc::refused);
  }
  CHECK(error_of("!!int x").code() == Errc::format);
  CHECK(error_of("!!map [1]").code() == Errc::format);
}

TEST_CASE("config: what is wrong is said with its place") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"a: [1\nb: 2", "line "},
      {"--- a\n--- b\n", "second document"},
      {"? [a]\n: 1\n", "cannot be a key"},
      {"*x\n", "line 1"},
      {"a: &a [*a]\n", "inside of what it refers to"},
      {"a: &a\n  <<: *a\n", "inside of what it refers to"},
      {"<<: 1\n", "<< takes"},
      {"%YAML 9.9\n---\n", "line"},
      {"a: \x01", "U+0001"},
      {"a: \xff", "not UTF-8"},
      {"a: \"\\ud800\"", "line 1"},
      {"%x: 1\n", "no document follows"},
      {"%YAML 1.1\na: 1\n", "line 2: a document whose first line"},
      {"a: 2024-02-30\n", "'2024-02-30' is not a date"},
      {"a: 2024-01-31 24:00:00\n", "is not a date"},
      {"a: !!timestamp 0000-01-01\n", "is not a date"},
      {"a: !!binary aGk\n", "cut off"},
      {"[1,,2]", "line 1, column 4: a ',' with nothing in front"},
      {"[,1]", "nothing in front"},
      {"[1,2,,]", "nothing in front"},
      {"{a: 1,, b: 2}", "nothing in front"},
      {"{,}", "nothing in front"},
      {"{a: [b, , c]}", "nothing in front"},
      {"a: b: c", "line 1"},
      {"'a", "line"},
      {"a: 0x" + std::string(6000, 'f'), "too long"}};
  for (const auto& [text, wanted] : table) {
    CAPTURE(text);
    CHECK_THAT(error_of(text).what(), Catch::Contains(wanted));
    CHECK(error_of(text).code() == Errc::format);
  }
}

TEST_CASE("config: the last value of a repeated key counts, as in Python, with a warning") {
  struct Case {
    std::string text;
    ConfigFormat format;
    std::string value;
    std::vector<std::string> warnings;
  };
  const std::vector<Case> table = {
      {"a: 1\nb: 2\na: 3\n", ConfigFormat::yaml, R"({"a": 3, "b": 2})", {"line 3, column 1: the key 'a'"}},
      {"{1: a, 1.0: b, true: c}",
       ConfigFormat::yaml,
       R"({"1": "c"})",
       {"column 8: the key '1.0'", "the key 'True'"}},
      {"x: {a: &v [1], a: *v}\n", ConfigFormat::yaml, R"({"x": {"a": [1]}})", {"line 1"}},
      {"x: &m {a: 1}\ny: {<<: *m, a: 2}\n", ConfigFormat::yaml, R"({"x": {"a": 1}, "y": {"a": 2}})", {}},
      {R"({"a": 1, "b": {"c": 1,
 "c": 2}, "a": 3})",
       ConfigFormat::json,
       R"({"a": 3, "b": {"c": 2}})",
       {"line 2, column 4: the key 'c'", "the key 'a'"}},
  };
  for (const Case& each : table) {
    std::vector<std::string> warnings;
    const Value value =
        parse_config(each.text, each.format, [&](std::string text) { warnings.push_back(text); });
    CAPTURE(each.text);
    JsonWriteOptions options;
    options.python = true;
    CHECK(to_json(value, options) == each.value);
    CHECK(parse_config(each.text, each.format).equals(value));
    REQUIRE(warnings.size() == each.warnings.size());
    for (size_t i = 0; i < warnings.size(); ++i) CHECK_THAT(warnings[i], Catch::Contains(each.warnings[i]));
  }
  const Folder folder;
  std::vector<std::string> warnings;
  const auto keep = [&](std::string text) { warnings.push_back(std::move(text)); };
  load_config(folder.write("params", "{\"a\": 1, \"a\": 2, b: 3}"), keep);  // JSON at first, then YAML
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Catch::Contains("params'") && Catch::Contains("line 1, column 10"));
}

TEST_CASE("config: a folded block keeps its last line ends where it says so") {
  CHECK(as_json("a: >+\n  x\n  y\n\n\nb: |+\n  z\n\n") == R"({"a": "x y\n\n\n", "b": "z\n\n"})");
  CHECK(as_json("- >2+\n   x\n\n\n# c\n- >+\n  x") == R"([" x\n\n\n", "x"])");
  CHECK(as_json("--- >+\n x\n\n...\n") == R"("x\n\n")");
  CHECK(as_json("a: >-\n  x\n\nb: >\n  y\n\n") == R"({"a": "x", "b": "y\n"})");
  CHECK(as_json("a: >+\nb: >+\n\nc: >\n\nd: 1\n") == R"({"a": "", "b": "\n", "c": "", "d": 1})");
}

TEST_CASE("config: pairs of surrogates are one character in double quotes, and text elsewhere") {
  const auto read = [](const std::string& text) { return parse_config(text, ConfigFormat::yaml); };
  const std::string smile = "\xF0\x9F\x98\x80";
  const std::string source = R"(a: "\ud83d\ude00 \uD83D\uDE00"
b: '\ud83d\ude00'
c: \ud83d\uDe00
d: |
  \uD83D\ude00
e: {"\ud83d\ude00": ["\U0001f600", "\\ud83d"]}
)";
  const Value root = read(source);
  CHECK(root.find("a")->as_string() == smile + " " + smile);
  CHECK(root.find("b")->as_string() == R"(\ud83d\ude00)");
  CHECK(root.find("c")->as_string() == R"(\ud83d\uDe00)");
  CHECK(root.find("d")->as_string() == "\\uD83D\\ude00\n");
  CHECK(root.find("e")->find(smile)->as_sequence().items[0].as_string() == smile);
  CHECK(root.find("e")->find(smile)->as_sequence().items[1].as_string() == "\\ud83d");
  CHECK(read(R"(a: "\ue83d\ue600")").find("a")->as_string() == "\xEE\xA0\xBD\xEE\x98\x80");
  for (const std::string wrong :
       {R"(a: "\ud83d")", R"(a: "\ude00\ud83d")", R"(a: "\ud83dx\ude00")", R"(a: "\ud83d\ud)"})
    CHECK_THROWS_AS(read(wrong), Error);
}

TEST_CASE("config: bombs are refused soon") {
  std::string laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  std::string merges = "b0: &b0 {x: 1}\n";
  for (int i = 1; i < 30; ++i) {
    laughs += fmt::format("a{0}: &a{0} [*a{1},*a{1},*a{1},*a{1},*a{1}]\n", i, i - 1);
    merges += fmt::format("b{0}: &b{0} {{<<: [*b{1}, *b{1}], k{0}: *b{1}}}\n", i, i - 1);
  }
  CHECK_THAT(error_of(laughs).what(), Catch::Contains("more than"));
  CHECK_THAT(error_of(merges).what(), Catch::Contains("more than"));
  std::string deep = "a0: &a0 " + std::string(300, '[') + std::string(300, ']') + "\n";
  deep += "a1: " + std::string(200, '[') + "*a0" + std::string(200, ']');
  CHECK_THAT(error_of(deep).what(), Catch::Contains("deep"));
  for (const std::string& text : {std::string(100000, '['), std::string("- ") + std::string(3000, '{')}) {
    CHECK(error_of(text).code() == Errc::format);
  }
  CHECK(error_of("a: " + std::string(17 << 20, 'x')).code() == Errc::format);
}

TEST_CASE("config: what a config cannot hold is named") {
  const Value inner = Value::dict();
  inner.as_dict().set("betas", Value::list({std::complex<double>(1, 2)}));
  const Value tree = Value::dict();
  tree.as_dict().set("optimizer", inner);
  CHECK_THROWS_WITH(yaml_text(tree), Catch::Contains("'optimizer.betas.0'") && Catch::Contains("complex"));
  const Value loop = Value::list();
  loop.as_sequence().items.push_back(loop);
  CHECK_THROWS_AS(yaml_text(loop), Error);
  CHECK_THROWS_AS(yaml_text(loop, true), Error);
  loop.as_sequence().items.clear();
}

TEST_CASE("config: long keys and every character survive") {
  std::string all;
  for (const char* part : {"\x01", "\x7f", "\xc2\x80", "\xc2\x85", "\xc2\xa0", "\xe2\x80\xa8", "\xef\xbb\xbf",
                           "\xf0\x9d\x84\x9e", "\\", "\"", "\n", "\t", "\r", "'"}) {
    all += part;
  }
  const Value tree = Value::dict();
  tree.as_dict().set(std::string(2000, 'k'),
                     Value::list({all, " lead", "trail ", "a\n b\n", "\n", "a\n\n\nb", " x\ny", "a \nb",
                                  "- a", "---", "...", "# c", "a:", "!t", "%d"}));
  tree.as_dict().set(all, Value::dict());
  tree.as_dict().set("nested", Value::dict());
  tree.as_dict().at("nested").as_dict().set("two\nlines", "b\nc");
  CHECK(yaml_value(yaml_text(tree)).equals(tree));
  CHECK(parse_config(dump_config(tree, ConfigFormat::json), ConfigFormat::json).equals(tree));
}

TEST_CASE("config: a text may take memory by its size") {
  const auto repeated = [](std::string_view begin, std::string_view item, size_t count) {
    std::string text(begin);
    for (size_t i = 0; i < count; ++i) text += item;
    return text;
  };
  const auto problem = [](const std::string& text) -> std::string {
    try {
      yaml_value(text);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  // In brackets, the parser keeps all tokens until they close.
  for (const std::string_view item : {"1,", "{},", "[],", "\"a\", ", "a: b,", "1.5,", "!!str a,", "&a 1,"}) {
    CAPTURE(item);
    CHECK(problem(repeated("[", item, 15000) + "]").empty());
    CHECK_THAT(problem(repeated("[", item, 1000000) + "]"),
               Catch::StartsWith("line 1: the text up to here needs more than"));
  }
  for (const std::string_view item :
       {"- 1\n", "- {}\n", "- 1e-5\n", "- &a 1\n", "- 2024-01-01\n", "- !!binary aGk=\n"}) {
    CAPTURE(item);
    CHECK(problem(repeated("", item, 60000)).empty());
    CHECK_THAT(problem(repeated("", item, 2000000).substr(0, 8 << 20)), Catch::Contains("too much for"));
  }
  for (const std::string_view item : {"[", "&a ", "\n---"}) {
    CAPTURE(item);
    CHECK_THAT(problem(repeated("[", item, 1000000)), Catch::Contains("too much for"));
  }
  // Aliases and merge keys are copies.
  const std::string text = "- &x " + std::string(1000000, 'x') + "\n";
  CHECK(problem(repeated(text, "- *x\n", 10)).empty());
  CHECK_THAT(problem(repeated(text, "- *x\n", 1000)), Catch::Contains("too much for"));
  const std::string map = repeated("- &m {", "a: 1, ", 1) + repeated("b: [", "1,", 1000) + "]}\n";
  CHECK_THAT(problem(repeated(map, "- {<<: *m}\n", 1000)), Catch::Contains("too much for"));
  CHECK(problem("a: " + std::string(7000000, 'x')).empty());
}

TEST_CASE("config: files are known by suffix, else by content") {
  const Folder folder;
  const auto load = [&](const char* name, std::string_view text) {
    return load_config(folder.write(name, text));
  };
  CHECK(load("a.json", "{\"a\": 1}").find("a")->as_int() == 1);
  CHECK(load("a.yml", "{a: 1}").find("a")->as_int() == 1);
  CHECK(load("params", "{\"a\": 1e5}").find("a")->as_real().from_yaml == false);
  CHECK(load("params", "{a: 1}").find("a")->as_int() == 1);
  CHECK(load("empty.yaml", "# nothing\n").is_none());
  CHECK_THROWS_WITH(load("b.json", "{a: 1}"),
                    Catch::Contains("b.json") && Catch::Contains("line 1, column 2"));
  CHECK_THROWS_WITH(load_config(folder.path("gone.yaml")), Catch::Contains("gone.yaml"));
}
