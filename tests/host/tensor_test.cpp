#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "host/tensor/expression.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/kernels/finite.hpp"
#include "host/tensor/tensor.hpp"

using namespace cbk;

namespace {

/// 0, 1, 2, … as int32.
Tensor counting(Shape shape) {
  std::vector<int32_t> numbers(static_cast<size_t>(numel_of(shape)));
  std::iota(numbers.begin(), numbers.end(), 0);
  Bytes bytes(numbers.size() * 4);
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return Tensor::from_bytes(DType::int32, std::move(shape), std::move(bytes));
}

/// The same numbers behind a storage that can only be read, as compressed chunks are.
class OpaqueStorage final : public Storage {
 public:
  explicit OpaqueStorage(Bytes bytes) : bytes_(std::move(bytes)) {}
  [[nodiscard]] uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    REQUIRE(offset + out.size() <= bytes_.size());
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  Bytes bytes_;
};

Tensor opaque(const Tensor& tensor) {
  return Tensor::from_view({std::make_shared<OpaqueStorage>(tensor.to_bytes()), tensor.dtype(), 0,
                            tensor.shape(), contiguous_strides(tensor.shape())});
}

template <typename T = int32_t>
std::vector<T> numbers_of(const Tensor& tensor) {
  const Bytes bytes = tensor.to_bytes();
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

/// The element at a position, computed the slow way: what every expression must agree with.
using Index = std::vector<int64_t>;
template <typename Source>
void require_elements(const Tensor& tensor, Source&& source) {
  const auto found = numbers_of(tensor);
  Index index(tensor.shape().size(), 0);
  for (size_t i = 0; i < found.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i);
    for (size_t d = index.size(); d-- > 0;) {
      index[d] = rest % tensor.shape()[d];
      rest /= tensor.shape()[d];
    }
    REQUIRE(found[i] == source(index));
  }
  // Any range must give the same elements as the whole.
  for (int64_t begin = 0; begin < tensor.numel(); begin += 1 + tensor.numel() / 7) {
    for (int64_t count : {int64_t{1}, tensor.numel() / 3, tensor.numel() - begin}) {
      count = std::min(count, tensor.numel() - begin);
      std::vector<int32_t> part(static_cast<size_t>(count));
      tensor.read(begin, std::as_writable_bytes(std::span(part)));
      REQUIRE(std::equal(part.begin(), part.end(), found.begin() + begin));
    }
  }
}

bool equal_integers(DType a, const Bytes& left, DType b, const Bytes& right, size_t position) {
  // One as uint64 and its sign say everything of an integer of up to 64 bits.
  const auto parts = [&](DType dtype, const Bytes& bytes) {
    std::pair<int64_t, uint64_t> out;
    const std::byte* element = bytes.data() + position * size_of(dtype);
    cast_elements(dtype, element, DType::int64, reinterpret_cast<std::byte*>(&out.first), 1);
    cast_elements(dtype, element, DType::uint64, reinterpret_cast<std::byte*>(&out.second), 1);
    const bool is_signed = name_of(dtype).front() == 'i';
    return std::pair(is_signed && out.first < 0, out.second);
  };
  return parts(a, left) == parts(b, right);
}

/// Bits of an integer without its sign.
int digits_of(DType dtype) {
  return static_cast<int>(8 * size_of(dtype)) - (name_of(dtype).front() == 'i' ? 1 : 0);
}

}  // namespace

