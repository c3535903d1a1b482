#include <catch2/catch.hpp>
#include <random>

#include "host/value/value.hpp"

using namespace cbk;

TEST_CASE("a dict keeps the order of its keys", "[value]") {
  Dict dict;
  for (const char* key : {"z", "a", "m"}) dict.set(key, static_cast<int64_t>(dict.size()));
  dict.set("z", 9);
  REQUIRE(dict.size() == 3);
  CHECK(dict.entries().front().first.as_string() == "z");
  CHECK(dict.at("z").as_int() == 9);
  CHECK(dict.erase("a"));
  CHECK_FALSE(dict.erase("a"));
  CHECK(dict.at("m").as_int() == 2);
  CHECK_THROWS_WITH(dict.at("mm"), Catch::Contains("'mm'") && Catch::Contains("near it: m"));
}

TEST_CASE("keys are equal where Python says so", "[value]") {
  Dict dict;
  dict.set(1, "int");
  dict.set("1", "text");
  dict.set(Value(), "none");
  dict.set(Value::tuple({"a", "bc"}), "tuple");
  dict.set(Value::tuple({"ab", "c"}), "another tuple");
  CHECK(dict.size() == 5);
  CHECK(dict.find(Value(1.0))->as_string() == "int");
  CHECK(dict.find(Value(true))->as_string() == "int");
  CHECK(dict.find(Value(1.5)) == nullptr);
  CHECK(dict.find(Value::integer("123456789012345678901234567890")) == nullptr);
}

TEST_CASE("integers of any size", "[value]") {
  CHECK(Value::integer("9223372036854775807").as_int() == INT64_MAX);
  CHECK_FALSE(Value::integer("9223372036854775808").as_integer().fits);
  CHECK_THROWS_WITH(Value::integer("9223372036854775808").as_int(), Catch::Contains("64 bits"));
  CHECK_THROWS_AS(Value::integer("12x"), Error);
  CHECK(Value::integer("99999999999999999999").equals(Value::integer("+99999999999999999999")));
}

TEST_CASE("the wrong kind names both kinds", "[value]") {
  CHECK_THROWS_WITH(Value("text").as_int(), "expected an int, found str");
  CHECK_THROWS_WITH(Value(1).as_dict(), "expected a dict, found int");
}

TEST_CASE("identity and equality", "[value]") {
  const Value list = Value::list({1, 2});
  CHECK(list.same(list));
  CHECK_FALSE(list.same(Value::list({1, 2})));
  CHECK(list.equals(Value::list({1, 2})));
  CHECK_FALSE(list.equals(Value::tuple({1, 2})));
  CHECK_FALSE(Value(1).equals(Value(1.0)));
  CHECK_FALSE(Value(0.0).equals(Value(-0.0)));
}

TEST_CASE("paths find values below keys that contain dots", "[value]") {
  Value root = Value::dict();
  Value model = Value::dict();
  model.as_dict().set("layers.0.weight", 7);
  model.as_dict().set(3, "three");
  root.as_dict().set("model", model);
  root.as_dict().set("list", Value::list({1, Value::list({2, 3})}));
  root.as_dict().set("a", 1);
  root.as_dict().set("a.b", 2);
  CHECK(find_path(root, "model.layers.0.weight")->as_int() == 7);
  CHECK(find_path(root, "model.3")->as_string() == "three");
  CHECK(find_path(root, "list.1.0")->as_int() == 2);
  CHECK(find_path(root, "a.b")->as_int() == 2);
  CHECK(find_path(root, "list.2") == nullptr);
  CHECK(find_path(root, "model.layers") == nullptr);
  CHECK(find_path(root, "") == &root);
}

TEST_CASE("a path is looked for once in a container that can be reached in many ways", "[value]") {
  Value root = Value::dict();
  Value after = Value::dict();
  std::string path = "x";
  for (int level = 0; level < 60; ++level) {
    Value above = Value::dict();
    above.as_dict().set("a", root);
    above.as_dict().set("a.a", after);
    after = root;
    root = above;
    path = "a." + path;
  }
  CHECK(find_path(root, path) == nullptr);
  CHECK(find_path(root, path.substr(0, path.size() - 2)) != nullptr);
}

