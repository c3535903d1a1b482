#include "host/value/json.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "host/value/number.hpp"

using namespace cbk;

namespace {

std::string message_of(std::string_view text, const JsonReadOptions& options = {}) {
  try {
    parse_json(text, options);
  } catch (const Error& error) {
    CHECK(error.code() == Errc::format);
    return error.what();
  }
  return "";
}

JsonReadOptions python() {
  JsonReadOptions options;
  options.python = true;
  return options;
}

}  // namespace

TEST_CASE("json: floats are written as Python's repr writes them") {
  const std::vector<std::pair<double, std::string>> table = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {100.0, "100.0"},
      {0.1, "0.1"},
      {1e-4, "0.0001"},
      {1e-5, "1e-05"},
      {1.5e-5, "1.5e-05"},
      {1e15, "1e+15"},
      {1e16, "1e+16"},
      {1e22, "1e+22"},
      {123456789012345680.0, "1.2345678901234568e+17"},
      {5e-324, "5e-324"},
      {1.7976931348623157e308, "1.7976931348623157e+308"},
      {1.0 / 3, "0.3333333333333333"},
      {1e100, "1e+100"},
      {-2.5, "-2.5"},
      {9007199254740993.0, "9007199254740992.0"}};
  for (const auto& [number, text] : table) {
    CHECK(float_repr(number) == (number == 1e15 ? "1000000000000000.0" : text));
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const double number = std::bit_cast<double>(random());
    if (std::isfinite(number)) CHECK(std::strtod(float_repr(number).c_str(), nullptr) == number);
  }
}

TEST_CASE("json: what Python writes comes back as the same text") {
  const std::vector<std::string> texts = {
      R"({"b": 1, "a": [1.0, -0.0, 1e-05, true, null, "x"], "": {}, "c": []})",
      R"([12345678901234567890, -98765432109876543210987654321, 9223372036854775807, -9223372036854775808])",
      R"({"nan": NaN, "list": [Infinity, -Infinity], "NaN": "NaN, Infinity \" NaN"})",
      R"("\u0001\b\f\n\r\t\"\\/ü€𝄞")"};
  for (const std::string& text : texts) {
    JsonWriteOptions options;
    options.python = true;
    CHECK(to_json(parse_json(text, python()), options) == text);
  }
  const std::string digits(500, '7');
  CHECK(to_json(parse_json("[-" + digits + ", " + digits + "]")) == "[-" + digits + ", " + digits + "]");
}

TEST_CASE("json: indent, separators and ascii as json.dumps") {
  const Value value = parse_json(R"({"a": [1, {"b": []}], "ü𝄞": {}})");
  JsonWriteOptions options;
  options.indent = 2;
  CHECK(to_json(value, options) ==
        "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n  \"ü𝄞\": {}\n}");
  options = {};
  options.ascii = true;
  options.spaced = false;
  CHECK(to_json(value, options) == R"({"a":[1,{"b":[]}],"\u00fc\ud834\udd1e":{}})");
  CHECK(json_quote("\x7f", true) == "\"\\u007f\"");
  CHECK(json_quote("\x7f") == "\"\x7f\"");
  CHECK(json_quote("\xed\xa0\x80", true) == "\"\\ud800\"");  // a lone surrogate out of a pickle
  CHECK_THROWS_AS(json_quote("\xff"), Error);
  CHECK_THROWS_AS(json_quote("\xc0\x80"), Error);
  CHECK_THROWS_AS(json_quote("\xe2\x82"), Error);
}

