// Leaves by number, what is tied, folded names, and names as a tree.
#include <catch2/catch.hpp>

#include "host/tensor/storage.hpp"
#include "host/value/key_fold.hpp"
#include "host/value/outline.hpp"
#include "host/value/tensor_ties.hpp"
#include "host/value/walk.hpp"

using namespace cbk;

namespace {

Value dict_of(std::initializer_list<std::pair<Value, Value>> entries) {
  Value dict = Value::dict();
  for (const auto& [key, value] : entries) dict.as_dict().set(key, value);
  return dict;
}

std::vector<std::string> paths_of(const LeafTable& table) {
  std::vector<std::string> paths;
  for (size_t row = 0; row < table.size(); ++row) paths.push_back(table.path(row));
  return paths;
}

Tensor view_of(const StoragePtr& storage, int64_t offset, int64_t count) {
  return Tensor::from_view({storage, DType::float32, offset, {count}, {1}});
}

StoragePtr storage_of(size_t bytes) {
  return memory_storage(Bytes(bytes));
}

using Names = std::vector<std::string>;

Names folded(const Names& keys, const Names& signatures = {}) {
  const KeyFold fold(
      keys.size(), [&](size_t i) { return keys[i]; },
      [&](size_t i) { return signatures.empty() ? std::string() : signatures[i]; });
  Names names;
  for (size_t group = 0; group < fold.size(); ++group) names.push_back(fold.name(group));
  return names;
}

Names outlined(const Names& names) {
  Names lines;
  OutlineVisitor visitor;
  visitor.entry = [&](size_t indent, std::string_view label, size_t entry) {
    lines.push_back(std::string(2 * indent, ' ') + std::string(label) + " #" + std::to_string(entry));
  };
  visitor.container = [&](size_t indent, std::string_view label, std::span<const uint32_t> entries,
                          std::string_view name) {
    CHECK(name.ends_with(label));
    CHECK(names[entries.front()].starts_with(name));
    lines.push_back(std::string(2 * indent, ' ') + std::string(label) + " (" +
                    std::to_string(entries.size()) + ")");
  };
  outline({names.size(), [&](size_t i) { return names[i]; }}, visitor);
  return lines;
}

}  // namespace

TEST_CASE("A LeafTable has the leaves of each_leaf, in their order", "[value]") {
  const Value tree = dict_of({{"a", Value::list({1, Value::dict(), dict_of({{"b.c", 2}, {"", 3}})})},
                              {"", dict_of({{"x", 4}})},
                              {5, Value::list({})}});
  Names expected;
  each_leaf(tree, [&](const std::string& path, const Value&) { expected.push_back(path); });
  const LeafTable table(tree);
  CHECK(paths_of(table) == expected);
  for (size_t row = 0; row < table.size(); ++row) CHECK(table.find(table.path(row)) == row);
  CHECK_FALSE(table.find("a.9"));
  CHECK(paths_of(LeafTable(7)) == Names{""});
}

TEST_CASE("A record is a container of its attributes", "[value]") {
  const Value conv = std::make_shared<Object>(Object{"nn.Conv", "", dict_of({{"w", 1}, {"b", 2}}), true});
  const Value empty = std::make_shared<Object>(Object{"nn.ReLU", "", Value::dict(), true});
  const Value sparse = std::make_shared<Object>(Object{"torch.sparse_coo", "", dict_of({{"values", 3}})});
  const Value tree = dict_of({{"net", Value::list({conv, empty})}, {"s", sparse}});
  const LeafTable table(tree);
  CHECK(paths_of(table) == Names{"net.0.w", "net.0.b", "net.1", "s"});
  CHECK(table.value(1)->as_int() == 2);
  REQUIRE(table.record_around(0, 2) != nullptr);
  CHECK(table.record_around(0, 2)->type == "nn.Conv");
  CHECK(table.record_around(0, 1) == nullptr);
  CHECK(find_path(tree, "net.0.b")->as_int() == 2);
  CHECK(paths_of(LeafTable(conv)) == Names{"w", "b"});
  CHECK(LeafTable(conv).record_around(0, 0)->type == "nn.Conv");
}

TEST_CASE("A LeafTable counts rows of one path", "[value]") {
  const LeafTable table(
      dict_of({{"a.b", 1}, {"a", dict_of({{"b", 2}})}, {"c", 3}, {"a.b.d", 4}, {1, 5}, {"1", 6}}));
  CHECK(table.find("a.b") == 0);
  CHECK(table.find("a.b", 1) == 1);
  CHECK_FALSE(table.find("a.b", 2));
  CHECK_FALSE(table.find("c", 1));
  CHECK(table.earlier_rows(1) == 1);
  CHECK(table.earlier_rows(2) == 0);
  CHECK(table.find("1", 1) == 5);
}

TEST_CASE("A LeafTable stays true while the tree changes", "[value]") {
  const Value tree = Value::dict();
  constexpr int count = 100;
  for (int i = 0; i < count; ++i) tree.as_dict().set(std::to_string(i), i);
  {
    const LeafTable table(tree);
    for (int i = 0; i < count; ++i) {
      if (i % 4 != 0) CHECK(tree.as_dict().erase(std::to_string(i)));
    }
    for (int i = 0; i < count; ++i) tree.as_dict().set("new" + std::to_string(i), i);
    for (size_t row = 0; row < count; ++row) {
      const Value* value = table.value(row);
      CHECK((value != nullptr) == (row % 4 == 0));
      if (value != nullptr) CHECK(value->as_int() == static_cast<int64_t>(row));
    }
    const Value copy = std::make_shared<Dict>(tree.as_dict());
    for (int i = 0; i < count; i += 8) CHECK(copy.as_dict().erase(std::to_string(i)));
    CHECK(copy.find("4")->as_int() == 4);
  }
  // Without the table, a dict closes its holes again when half of it is holes.
  for (int i = 0; i < count / 2; ++i) tree.as_dict().erase("new" + std::to_string(i));
  CHECK(tree.as_dict().position_count() < 2 * tree.as_dict().size());
  CHECK(tree.find("new99")->as_int() == 99);
}

