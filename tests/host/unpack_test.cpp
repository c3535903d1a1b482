// Codes packed into integers, and the moves that quantised weights need: each agrees with a scalar model.
#include <hwy/targets.h>
#include <catch2/catch.hpp>

#include <cstring>
#include <numeric>
#include <random>

#include "host/tensor/kernels/unpack.hpp"
#include "host/tensor/unpack.hpp"

using namespace cbk;

namespace {

Bytes random_bytes(std::mt19937& random, size_t count) {
  Bytes out(count);
  for (auto& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

Packing random_packing(std::mt19937& random, DType dtype, int bits) {
  Packing out;
  out.bits = bits;
  out.places.resize(8 * size_of(dtype) / static_cast<size_t>(bits));
  std::iota(out.places.begin(), out.places.end(), 0);
  std::shuffle(out.places.begin(), out.places.end(), random);
  for (int i = 0; i < 1 << bits; ++i) out.values.push_back(static_cast<float>(random() % 1000) / 8 - 60);
  return out;
}

/// The number at a position, computed from the bytes.
float number_at(const Bytes& bytes, DType dtype, const Packing& packing, size_t position) {
  const size_t codes = packing.places.size();
  uint64_t element = 0;
  std::memcpy(&element, bytes.data() + position / codes * size_of(dtype), size_of(dtype));
  const auto shift = static_cast<unsigned>(packing.places[position % codes] * packing.bits);
  return packing.values[element >> shift & ((1U << packing.bits) - 1)];
}

std::vector<float> read(const Tensor& tensor, int64_t begin, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  tensor.read(begin, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace

TEST_CASE("unpacked codes agree with a scalar model, for any range", "[tensor][unpack]") {
  const auto dtype = GENERATE(DType::uint8, DType::int8, DType::int16, DType::int32, DType::uint32);
  const int bits = GENERATE(1, 2, 4);
  const auto seed = GENERATE(1U, 2U, 3U);
  std::mt19937 random(seed * 100 + static_cast<unsigned>(bits));
  const auto rows = static_cast<int64_t>(1 + random() % 5),
             columns = static_cast<int64_t>(1 + random() % 300);
  const Bytes bytes = random_bytes(random, static_cast<size_t>(rows * columns) * size_of(dtype));
  const Packing packing = random_packing(random, dtype, bits);
  const Tensor numbers = unpacked(Tensor::from_bytes(dtype, {rows, columns}, bytes), packing);
  REQUIRE(numbers.shape() == Shape{rows, columns * std::ssize(packing.places)});
  REQUIRE(numbers.dtype() == DType::float32);
  const Tensor planes = unpacked(Tensor::from_bytes(dtype, {rows, columns}, bytes), packing, 0);
  REQUIRE(planes.shape() == Shape{rows * std::ssize(packing.places), columns});
  for (int i = 0; i < 40; ++i) {
    const int64_t begin = i == 0 ? 0 : static_cast<int64_t>(random()) % numbers.numel();
    const int64_t left = numbers.numel() - begin;
    const int64_t count = i == 0 ? left : 1 + static_cast<int64_t>(random()) % left;
    const std::vector<float> found = read(numbers, begin, count);
    for (int64_t k = 0; k < count; ++k)
      REQUIRE(found[static_cast<size_t>(k)] ==
              number_at(bytes, dtype, packing, static_cast<size_t>(begin + k)));
    const std::vector<float> other = read(planes, begin, count);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t codes = std::ssize(packing.places), row = (begin + k) / columns;
      const int64_t element = row / codes * columns + (begin + k) % columns;
      REQUIRE(other[static_cast<size_t>(k)] ==
              number_at(bytes, dtype, packing, static_cast<size_t>(element * codes + row % codes)));
    }
  }
}

TEST_CASE("codes along a long dim are unpacked piece by piece", "[tensor][unpack]") {
  std::mt19937 random(5);
  const int64_t columns = 300'000;
  const Bytes bytes = random_bytes(random, static_cast<size_t>(columns));
  const Packing packing = random_packing(random, DType::uint8, 4);
  const Tensor numbers = unpacked(Tensor::from_bytes(DType::uint8, {1, columns}, bytes), packing, 0);
  const std::vector<float> found = read(numbers, 7, 2 * columns - 9);
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t position = i + 7, column = position % static_cast<size_t>(columns);
    REQUIRE(found[i] ==
            number_at(bytes, DType::uint8, packing, 2 * column + position / static_cast<size_t>(columns)));
  }
}

TEST_CASE("words are unpacked alike by all instruction sets", "[tensor][unpack]") {
  const int bits = GENERATE(1, 2, 4);
  std::mt19937 random(7);
  const Bytes bytes = random_bytes(random, 4 * 77 + 1);
  const Packing packing = random_packing(random, DType::int32, bits);
  UnpackTables tables{static_cast<uint32_t>(bits), {}, {}};
  for (size_t i = 0; i < packing.places.size(); ++i)
    tables.shifts.at(i) = static_cast<uint32_t>(packing.places[i] * bits);
  std::copy(packing.values.begin(), packing.values.end(), tables.values.begin());
  const Bytes words(bytes.begin() + 1, bytes.end());
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_EMU128}) {
    if ((hwy::SupportedTargets() & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    std::vector<float> out(77 * packing.places.size());
    unpack_words(bytes.data() + 1, 77, tables, out.data());
    std::vector<float> plane(77);
    unpack_codes(bytes.data() + 1, 4, 77, tables.shifts[1], tables, plane.data());
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (size_t i = 0; i < plane.size(); ++i) REQUIRE(plane[i] == out[i * packing.places.size() + 1]);
    for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == number_at(words, DType::int32, packing, i));
  }
}

TEST_CASE("what cannot be unpacked is refused", "[tensor][unpack]") {
  const Tensor bytes = Tensor::full(DType::uint8, {2, 3}, 7);
  const std::vector<float> values(16, 1);
  CHECK_THROWS_WITH(unpacked(bytes.cast(DType::float32), {4, {0, 1}, values}), Catch::Contains("float32"));
  CHECK_THROWS_WITH(unpacked(bytes.cast(DType::int64), {4, {0, 1}, values}), Catch::Contains("int64"));
  CHECK_THROWS_WITH(unpacked(bytes, {3, {0, 1}, values}), Catch::Contains("3 bits"));
  CHECK_THROWS_WITH(unpacked(bytes, {4, {0, 1}, {1, 2}}), Catch::Contains("16 values"));
  CHECK_THROWS_WITH(unpacked(bytes, {4, {0, 2}, values}), Catch::Contains("places from 0 to 1"));
  CHECK_THROWS_WITH(unpacked(bytes, {4, {0, -1}, values}), Catch::Contains("places"));
  CHECK_THROWS_WITH(unpacked(bytes, {4, {0}, values}), Catch::Contains("2 places"));
  CHECK_THROWS_WITH(unpacked(bytes.slice(0, 0, 1).slice(1, 0, 1).reshape({}), {4, {0, 1}, values}),
                    Catch::Contains("the tensor has 0"));
  CHECK_THROWS_WITH(
      unpacked(Tensor::full(DType::uint8, {INT64_MAX, 0}, 0).reshape({0, INT64_MAX}), {4, {0, 1}, values}),
      Catch::Contains("too large"));
}

TEST_CASE("repeated and gathered numbers agree with index arithmetic, for any range", "[tensor][unpack]") {
  const auto seed = GENERATE(range(1U, 9U));
  std::mt19937 random(seed);
  const auto rows = static_cast<int64_t>(1 + random() % 40), groups = static_cast<int64_t>(1 + random() % 30);
  const auto times = static_cast<int64_t>(1 + random() % 20);
  std::vector<float> all(static_cast<size_t>(rows * groups));
  std::iota(all.begin(), all.end(), 0.0F);
  const auto bytes = std::as_bytes(std::span(all));
  const Tensor plain = Tensor::from_bytes(DType::float32, {groups, rows}, {bytes.begin(), bytes.end()});
  const Tensor tensor = plain.cast(DType::float64).affine(2, 1).cast(DType::float32).transpose(0, 1);
  std::vector<int64_t> indices(static_cast<size_t>(groups * times));
  for (int64_t& index : indices) index = static_cast<int64_t>(random()) % groups;
  const Tensor repeated =
      tensor.reshape({rows, groups, 1}).expand({rows, groups, times}).reshape({rows, groups * times});
  const Tensor gathered = tensor.index_select(1, indices);
  const Tensor above = plain.cast(DType::float64).cast(DType::float32).reshape({1, groups, rows});
  const Tensor stacked = above.expand({times, groups, rows}).reshape({times * groups, rows});
  for (int i = 0; i < 30; ++i) {
    const int64_t begin = i == 0 ? 0 : static_cast<int64_t>(random()) % repeated.numel();
    const int64_t left = repeated.numel() - begin;
    const int64_t count = i == 0 ? left : 1 + static_cast<int64_t>(random()) % left;
    const std::vector<float> a = read(repeated, begin, count), b = read(gathered, begin, count),
                             c = read(stacked, begin, count);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t row = (begin + k) / (groups * times), column = (begin + k) % (groups * times);
      const auto at = [&](int64_t group) { return static_cast<float>(2 * (group * rows + row) + 1); };
      REQUIRE(a[static_cast<size_t>(k)] == at(column / times));
      REQUIRE(b[static_cast<size_t>(k)] == at(indices[static_cast<size_t>(column)]));
      REQUIRE(c[static_cast<size_t>(k)] == static_cast<float>((begin + k) % (groups * rows)));
    }
  }
}

TEST_CASE("gathered runs count the losses of what is picked alone", "[tensor][unpack]") {
  const std::vector<float> numbers = {1, 3e38F, 2, 4};
  const auto bytes = std::as_bytes(std::span(numbers));
  const Tensor tensor = Tensor::from_bytes(DType::float32, {1, 4}, {bytes.begin(), bytes.end()});
  Bytes out(6);
  const auto losses = [&](std::vector<int64_t> indices) {
    return tensor.cast(DType::float16).index_select(1, std::move(indices)).expression()->read(0, out);
  };
  CHECK(losses({0, 2, 3}) == Losses{});
  CHECK(losses({1, 1, 3}) == Losses{2, 0, 0});
}