TEST_CASE("json: escapes of lone surrogates are read and written as Python does, and only then") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {R"("\ud800")", "\xed\xa0\x80"},
      {R"("a\uDFFFb")",
       "a\xed\xbf\xbf"
       "b"},
      {R"("\ud800\ud800\udc00\udc00")", "\xed\xa0\x80\xf0\x90\x80\x80\xed\xb0\x80"},
      {R"("\u0000\udc00\u0000\ud834\udd1e\ud834x\\\"")",
       std::string("\0\xed\xb0\x80\0", 5) + "𝄞\xed\xa0\xb4x\\\""},
      {R"("\\ud800\ud83d")", "\\ud800\xed\xa0\xbd"}};
  JsonWriteOptions write;
  write.python = write.ascii = true;
  for (const auto& [json, text] : table) {
    CHECK(parse_json(json, python()).as_string() == text);
    CHECK(parse_json(to_json(Value(text), write), python()).as_string() == text);
    CHECK(!message_of(json).empty());
    CHECK_THROWS_AS(to_json(Value(text)), Error);
  }
  // Between others, as a key, and beside what is replaced too.
  const Value tree =
      parse_json(R"({"\ud800": "x", "y": NaN, "z": ["\udc00", "", Infinity, "\u0000"]})", python());
  CHECK(tree.as_dict().at("\xed\xa0\x80").as_string() == "x");
  CHECK(std::isnan(tree.as_dict().at("y").as_double()));
  const auto& items = tree.as_dict().at("z").as_sequence().items;
  CHECK(items[0].as_string() == "\xed\xb0\x80");
  CHECK(items[1].as_string().empty());
  CHECK(std::isinf(items[2].as_double()));
  CHECK(items[3].as_string() == std::string(1, '\0'));
  JsonReadOptions strict = python();
  strict.reject_duplicates = true;
  CHECK(!message_of(R"({"\ud800": 1, "\uD800": 2})", strict).empty());
  CHECK(message_of(R"({"\ud800": 1, "\ud801": 2, "\u0000": 3})", strict).empty());
  for (const char* text :
       {"\"\\ud80\"", "\"\\ud800", "\"\\ud800\\u\"", "\"\\ud800\\udc0\"", "\"\\ud8zz\"", "\"\xed\xa0\x80\""})
    CHECK(!message_of(text, python()).empty());
  // Two characters that the escapes would join.
  CHECK_THROWS_WITH(to_json(Value("\xed\xa0\x80\xed\xb0\x80"), write), Catch::Contains("surrogates"));
}

TEST_CASE("json: numbers keep their kind, and their spelling when asked") {
  JsonReadOptions keep;
  keep.keep_spelling = true;
  CHECK(to_json(parse_json("[1e-5, 1.50, 1E+2, 1.0]", keep)) == "[1e-5, 1.50, 1E+2, 1.0]");
  CHECK(to_json(parse_json("[1e-5, 1.50, 1E+2, 1.0]")) == "[1e-05, 1.5, 100.0, 1.0]");
  CHECK(parse_json("1").is(Value::Kind::integer));
  CHECK(parse_json("1.0").is(Value::Kind::real));
  CHECK(parse_json("18446744073709551615").as_integer().fits == false);
  // A YAML spelling is not JSON.
  CHECK(to_json(Real{0.5, std::make_shared<const std::string>(".5")}) == "0.5");
  CHECK(to_json(Integer{31, std::make_shared<const std::string>("0x1F"), true}) == "31");
}

TEST_CASE("json: keys that are not text become text, as in Python") {
  const Value dict = Value::dict();
  dict.as_dict().set(1, "a");
  dict.as_dict().set(Value(), "b");
  dict.as_dict().set(2.5, "c");
  CHECK(to_json(dict) == R"({"1": "a", "null": "b", "2.5": "c"})");
  dict.as_dict().set(Value::tuple({1}), "d");
  CHECK_THROWS_AS(to_json(dict), Error);
}

TEST_CASE("json: duplicate keys: the last wins, or are refused") {
  const std::string text = R"({"a": 1, "b": 2, "a": 3})";
  CHECK(to_json(parse_json(text)) == R"({"a": 3, "b": 2})");
  JsonReadOptions strict;
  strict.reject_duplicates = true;
  CHECK_THAT(message_of(text, strict), Catch::Contains("'a'") && Catch::Contains("line 1"));
}