TEST_CASE("views agree with index arithmetic, on memory and on storages that can only be read", "[tensor]") {
  const bool addressable = GENERATE(true, false);
  Tensor base = counting({7, 24, 5});
  if (!addressable) base = opaque(base);
  auto at = [](int64_t i, int64_t j, int64_t k) { return static_cast<int32_t>((i * 24 + j) * 5 + k); };

  SECTION("permute") {
    require_elements(base.permute({2, 0, 1}), [&](const Index& x) { return at(x[1], x[2], x[0]); });
    require_elements(base.permute({1, 2, 0}), [&](const Index& x) { return at(x[2], x[0], x[1]); });
    require_elements(base.transpose(0, 2), [&](const Index& x) { return at(x[2], x[1], x[0]); });
  }
  SECTION("slice, also of what was transposed") {
    require_elements(base.slice(1, 3, 20, 4), [&](const Index& x) { return at(x[0], 3 + 4 * x[1], x[2]); });
    require_elements(base.transpose(0, 1).slice(0, -2, 24),
                     [&](const Index& x) { return at(x[1], 22 + x[0], x[2]); });
  }
  SECTION("the rotary interleave: reshape, permute, reshape") {
    const Tensor halves = base.reshape({7, 2, 12, 5}).permute({0, 2, 1, 3}).reshape({7, 24, 5});
    require_elements(halves, [&](const Index& x) { return at(x[0], x[1] % 2 * 12 + x[1] / 2, x[2]); });
  }
  SECTION("flip and expand") {
    require_elements(base.flip(1), [&](const Index& x) { return at(x[0], 23 - x[1], x[2]); });
    require_elements(base.slice(0, 2, 3).expand({4, 24, 5}),
                     [&](const Index& x) { return at(2, x[1], x[2]); });
  }
  SECTION("rows in any order") {
    const std::vector<int64_t> rows = {23, 0, 0, 7};
    require_elements(base.index_select(1, rows),
                     [&](const Index& x) { return at(x[0], rows[static_cast<size_t>(x[1])], x[2]); });
  }
  SECTION("concatenate and split, below a transpose") {
    const Tensor joined = Tensor::concat({base.slice(1, 0, 10), base.slice(1, 10, 24)}, 1);
    require_elements(joined, [&](const Index& x) { return at(x[0], x[1], x[2]); });
    require_elements(joined.permute({1, 2, 0}), [&](const Index& x) { return at(x[2], x[0], x[1]); });
    require_elements(joined.slice(1, 8, 13), [&](const Index& x) { return at(x[0], 8 + x[1], x[2]); });
    require_elements(Tensor::stack({base, base}, 1), [&](const Index& x) { return at(x[0], x[2], x[3]); });
  }
  SECTION("a view of what cannot be pushed down") {
    const Tensor picked = base.index_select(0, {6, 5, 4, 3, 2, 1, 0}).permute({2, 1, 0});
    require_elements(picked, [&](const Index& x) { return at(6 - x[2], x[1], x[0]); });
  }
}

TEST_CASE("large transposes in every element size", "[tensor]") {
  const auto dtype =
      GENERATE(DType::uint8, DType::float16, DType::float32, DType::float64, DType::complex128);
  const int64_t rows = 70;
  const int64_t columns = 131;
  Bytes bytes(static_cast<size_t>(rows * columns) * size_of(dtype));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  const Tensor turned = Tensor::from_bytes(dtype, {rows, columns}, bytes).transpose(0, 1);
  const Bytes found = turned.to_bytes();
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t j = 0; j < rows; ++j) {
      REQUIRE(std::memcmp(found.data() + static_cast<size_t>(i * rows + j) * size_of(dtype),
                          bytes.data() + static_cast<size_t>(j * columns + i) * size_of(dtype),
                          size_of(dtype)) == 0);
    }
  }
}

TEST_CASE("shape errors say what does not fit", "[tensor]") {
  const Tensor base = counting({2, 3});
  CHECK_THROWS_WITH(base.reshape({4, 2}), Catch::Contains("6 elements") && Catch::Contains("[4, 2]"));
  CHECK_THROWS_WITH(base.transpose(0, 2), Catch::Contains("dim 2"));
  CHECK_THROWS_WITH(base.permute({0, 0}), Catch::Contains("repeated"));
  CHECK_THROWS_WITH(base.expand({4, 3}), Catch::Contains("only extents of 1"));
  CHECK_THROWS_WITH(base.index_select(0, {2}), Catch::Contains("index 2"));
  CHECK_THROWS_WITH(Tensor::concat({base, counting({3, 2})}, 0), Catch::Contains("[3, 2]"));
  CHECK_THROWS_WITH(base.matmul(base), Catch::Contains("int32"));
  CHECK_THROWS_WITH(Tensor::full(DType::float32, {1LL << 40, 1LL << 40}, 0), Catch::Contains("too large"));
  CHECK_THROWS_WITH(Tensor::from_view({memory_storage(Bytes(8)), DType::int32, 0, {3}, {1}}),
                    Catch::Contains("beyond its storage"));
  CHECK_THROWS_WITH(Tensor::from_view({memory_storage(Bytes(8)), DType::int32, 0, {2}, {INT64_MAX}}),
                    Catch::Contains("beyond"));
}