TEST_CASE("A LeafTable refuses trees without end", "[value]") {
  const Value loop = Value::list({1});
  loop.as_sequence().items.push_back(dict_of({{"again", loop}}));
  CHECK_THROWS_AS(LeafTable(loop), Error);
  loop.as_sequence().items.clear();
}

TEST_CASE("TensorTies distinguishes tied tensors from those that share a storage", "[value]") {
  const StoragePtr shared = storage_of(64);
  const Value twice(view_of(storage_of(16), 0, 4));
  const LeafTable table(dict_of({{"a", view_of(shared, 0, 4)},
                                 {"alone", view_of(storage_of(16), 0, 4)},
                                 {"b", view_of(shared, 8, 4)},
                                 {"b2", view_of(shared, 8, 4)},
                                 {"text", "x"},
                                 {"a2", view_of(shared, 0, 4)},
                                 {"one", twice},
                                 {"two", twice}}));
  const TensorTies ties(table);
  const auto row = [&](std::string_view path) { return *table.find(path); };
  CHECK_FALSE(ties.tied_to(row("a")));
  CHECK(ties.tied_to(row("a2")) == row("a"));
  CHECK(ties.shares_with(row("b")) == row("a"));
  CHECK(ties.tied_to(row("b2")) == row("b"));
  CHECK_FALSE(ties.shares_with(row("b2")));
  CHECK(ties.tied_to(row("two")) == row("one"));
  CHECK_FALSE(ties.tied_to(row("alone")));
  CHECK(ties.all_tied(row("a"), 9).first == std::vector{row("a2")});
  CHECK(ties.all_sharing(row("a"), 9).first == std::vector{row("b"), row("b2")});
  CHECK(ties.all_sharing(row("a"), 1).first == std::vector{row("b")});
  CHECK(ties.all_sharing(row("a"), 1).count == 2);
  CHECK(ties.all_tied(row("alone"), 9).count == 0);
}

TEST_CASE("Keys fold where their numbers are a full product", "[value]") {
  CHECK(folded({"a.0.w", "a.1.w", "b", "a.2.w", "a.5.w"}) == Names{"a.{0..2,5}.w", "b"});
  CHECK(folded({"a.0.0", "a.0.1", "a.1.0"}) == Names{"a.0.{0,1}", "a.1.0"});
  CHECK(folded({"l.007", "l.008", "l.7"}) == Names{"l.{007,008}", "l.7"});
  CHECK(folded({"0", "1", "1"}) == Names{"{0,1}", "1"});
  CHECK(folded({"x", "x", "x"}) == Names{"x", "x", "x"});
  CHECK(folded({"a.0", "a.1", "a.2"}, {"f", "i", "f"}) == Names{"a.{0,2}", "a.1"});
  CHECK(folded({"block_00.w", "block_01.w", "norm1.w", "norm2.w"}) ==
        Names{"block_{00,01}.w", "norm1.w", "norm2.w"});
  CHECK(folded({"h.0.ln_1.w", "h.0.ln_2.w", "h.1.ln_1.w", "h.1.ln_2.w"}) ==
        Names{"h.{0,1}.ln_1.w", "h.{0,1}.ln_2.w"});
  CHECK(folded({"block_08.w", "block_09.w", "block_10.w", "block_11.w"}) == Names{"block_{08..11}.w"});
  CHECK(folded({"b.99.w", "b.100.w", "b.098.w", "b.7.w"}) == Names{"b.{7,99}.w", "b.{098,100}.w"});
  CHECK(folded({"b_99.w", "b_100.w", "b_05.w"}) == Names{"b_{05,99,100}.w"});
  CHECK(folded({"block_0.w", "block_1.w", "block_10.w"}) == Names{"block_{0,1,10}.w"});
  CHECK(folded({"a/b_0/_w1", "a/b_1/_w1"}) == Names{"a/b_{0,1}/_w1"});
  CHECK(folded({"a.1234567890", "a.1234567891"}) == Names{"a.1234567890", "a.1234567891"});
  CHECK(folded({}).empty());
}

TEST_CASE("An outline puts below one line what begins alike", "[value]") {
  CHECK(outlined({"m.a.w", "m.a.b", "m.c", "d"}) ==
        Names{"m (3)", "  a (2)", "    w #0", "    b #1", "  c #2", "d #3"});
  CHECK(outlined({"a", "a.b", "a.c"}) == Names{"a #0", "  b #1", "  c #2"});
  CHECK(outlined({"l.10.w", "l.2.w", "l.{0,1}.w"}) ==
        Names{"l (3)", "  {0,1}.w #2", "  2.w #1", "  10.w #0"});
  CHECK(outlined({"a/b", "a/b/c", "a/d"}) == Names{"a/ (3)", "  b #0", "  b/c #1", "  d #2"});
  CHECK(outlined({"only.one.key"}) == Names{"only.one.key #0"});
  CHECK(outlined({}).empty());
}
