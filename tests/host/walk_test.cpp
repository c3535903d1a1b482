#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "host/base/glob.hpp"
#include "host/tensor/compare.hpp"
#include "host/tensor/digest.hpp"
#include "host/tensor/statistics.hpp"
#include "host/value/walk.hpp"

using namespace cbk;

namespace {
std::vector<std::string> leaf_paths(const Value& root) {
  std::vector<std::string> paths;
  each_leaf(root, [&](const std::string& path, const Value&) { paths.push_back(path); });
  return paths;
}
}  // namespace

TEST_CASE("leaves come in order with dotted paths; empty containers count", "[value]") {
  const Value root = Value::dict();
  const Value inner = Value::dict();
  inner.as_dict().set("b", 1);
  inner.as_dict().set(int64_t{7}, Value::list({2, Value::list()}));
  root.as_dict().set("a", inner);
  root.as_dict().set("c.d", "text");
  CHECK(leaf_paths(root) == std::vector<std::string>{"a.b", "a.7.0", "a.7.1", "c.d"});
  CHECK(leaf_paths(Value(3)) == std::vector<std::string>{""});
}

TEST_CASE("walking is bounded", "[value]") {
  Value deep = Value::list({1});
  for (int i = 0; i < 600; ++i) deep = Value::list({deep});
  CHECK_THROWS_WITH(leaf_paths(deep), Catch::Contains("nested deeper"));
  CHECK_THROWS_WITH(deep_copy(deep), Catch::Contains("nested deeper"));

  const Value loop = Value::dict();
  loop.as_dict().set("self", loop);
  CHECK_THROWS_WITH(leaf_paths(loop), Catch::Contains("holds itself"));
  const Value copy = deep_copy(loop);
  CHECK(copy.find("self")->same(copy));
  CHECK_THROWS_WITH(copy.equals(loop), Catch::Contains("cannot be compared"));

  // 2^40 leaves out of forty lists.
  Value wide = Value::list({1, 1});
  for (int i = 0; i < 40; ++i) wide = Value::list({wide, wide});
  CHECK_THROWS_WITH(each_leaf(wide, [](const auto&, const auto&) {}), Catch::Contains("leaves"));

  loop.as_dict().erase("self");
  copy.as_dict().erase("self");
}

TEST_CASE("globs match whole names in linear time", "[base]") {
  CHECK(Glob("a.{b,c}.[0-9]*").matches("a.c.12"));
  CHECK_FALSE(Glob("a.{b,c}.[0-9]*").matches("a.c.x"));
  CHECK(Glob(std::string(200, '*') + "b").matches(std::string(10000, 'a') + "b"));
  CHECK_FALSE(Glob(std::string("*a*a*a*a*a*a*a*a*a*a*b")).matches(std::string(10000, 'a')));
  CHECK_THROWS_AS(Glob("{a,b"), Error);
  CHECK(Glob::is_literal("model.weight"));
  CHECK_FALSE(Glob::is_literal("model.*"));
}

TEST_CASE("statistics over many blocks are those of one", "[tensor]") {
  const DType dtype = GENERATE(DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int32);
  // 0, 1, …, 9 repeated: more than one block for every dtype.
  Bytes bytes(1'200'000 * sizeof(double));
  for (size_t i = 0; i < 1'200'000; ++i) store_le(bytes.data() + i * 8, static_cast<double>(i % 10));
  const Tensor tensor = Tensor::from_bytes(DType::float64, {1200, 1000}, std::move(bytes)).cast(dtype);
  const Statistics stats = statistics(tensor);
  CHECK(stats.min == (is_whole(dtype) ? Number(Wide{0}) : Number(0.0)));
  CHECK(stats.max == (is_whole(dtype) ? Number(Wide{9}) : Number(9.0)));
  CHECK(stats.mean == 4.5);
  CHECK(*stats.std == Approx(2.8722813232690143).epsilon(1e-14));
  CHECK(stats.zeros == 120'000);
  CHECK(stats.numel == 1'200'000);
}

TEST_CASE("statistics of integers are exact", "[tensor]") {
  // Far from 0 and near each other, in several blocks: neither sums nor squares fit 64 bits.
  constexpr int64_t base = std::numeric_limits<int64_t>::max() - 2;
  Bytes bytes(300'000 * sizeof(int64_t));
  for (size_t i = 0; i < 300'000; ++i) store_le(bytes.data() + i * 8, base + static_cast<int64_t>(i % 3));
  const Statistics stats = statistics(Tensor::from_bytes(DType::int64, {300'000}, std::move(bytes)));
  CHECK(stats.min == Number(Wide{base}));
  CHECK(stats.max == Number(Wide{base} + 2));
  CHECK(stats.mean == 9223372036854775806.0);
  CHECK(*stats.std == Approx(std::sqrt(2.0 / 3)).epsilon(1e-14));
}

TEST_CASE("what has no finite elements has no statistics", "[tensor]") {
  for (const Statistics& stats :
       {statistics(Tensor::full(DType::float16, {0, 3}, 1)), statistics(Tensor::full(DType::int8, {0}, 1)),
        statistics(Tensor::full(DType::float32, {2}, INFINITY))}) {
    CHECK_FALSE(stats.min);
    CHECK_FALSE(stats.max);
    CHECK_FALSE(stats.mean);
    CHECK_FALSE(stats.std);
  }
  const Statistics constant = statistics(Tensor::full(DType::float64, {1 << 20, 1 << 20}, -2));
  CHECK(constant.min == Number(-2.0));
  CHECK(constant.std == 0.0);
  CHECK(constant.numel == int64_t{1} << 40);
}

TEST_CASE("differences of integers are exact", "[tensor]") {
  const auto one = [](DType dtype, uint64_t bits) {
    Bytes bytes(8);
    store_le(bytes.data(), bits);
    return Tensor::from_bytes(dtype, {1}, std::move(bytes));
  };
  constexpr uint64_t lowest = uint64_t{1} << 63;
  CHECK(compare(one(DType::int64, (1ULL << 53) + 1), one(DType::int64, 0)).max_absolute ==
        Number(Wide{(1LL << 53) + 1}));
  CHECK(compare(one(DType::int64, lowest), one(DType::uint64, ~0ULL)).max_absolute ==
        Number((Wide{1} << 64) - 1 + (Wide{1} << 63)));
  CHECK(compare(one(DType::int64, 5), one(DType::int64, 5)).max_absolute == Number(Wide{0}));
}

TEST_CASE("digests are those of the little-endian bytes", "[tensor]") {
  const Tensor abc =
      Tensor::from_bytes(DType::uint8, {3}, Bytes{std::byte{'a'}, std::byte{'b'}, std::byte{'c'}});
  CHECK(sha256(abc) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256(abc.slice(0, 0, 0)) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}