TEST_CASE("extents of tensors without elements may be any", "[tensor]") {
  const Tensor empty = Tensor::full(DType::float32, {INT64_MAX, 0}, 0);
  CHECK(empty.slice(0, 0, INT64_MAX, 2).shape() == Shape{INT64_MAX / 2 + 1, 0});
  CHECK(empty.slice(0, 1, INT64_MAX, INT64_MAX).shape() == Shape{1, 0});
  CHECK_THROWS_WITH(Tensor::concat({empty, empty}, 0), Catch::Contains("too large"));
  const Tensor row = counting({2, 3});
  CHECK(row.slice(0, 1, 2, INT64_MAX).to_bytes() == row.slice(0, 1, 2).to_bytes());
}

TEST_CASE("casts round as PyTorch does", "[tensor][cast]") {
  struct Case {
    float value;
    uint16_t half;
    uint16_t bfloat;
    uint8_t e4m3;
    uint8_t e5m2;
  };
  // Expected bits computed with PyTorch 2 (Tensor.to), rounding to nearest, ties to even.
  const auto c = GENERATE(values<Case>({{0.0F, 0x0000, 0x0000, 0x00, 0x00},
                                        {-0.0F, 0x8000, 0x8000, 0x80, 0x80},
                                        {1.0F, 0x3c00, 0x3f80, 0x38, 0x3c},
                                        {-2.5F, 0xc100, 0xc020, 0xc2, 0xc1},
                                        {0.1F, 0x2e66, 0x3dcd, 0x1d, 0x2e},
                                        {65504.0F, 0x7bff, 0x4780, 0x7f, 0x7c},
                                        {65520.0F, 0x7c00, 0x4780, 0x7f, 0x7c},
                                        {448.0F, 0x5f00, 0x43e0, 0x7e, 0x5f},
                                        {6e-8F, 0x0001, 0x3381, 0x00, 0x00},
                                        {1e-5F, 0x00a8, 0x3728, 0x00, 0x01},
                                        {INFINITY, 0x7c00, 0x7f80, 0x7f, 0x7c}}));
  const Tensor source = Tensor::full(DType::float32, {1}, c.value).index_select(0, {0});
  CHECK(numbers_of<uint16_t>(source.cast(DType::float16))[0] == c.half);
  CHECK(numbers_of<uint16_t>(source.cast(DType::bfloat16))[0] == c.bfloat);
  CHECK(numbers_of<uint8_t>(source.cast(DType::float8_e4m3fn))[0] == c.e4m3);
  CHECK(numbers_of<uint8_t>(source.cast(DType::float8_e5m2))[0] == c.e5m2);
}

TEST_CASE("every narrow float survives the way up and back", "[tensor][cast]") {
  const auto dtype = GENERATE(DType::float16, DType::bfloat16, DType::float8_e4m3fn, DType::float8_e5m2,
                              DType::float8_e4m3fnuz, DType::float8_e5m2fnuz, DType::float8_e8m0fnu);
  const size_t count = size_t{1} << (8 * size_of(dtype));
  Bytes codes(count * size_of(dtype));
  for (size_t i = 0; i < count; ++i) std::memcpy(codes.data() + i * size_of(dtype), &i, size_of(dtype));
  const Tensor all = Tensor::from_bytes(dtype, {static_cast<int64_t>(count)}, codes);
  const auto wide = numbers_of<float>(all.cast(DType::float32));
  const Bytes back = all.cast(DType::float32).cast(dtype).to_bytes();
  for (size_t i = 0; i < count; ++i) {
    if (std::isnan(wide[i])) continue;
    REQUIRE(std::memcmp(back.data() + i * size_of(dtype), codes.data() + i * size_of(dtype),
                        size_of(dtype)) == 0);
  }
}