TEST_CASE("keys are one key exactly when Python calls them equal", "[value]") {
  const auto frozen = [](std::vector<Value> items) {
    return Value(std::make_shared<Sequence>(Sequence{Sequence::Kind::frozenset, std::move(items), {}, {}}));
  };
  const auto object = [](std::string repr) {
    return Value(std::make_shared<Object>(Object{"torch.dtype", std::move(repr), {}}));
  };
  const std::vector<Value> keys = {1,
                                   "1",
                                   Value::bytes("1"),
                                   std::complex<double>(0, 1),
                                   std::complex<double>(0, 2),
                                   Value::tuple({1}),
                                   Value::tuple({1, 2}),
                                   Value::tuple({2, 1}),
                                   frozen({1, 2}),
                                   object("torch.int8"),
                                   object("torch.int16"),
                                   Value()};
  Dict dict;
  for (size_t i = 0; i < keys.size(); ++i) dict.set(keys[i], static_cast<int64_t>(i));
  REQUIRE(dict.size() == keys.size());
  const std::vector<std::pair<Value, int64_t>> equal = {{true, 0},
                                                        {1.0, 0},
                                                        {std::complex<double>(1, 0), 0},
                                                        {std::complex<double>(0, 2), 4},
                                                        {frozen({2, 1}), 8},
                                                        {object("torch.int8"), 9}};
  for (const auto& [key, position] : equal) {
    REQUIRE(dict.find(key) != nullptr);
    CHECK(dict.find(key)->as_int() == position);
  }
  for (int i = 0; i < 100; ++i) dict.set(fmt::format("key {}", i), i);  // beyond what is compared one by one
  for (size_t i = 0; i < keys.size(); ++i) CHECK(dict.find(keys[i])->as_int() == static_cast<int64_t>(i));
  CHECK(dict.erase(keys[3]));
  CHECK(dict.find(keys[3]) == nullptr);
  CHECK(dict.find(std::string_view("key 99"))->as_int() == 99);
}

TEST_CASE("what is erased from a dict leaves the rest in its order, at a constant cost", "[value]") {
  std::mt19937 random(7);
  Dict dict;
  std::vector<std::pair<std::string, int64_t>> model;  // the slow and plain way to say the same
  const auto same = [&] {
    REQUIRE(dict.size() == model.size());
    REQUIRE(dict.empty() == model.empty());
    auto wanted = model.begin();
    for (const auto& [key, value] : dict.entries()) {
      REQUIRE(key.as_string() == wanted->first);
      REQUIRE(value.as_int() == wanted->second);
      REQUIRE(dict.find(key) == &value);
      ++wanted;
    }
    REQUIRE(wanted == model.end());
  };
  for (int64_t step = 0; step < 3000; ++step) {
    const std::string key = fmt::format("k{}", random() % 60);
    const auto known =
        std::find_if(model.begin(), model.end(), [&](const auto& e) { return e.first == key; });
    const bool grows = step % 1000 < 500;
    if (random() % 10 < (grows ? 7U : 2U)) {
      dict.set(key, step);
      if (known == model.end()) {
        model.emplace_back(key, step);
      } else {
        known->second = step;
      }
    } else {
      CHECK(dict.erase(key) == (known != model.end()));
      if (known != model.end()) model.erase(known);
    }
    if (step % 7 == 0) same();
    if (step % 500 == 250) dict = Dict(dict);
    if (step % 500 == 499) dict.reserve(100);
  }
  same();

  Dict large;  // if the cost were the square of it, this would take minutes
  constexpr int64_t count = 200000;
  for (int64_t i = 0; i < count; ++i) large.set(i, i);
  for (int64_t i = 0; i < count; ++i) {
    REQUIRE(large.erase(i));
    if (i % 50000 == 0) REQUIRE(large.entries().front().first.as_int() == i + 1);
  }
  CHECK(large.empty());
  CHECK(large.entries().begin() == large.entries().end());
}

TEST_CASE("a tree of any depth needs no recursion", "[value]") {
  const auto nested = [](const Value& leaf) {
    Value tree = leaf;
    for (int i = 0; i < 300000; ++i) {
      if (i % 3 == 0) {
        tree = Value::list({tree, 1});
      } else if (i % 3 == 1) {
        const Value dict = Value::dict();
        dict.as_dict().set("below", tree);
        tree = dict;
      } else {
        tree = std::make_shared<Object>(Object{"class", "", tree});
      }
    }
    return tree;
  };
  const auto watched = std::make_shared<ByteString>();
  {
    const Value one = nested(watched);
    Value other = one;  // shared: nothing goes before the last handle
    other = 1;
    CHECK(watched.use_count() == 2);
    CHECK_THROWS_WITH(one.equals(nested(watched)), Catch::Contains("deeper than"));
    Value moved = one;
    moved.as_object().state.as_dict().erase("below");
    CHECK(watched.use_count() == 1);
  }
  CHECK(watched.use_count() == 1);
}

TEST_CASE("a key that holds itself has a text of bounded length") {
  const Value list = Value::list();
  list.as_sequence().items = {list, list};
  CHECK(key_text(list).size() < 10'000);
  list.as_sequence().items.clear();
}