TEST_CASE("json: of many repeated keys, the first are reported") {
  std::string text = R"({"a": 0)";
  for (int i = 0; i < 40000; ++i) text += R"(, "a": 0)";
  std::vector<std::string> warnings;
  JsonReadOptions options;
  options.warn = [&](std::string warning) { warnings.push_back(std::move(warning)); };
  CHECK(parse_json(text + "}", options).as_dict().size() == 1);
  REQUIRE(warnings.size() == 21);
  CHECK_THAT(warnings[19], Catch::Contains("line 1, column 164: the key 'a' is repeated"));
  CHECK(warnings[20] == "39980 more keys are repeated");
}

TEST_CASE("json: a text may take memory by its size") {
  const auto repeated = [](std::string_view item, size_t count) {
    std::string text = "[" + std::string(item);
    for (size_t i = 1; i < count; ++i) (text += ',') += item;
    return text + "]";
  };
  const auto problem = [](const std::string& text) { return message_of(text, python()); };
  for (const std::string_view item :
       {"1", "{}", "[]", "NaN", "1.5", R"({"a":1})", "99999999999999999999", R"("abcdefghijklmnopqrst")"}) {
    CAPTURE(item);
    CHECK(problem(repeated(item, 20000)).empty());
    CHECK_THAT(problem(repeated(item, 2000000)), Catch::Contains("too much for"));
  }
  CHECK(problem(repeated('"' + std::string(1000, 'x') + '"', 50000)).empty());
}

TEST_CASE("json: errors say where") {
  CHECK_THAT(message_of("{\n  \"a\": 1,\n  \"ü\": x}"), Catch::StartsWith("line 3, column 8:"));
  CHECK_THAT(message_of("{\"a\": "), Catch::Contains("unexpected end of input"));
  for (const char* text : {"",      "nan",      "[1,]",   "{\"a\" 1}",   "[1] 2", "'a'",    "01",
                           "1e999", "\"\xff\"", "{1: 2}", "\"\\ud800\"", "[NaN]", "\"\n\"", "{\"a\":1,}",
                           "-",     "--1",      "+1",     "0x1",         "tru",   "[\"",    "\"\\"}) {
    CHECK(!message_of(text).empty());
  }
  for (const char* text : {"{NaN: 1}", "NaNa", "-NaN", "+Infinity", "[NaN NaN]"})
    CHECK(!message_of(text, python()).empty());
  CHECK(message_of("\"" + std::string(100000, 'x')).size() < 400);
}

TEST_CASE("json: depth is bounded, reading and writing") {
  CHECK(message_of(std::string(500, '[') + std::string(500, ']')).empty());
  CHECK_THAT(message_of(std::string(501, '[')), Catch::Contains("nested deeper"));
  CHECK(!message_of(std::string(3000000, '[')).empty());
  const Value cycle = Value::list();
  cycle.as_sequence().items.push_back(cycle);
  CHECK_THROWS_AS(to_json(cycle), Error);
  cycle.as_sequence().items.clear();
}

TEST_CASE("json: output beyond a limit is refused") {
  const JsonWriteOptions options{.limit = 100};
  CHECK(to_json(Value(std::string(90, 'a')), options).size() == 92);
  CHECK_THROWS_WITH(to_json(Value(std::string(90, '\1')), options),
                    Catch::Contains("more than 100 B of JSON"));
  CHECK_THROWS_AS(to_json(Value::list(std::vector<Value>(60, 1)), options), Error);
}

TEST_CASE("json: what is not JSON is refused by name") {
  CHECK_THROWS_WITH(to_json(Value::bytes("x")), Catch::Contains("bytes"));
  CHECK_THROWS_WITH(to_json(std::numeric_limits<double>::infinity()), Catch::Contains("inf"));
}

TEST_CASE("JSON for a terminal has escapes where `shown` has them, and says lone surrogates") {
  const JsonWriteOptions options{.shown = true};
  CHECK(to_json(Value("é\x7f\xc2\x9b\xe2\x80\xae\xed\xa0\x80\xed\xb0\x80\x1b"), options) ==
        R"("é\u007f\u009b\u202e\ud800\udc00\u001b")");
  CHECK_THROWS_AS(to_json(Value(std::numeric_limits<double>::infinity()), options), Error);
  CHECK(to_json(Value("\x7f")) == "\"\x7f\"");
}