TEST_CASE("arithmetic", "[tensor]") {
  const Tensor a = counting({40, 30}).cast(DType::float32);
  CHECK(numbers_of<float>(a.affine(2, 1))[7] == 15);
  CHECK(numbers_of<float>(a.add(a))[1199] == 2398);
  CHECK(numbers_of<float>(a.multiply(a))[9] == 81);
  CHECK(numbers_of<float>(a.affine(NAN, 0).replace_nan(3))[5] == 3);
  CHECK_THROWS_WITH(a.cast(DType::boolean).affine(2, 0), Catch::Contains("bool"));
  SECTION("matmul equals the sum of products, for any range") {
    const Tensor b = counting({30, 50}).cast(DType::float32).affine(0.01, -3);
    const Tensor product = a.matmul(b);
    const auto x = numbers_of<float>(a);
    const auto y = numbers_of<float>(b);
    std::vector<float> part(33);
    product.read(47, std::as_writable_bytes(std::span(part)));
    for (size_t i = 0; i < part.size(); ++i) {
      double sum = 0;
      const size_t row = (47 + i) / 50;
      const size_t column = (47 + i) % 50;
      for (size_t k = 0; k < 30; ++k) sum += static_cast<double>(x[row * 30 + k]) * y[k * 50 + column];
      REQUIRE(part[i] == Approx(sum).epsilon(1e-5).margin(1e-2));
    }
  }
  SECTION("low-rank product of bfloat16 below a transpose") {
    const Tensor low =
        a.cast(DType::bfloat16).matmul(counting({30, 2}).cast(DType::bfloat16)).transpose(0, 1);
    CHECK(low.shape() == Shape{2, 40});
    CHECK(low.to_bytes().size() == 160);
  }
}

TEST_CASE("arithmetic on narrow floats is rounded once, at the end of all of it", "[tensor]") {
  const DType dtype = GENERATE(DType::bfloat16, DType::float16, DType::float8_e4m3fn);
  const Bytes elements = counting({6, 4}).cast(DType::float32).affine(0.37, -3).cast(dtype).to_bytes();
  const Tensor a = Tensor::from_bytes(dtype, {6, 4}, elements);
  const Tensor b = a.affine(-0.61, 0.7);
  const Tensor x = a.cast(DType::float32);
  const Tensor y = x.affine(-0.61, 0.7);
  const Tensor third = Tensor::full(DType::float32, {6, 4}, 1.0 / 3);
  CHECK(b.dtype() == dtype);
  CHECK(b.to_bytes() == y.cast(dtype).to_bytes());
  CHECK(a.affine(1.7, 0).affine(1, 1.01).to_bytes() ==
        x.affine(1.7, 0).affine(1, 1.01).cast(dtype).to_bytes());
  CHECK(a.add(b).multiply(b).to_bytes() == x.add(y).multiply(y).cast(dtype).to_bytes());
  CHECK(b.transpose(0, 1).slice(0, 1, 3).affine(3.3, 0).to_bytes() ==
        y.transpose(0, 1).slice(0, 1, 3).affine(3.3, 0).cast(dtype).to_bytes());
  CHECK(b.reshape({24}).affine(3.3, 0).to_bytes() == y.reshape({24}).affine(3.3, 0).cast(dtype).to_bytes());
  CHECK(b.cast(DType::float32).to_bytes() == y.cast(dtype).cast(DType::float32).to_bytes());  // asked for
  CHECK(b.cast(DType::float32).multiply(third).to_bytes() ==
        y.cast(dtype).cast(DType::float32).multiply(third).to_bytes());
  CHECK_FALSE(b.affine(2, 1).cost().lossy);
  CHECK(a.cast(DType::float32).affine(2, 1).cast(dtype).cost().lossy);
}

