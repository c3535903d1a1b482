#include <catch2/catch.hpp>

#include "host/value/rewrite.hpp"
#include "tests/host/peak_memory.hpp"

using namespace cbk;

namespace {

Rewrite renaming(std::string from, std::string to) {
  Rewrite rules;
  rules.path = [=](const std::string& path, const Value&) -> std::optional<std::string> {
    return path.starts_with(from) ? to + path.substr(from.size()) : path;
  };
  return rules;
}

Value dict_of(std::initializer_list<std::pair<const char*, Value>> entries) {
  const Value dict = Value::dict();
  for (const auto& [key, value] : entries) dict.as_dict().set(key, value);
  return dict;
}

}  // namespace

TEST_CASE("a container whose leaves move alike is moved as it is", "[value]") {
  const Value list = Value::list(std::vector<Value>(1'000'000, Value(1)));
  const Value root = dict_of({{"a", list}, {"b", Value(2)}});
  const PeakMemory peak;
  const Value moved = rewrite(root, renaming("a", std::string(500, 'n')));
  CHECK(peak.growth() < 60'000'000);
  CHECK(moved.find(std::string(500, 'n'))->same(list));
  CHECK(moved.as_dict().size() == 2);
  CHECK(root.find("a")->same(list));
}

TEST_CASE("a state dict stays flat if something is put before its keys", "[value]") {
  const Value weights = dict_of({{"norm.weight", Value(1)}, {"head.weight", Value(2)}});
  Rewrite all;
  all.path = [](const std::string& path, const Value&) { return "model." + path; };
  const Value flat = rewrite(weights, all);
  CHECK(flat.find("model.norm.weight") != nullptr);
  CHECK(flat.as_dict().size() == 2);

  Rewrite inside;  // of a dict that is moved as a whole elsewhere
  inside.path = [](const std::string& path, const Value&) { return "model.bert" + path.substr(5); };
  const Value inner = rewrite(dict_of({{"model", weights}}), inside);
  CHECK(inner.find("model")->find("bert.norm.weight") != nullptr);
  CHECK(inner.find("model")->as_dict().size() == 2);

  const Value around = rewrite(dict_of({{"model", weights}}), all);
  CHECK(around.find("model")->find("model")->same(weights));
  const Value plain = rewrite(dict_of({{"step", Value(1)}}), all);
  CHECK(plain.find("model")->find("step") != nullptr);
}

TEST_CASE("a record stays one, with the attributes that stay", "[value]") {
  const auto record = [](Value state) {
    return Value(std::make_shared<Object>(Object{"nn.Linear", "", std::move(state), true}));
  };
  const Value module = record(dict_of({{"w", Value(1)}, {"training", Value(true)}}));
  const Value root = dict_of({{"net", module}, {"x", Value(2)}});
  CHECK(rewrite(root, {}).find("net")->same(module));
  CHECK(rewrite(root, renaming("net", "body")).find("body")->same(module));
  CHECK(rewrite(root, renaming("x", "y")).find("net")->same(module));

  Rewrite some;
  some.path = [](const std::string& path, const Value&) {
    return path == "net.training" ? std::nullopt : std::optional(path);
  };
  const Value kept = rewrite(root, some);
  REQUIRE(kept.find("net")->is(Value::Kind::object));
  CHECK(kept.find("net")->as_object().type == "nn.Linear");
  CHECK(kept.find("net")->as_object().state.as_dict().size() == 1);
  CHECK(module.as_object().state.as_dict().size() == 2);

  Rewrite leaves;
  leaves.leaf = [](const std::string&, const Value& leaf) {
    return leaf.is(Value::Kind::integer) ? 7 : leaf;
  };
  CHECK(rewrite(module, leaves).as_object().state.find("w")->as_int() == 7);
  CHECK(rewrite(root, renaming("net.w", "net.weight")).find("net")->as_object().state.find("weight") !=
        nullptr);
}

TEST_CASE("containers that get one name become one", "[value]") {
  const Value x = dict_of({{"one", Value(1)}, {"deep", dict_of({{"u", Value(2)}})}});
  const Value y = dict_of({{"two", Value(3)}, {"deep", dict_of({{"v", Value(4)}})}});
  const Value root = dict_of({{"x", x}, {"y", y}});
  const Value deep = dict_of({{"u", Value(2)}, {"v", Value(4)}});
  CHECK(rewrite(root, renaming("y", "x"))
            .equals(dict_of({{"x", dict_of({{"one", Value(1)}, {"deep", deep}, {"two", Value(3)}})}})));
  CHECK(x.as_dict().size() == 2);
  CHECK(x.find("deep")->as_dict().size() == 1);
  for (const Value& other : {dict_of({{"x", x}, {"y", Value(1)}}), dict_of({{"x", Value(1)}, {"y", y}})})
    CHECK_THROWS_WITH(rewrite(other, renaming("y", "x")), Catch::Contains("a value and a container"));
}

TEST_CASE("a budget limits what a rewritten tree takes", "[value]") {
  const Value root = Value::dict();
  for (int i = 0; i < 100'000; ++i) root.as_dict().set("key." + std::to_string(i), i);
  Rewrite rules;
  rules.path = [](const std::string& path, const Value&) { return path + std::string(1000, 'n'); };
  rules.memory = std::make_shared<MemoryBudget>(1000);
  const PeakMemory peak;
  CHECK_THROWS_WITH(rewrite(root, rules),
                    Catch::Contains("the changed tree") && Catch::Contains("would take more"));
  CHECK(peak.growth() < 60'000'000);
  CHECK(rewrite(root, renaming("key", "name")).find("name.99999")->as_int() == 99999);
}