namespace {

/// Every two different dtypes of real numbers.
std::vector<std::pair<DType, DType>> pairs_of_numbers() {
  std::vector<std::pair<DType, DType>> pairs;
  const auto is_number = [](DType dtype) { return dtype != DType::boolean && !is_complex(dtype); };
  for (int i = 0; i < dtype_count * dtype_count; ++i) {
    const auto from = static_cast<DType>(i / dtype_count);
    const auto to = static_cast<DType>(i % dtype_count);
    if (from != to && is_number(from) && is_number(to)) pairs.emplace_back(from, to);
  }
  return pairs;
}

}  // namespace

TEST_CASE("casts count what they lose", "[tensor]") {
  const auto [from, to] = GENERATE(from_range(pairs_of_numbers()));
  // Bit patterns all over the range, and those at its ends.
  std::vector<uint64_t> patterns = {
      0, 1, ~uint64_t{0}, uint64_t{1} << 63, 0x7fefffffffffffff, 0x41dfffffffc00000};
  for (uint64_t i = 0; i < 5000; ++i) patterns.push_back(i * 0x9e3779b97f4a7c15U);
  const auto count = static_cast<int64_t>(patterns.size());
  Bytes source(patterns.size() * size_of(from));
  for (size_t i = 0; i < patterns.size(); ++i) {
    const uint64_t bits = patterns[i] >> (8 * (8 - size_of(from)));
    std::memcpy(source.data() + i * size_of(from), &bits, size_of(from));
  }
  Bytes result(patterns.size() * size_of(to));
  const Losses lost = cast_elements(from, source.data(), to, result.data(), count);
  std::vector<double> before(patterns.size());
  std::vector<double> after(patterns.size());
  cast_elements(from, source.data(), DType::float64, reinterpret_cast<std::byte*>(before.data()), count);
  cast_elements(to, result.data(), DType::float64, reinterpret_cast<std::byte*>(after.data()), count);
  Losses expected;
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (is_integer(to)) {
      // Integers beyond 2^53 are compared as what they are: the double of 2^64 - 1 is that of 2^64.
      const bool is_equal = is_integer(from)
                                ? equal_integers(from, source, to, result, i)
                                : before[i] == after[i] && before[i] < std::ldexp(1, digits_of(to));
      expected.changed += is_equal ? 0 : 1;
    } else {
      expected.overflowed += std::isfinite(before[i]) && !std::isfinite(after[i]) ? 1 : 0;
      expected.vanished += before[i] != 0 && after[i] == 0 ? 1 : 0;
    }
  }
  INFO(name_of(from) << " to " << name_of(to));
  CHECK(lost == expected);
}

TEST_CASE("arithmetic counts what it loses", "[tensor]") {
  const auto losses = [](const Tensor& tensor) {
    Bytes bytes(tensor.nbytes());
    return tensor.expression()->read(0, bytes);
  };
  const Tensor large = Tensor::full(DType::float32, {4}, 3e38);
  CHECK(losses(large.affine(10, 0)) == Losses{4, 0, 0});
  CHECK(losses(large.affine(1e300, 0)) == Losses{4, 0, 0});  // the factor itself is beyond float32
  CHECK(losses(large.affine(INFINITY, 0)) == Losses{});      // asked for
  CHECK(losses(large.affine(10, 0).affine(2, 1)) == Losses{4, 0, 0});
  CHECK(losses(large.add(large)) == Losses{4, 0, 0});
  CHECK(losses(large.cast(DType::float16).add(large.cast(DType::float16))) == Losses{8, 0, 0});
  const Tensor narrow = large.cast(DType::float16);
  CHECK(losses(narrow.add(narrow)) == Losses{4, 0, 0});
  CHECK(losses(large.multiply(Tensor::full(DType::float32, {4}, INFINITY))) == Losses{});
  CHECK(losses(Tensor::full(DType::float16, {3}, 6e4).affine(2, 0)) == Losses{3, 0, 0});
  CHECK(losses(Tensor::full(DType::float16, {3}, 6e-8).affine(0.125, 0)) == Losses{0, 0, 3});
  CHECK(losses(Tensor::full(DType::int8, {3}, 100).affine(2, 0)) == Losses{0, 3, 0});
  CHECK(losses(Tensor::full(DType::int8, {3}, 5).affine(0.5, 0)) == Losses{0, 3, 0});
  const Tensor most = Tensor::full_bytes(DType::uint64, {1}, Bytes(8, std::byte{0xff}));
  CHECK(losses(most.multiply(most)) == Losses{0, 1, 0});
  const Tensor row = Tensor::full(DType::float32, {1, 2}, 3e38);
  const Tensor infinite = Tensor::full(DType::float32, {2, 1}, INFINITY);
  const Tensor right = Tensor::concat({Tensor::full(DType::float32, {2, 1}, 1), infinite}, 1);
  CHECK(losses(row.matmul(right)) == Losses{1, 0, 0});  // infinity times a number has lost nothing
  CHECK(losses(row.cast(DType::float16).matmul(right.cast(DType::float16))) == Losses{});
  CHECK(operand_losses(*row.cast(DType::float16).matmul(right.cast(DType::float16)).expression()) ==
        Losses{2, 0, 0});
}

TEST_CASE("elements that must be finite", "[tensor]") {
  const auto dtype =
      GENERATE(DType::float8_e4m3fn, DType::float8_e5m2, DType::float8_e4m3fnuz, DType::float8_e5m2fnuz,
               DType::float8_e8m0fnu, DType::float16, DType::bfloat16, DType::float32, DType::float64);
  // every code of the narrow types, as the upper bits of the wide ones
  const uint32_t item = size_of(dtype);
  const uint32_t width = std::min(item, 2U);
  for (uint32_t code = 0; code < 1U << (8 * width); ++code) {
    Bytes element(item);
    std::memcpy(element.data() + item - width, &code, width);
    double number = 0;
    cast_elements(dtype, element.data(), DType::float64, reinterpret_cast<std::byte*>(&number), 1);
    REQUIRE((first_not_finite(dtype, element.data(), 1) < 0) == std::isfinite(number));
  }
  Tensor all = Tensor::full(DType::float64, {10000}, 1).cast(dtype);
  CHECK(all.require_finite("x").to_bytes() == all.to_bytes());
  const Tensor bad = Tensor::full(DType::float64, {1}, NAN).cast(dtype);
  all = Tensor::concat({all, bad, all}, 0).require_finite("the weight");
  CHECK_THROWS_WITH(all.to_bytes(), "the weight: an element is NaN");
  CHECK_THROWS_WITH(all.reshape({3, 6667}).transpose(0, 1).to_bytes(), "the weight: an element is NaN");
  CHECK(all.slice(0, 10001, 10005).to_bytes().size() == 4 * item);  // what is not read is not checked
}

TEST_CASE("whole numbers are finite, both parts of a complex number must be", "[tensor]") {
  const Tensor numbers = counting({7});
  CHECK(numbers.require_finite("x").same_data(numbers));
  const std::array<float, 6> parts = {1, 2, 3, -INFINITY, 5, 6};
  const auto bytes = std::as_bytes(std::span(parts));
  const Tensor complex = Tensor::from_bytes(DType::complex64, {3}, Bytes(bytes.begin(), bytes.end()));
  CHECK(first_not_finite(DType::complex64, bytes.data(), 3) == 1);
  CHECK_THROWS_WITH(complex.require_finite("x").to_bytes(), "x: an element is not finite");
}

TEST_CASE("generated elements do not depend on the block", "[tensor]") {
  const Tensor noise = Tensor::normal(DType::float32, {1000, 11}, 0, 0.02, 42);
  const auto all = numbers_of<float>(noise);
  std::vector<float> part(101);
  noise.read(999, std::as_writable_bytes(std::span(part)));
  CHECK(std::equal(part.begin(), part.end(), all.begin() + 999));
  double sum = 0;
  double squares = 0;
  for (float x : all) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  CHECK(std::abs(sum / 11000) < 1e-3);
  CHECK(std::sqrt(squares / 11000) == Approx(0.02).epsilon(0.03));
  CHECK(numbers_of<uint8_t>(Tensor::lower_triangle(DType::uint8, {1, 1, 3, 3})) ==
        std::vector<uint8_t>{1, 0, 0, 1, 1, 0, 1, 1, 1});
}
