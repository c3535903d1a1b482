// Scans and comparisons of tensors: what is found where, whatever the number of threads.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <random>

#include "host/base/bytes.hpp"
#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/tensor/compare.hpp"
#include "host/tensor/scan.hpp"

namespace cbk {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor tensor_of(const std::vector<double>& numbers, DType dtype = DType::float32) {
  Bytes bytes(numbers.size() * 8);
  for (size_t i = 0; i < numbers.size(); ++i) store_le(bytes.data() + i * 8, numbers[i]);
  return Tensor::from_bytes(DType::float64, {static_cast<int64_t>(numbers.size())}, std::move(bytes))
      .cast(dtype);
}

std::vector<double> normal_numbers(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1);
  std::vector<double> out(count);
  for (double& number : out) number = static_cast<double>(static_cast<float>(normal(random)));
  return out;
}

template <typename Body>
void with_threads(std::initializer_list<int> counts, Body&& body) {
  const int before = thread_count();
  for (const int count : counts) {
    set_thread_count(count);
    body();
  }
  set_thread_count(before);
}

TEST_CASE("a scan finds the first NaN and the first infinity", "[tensor]") {
  std::vector<double> numbers = normal_numbers(600'000, 1);
  numbers[400'001] = nan;
  numbers[599'999] = nan;
  numbers[70'000] = -infinity;
  const DType dtype = GENERATE(DType::float32, DType::bfloat16, DType::float64, DType::float16);
  const Tensor tensor = tensor_of(numbers, dtype);
  with_threads({1, 3}, [&] {
    const Scan found = scan(tensor);
    CHECK(found.nan == 2);
    CHECK(found.inf == 1);
    CHECK(found.first_nan == 400'001);
    CHECK(found.first_inf == 70'000);
    CHECK_FALSE(found.constant);
  });
}

TEST_CASE("fingerprints are those of the bytes", "[tensor]") {
  const std::vector<double> numbers = normal_numbers(500'000, 2);
  const Tensor tensor = tensor_of(numbers);
  const uint64_t fingerprint = scan(tensor).fingerprint;
  with_threads({1, 2, 5}, [&] { CHECK(scan(tensor).fingerprint == fingerprint); });
  CHECK(scan(tensor.reshape({500, 1000})).fingerprint == fingerprint);
  CHECK(scan(tensor.reshape({1000, 500}).transpose(0, 1)).fingerprint != fingerprint);
  std::vector<double> other = numbers;
  std::swap(other[1], other[9]);
  CHECK(scan(tensor_of(other)).fingerprint != fingerprint);
  // However it is cut: rows of a transposed tensor are read together.
  for (const auto& [rows, columns] : {std::pair{700, 611}, {50'257, 7}, {3, 100'001}}) {
    const int64_t count = int64_t{rows} * columns;
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::uint8, DType::float64}) {
      const std::vector<double> source = normal_numbers(static_cast<size_t>(count), 4);
      const Tensor turned = tensor_of(source).cast(dtype).reshape({rows, columns}).transpose(0, 1);
      const Bytes bytes = turned.to_bytes();
      CHECK(scan(turned).fingerprint == scan(Tensor::from_bytes(dtype, {columns, rows}, bytes)).fingerprint);
    }
  }
  // However a constant is stored.
  const Scan stored = scan(tensor_of(std::vector<double>(300'000, 2.5)));
  const Scan filled = scan(Tensor::full(DType::float32, {300'000}, 2.5));
  CHECK(stored.fingerprint == filled.fingerprint);
  CHECK(stored.constant == filled.constant);
  CHECK(stored.constant.has_value());
}

TEST_CASE("zeros of both signs are one number", "[tensor]") {
  std::vector<double> zeros(300'000);
  for (size_t i = 0; i < zeros.size(); i += 3) zeros[i] = -0.0;
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float8_e5m2}) {
    const Scan found = scan(tensor_of(zeros, dtype));
    CHECK(found.constant == Bytes(size_of(dtype)));
    CHECK(found.fingerprint != scan(tensor_of(std::vector<double>(300'000), dtype)).fingerprint);
  }
  zeros[299'999] = 5e-324;
  CHECK_FALSE(scan(tensor_of(zeros, DType::float64)).constant);
  const Bytes signs = {std::byte{0}, std::byte{0x80}};
  CHECK_FALSE(scan(Tensor::from_bytes(DType::int8, {2}, signs)).constant);
  CHECK_FALSE(scan(Tensor::from_bytes(DType::float8_e4m3fnuz, {2}, signs)).constant);  // 0x80 is NaN
  CHECK(scan(Tensor::from_bytes(DType::float8_e4m3fn, {2}, signs)).constant);
}

TEST_CASE("a scan sums what is finite", "[tensor]") {
  const DType dtype = GENERATE(DType::float32, DType::bfloat16, DType::float16, DType::float64);
  std::vector<double> numbers = normal_numbers(70'003, 4);
  double sum = 0, squares = 0, largest = 0;
  for (double& number : numbers) {
    number = static_cast<double>(static_cast<int>(number * 8)) / 8;  // exact in each dtype
    sum += number;
    squares += number * number;
    largest = std::max(largest, std::fabs(number));
  }
  const auto close = [](double a, double b) { return std::fabs(a - b) <= 1e-5 * std::fabs(b); };
  RowSums first;
  with_threads({1, 3}, [&] {
    const Scan found = scan(tensor_of(numbers, dtype), {}, 0.05);
    REQUIRE(found.sums);
    CHECK(found.sums->count == 70'003);
    CHECK(std::fabs(found.sums->sum - sum) < 0.1);
    CHECK(close(found.sums->squares, squares));
    CHECK(found.largest == largest);
    CHECK_FALSE(found.rows);
    if (first.count == 0) first = *found.sums;
    CHECK(first.squares == found.sums->squares);
  });
  squares -= numbers[5] * numbers[5] + numbers[60'000] * numbers[60'000];
  numbers[5] = infinity;
  numbers[60'000] = nan;
  const Scan strange = scan(tensor_of(numbers, dtype), {}, 0.05);
  CHECK(strange.sums->count == 70'001);
  CHECK(close(strange.sums->squares, squares));
  CHECK_FALSE(scan(tensor_of(numbers, dtype)).sums);
}

TEST_CASE("a scan sums numbers whose squares float32 cannot hold", "[tensor]") {
  const double size = GENERATE(1e-30, 1e30);
  const Scan found = scan(tensor_of(std::vector<double>(1000, size)).reshape({10, 100}), {}, 0.05);
  CHECK(std::sqrt(found.sums->squares / 1000) == Approx(size));
  CHECK(found.rows->zero.count == 0);
  const Scan filled = scan(Tensor::full(DType::float32, {1000, 1000}, 0.5), {}, 0.05);
  CHECK(filled.sums->squares == 250'000);
  CHECK_FALSE(scan(Tensor::full(DType::int32, {10, 10}, 1), {}, 0.05).sums);
}

TEST_CASE("a scan finds odd rows and columns, wherever blocks end", "[tensor]") {
  const auto [columns, dtype] = GENERATE(table<int64_t, DType>({{16, DType::float32},
                                                                {16, DType::float64},
                                                                {100, DType::bfloat16},
                                                                {100, DType::float8_e4m3fn},
                                                                {1023, DType::float32},
                                                                {1023, DType::bfloat16},
                                                                {70'000, DType::float32}}));
  const int64_t count = columns > 10'000 ? 40 : 3000;
  const auto width = static_cast<size_t>(columns);
  std::vector<double> numbers = normal_numbers(static_cast<size_t>(count) * width, 5);
  const auto each = [&](int64_t row, auto&& change) {
    for (size_t k = 0; k < width; ++k) change(numbers[static_cast<size_t>(row) * width + k], k);
  };
  const auto row_of = [&](int64_t row) { return numbers.begin() + row * columns; };
  for (const int64_t row : {int64_t{0}, int64_t{7}, int64_t{8}})
    each(row, [](double& number, size_t) { number = 0; });
  for (int64_t row = 10; row < 20; ++row) each(row, [](double& number, size_t) { number /= 64; });
  for (int64_t row = 0; row < count; ++row)
    numbers[static_cast<size_t>(row) * width + 3] = row % 2 == 0 ? -0.0 : 0.0;
  for (int64_t row = count - 20; row < count; ++row) std::copy(row_of(9), row_of(9) + columns, row_of(row));
  const Tensor tensor = tensor_of(numbers, dtype).reshape({count, columns});
  with_threads({1, 3}, [&] {
    const Scan found = scan(tensor, {}, 0.05);
    REQUIRE(found.rows);
    using List = std::vector<std::pair<int64_t, int64_t>>;
    CHECK(found.rows->zero.first == List{{0, 0}, {7, 8}});
    CHECK(found.rows->zero.count == 3);
    CHECK(found.rows->quiet.first == List{{10, 19}});
    CHECK(found.rows->repeated.count == (columns > 65'536 ? 0 : 20));  // not known of one row to a block
    CHECK(found.rows->zero_columns.first == List{{3, 3}});
    CHECK(found.fingerprint == scan(tensor).fingerprint);
  });
}

TEST_CASE("a scan takes rows of one number each for different", "[tensor]") {
  std::vector<double> numbers(4096 * 64);
  for (size_t row = 0; row < 4096; ++row) numbers[row * 64 + row % 64] = 1;
  const Scan found = scan(tensor_of(numbers).reshape({4096, 64}), {}, 0.05);
  CHECK(found.rows->repeated.count == 0);
  CHECK(found.rows->zero_columns.count == 0);
  CHECK_FALSE(scan(tensor_of(numbers).reshape({4096 * 16, 4}), {}, 0.05).rows);
}

TEST_CASE("a scan counts what a cast would lose", "[tensor]") {
  const Scan found =
      scan(tensor_of({1, 70'000, -1e6, 1e-30, nan, infinity}), {DType::float16, DType::bfloat16});
  REQUIRE(found.losses.size() == 2);
  CHECK(found.losses[0].overflowed == 2);
  CHECK(found.losses[0].vanished == 1);
  CHECK(found.losses[1] == Losses());
  CHECK(found.largest == 1e6);
  CHECK(scan(Tensor::full(DType::float32, {1000, 1000}, 1e5), {DType::float16}).losses[0].overflowed ==
        1'000'000);
  CHECK(scan(Tensor::full(DType::float32, {0}, 0), {DType::float16}).losses[0] == Losses());
  CHECK_THROWS_AS(scan(Tensor::full(DType::complex64, {2}, 0), {DType::float16}), Error);
}

TEST_CASE("a comparison says how far apart tensors are, and where", "[tensor]") {
  const std::vector<double> a = normal_numbers(700'000, 3);
  std::vector<double> b = a;
  b[650'000] += 2;
  b[3] -= 1;
  b[400'000] += 1;
  double squares = 0;
  for (const double number : b) squares += number * number;
  const Tensor left = tensor_of(a, DType::float64);
  const Tensor right = tensor_of(b, DType::float64);
  const Difference one = compare(left, right, {}, 3);
  CHECK(one.different == 3);
  CHECK(one.first == 3);
  REQUIRE(one.largest.size() == 3);
  CHECK(one.largest[0].position == 650'000);
  CHECK(one.largest[1].position == 3);
  CHECK(one.largest[2].position == 400'000);
  CHECK(*one.relative_norm == Approx(std::sqrt(6 / squares)));
  CHECK(*one.cosine == Approx(1).margin(1e-4));
  with_threads({1, 2, 5}, [&] {
    const Difference again = compare(left, right, {}, 3);
    CHECK(again.relative_norm == one.relative_norm);
    CHECK(again.cosine == one.cosine);
    CHECK(again.max_relative == one.max_relative);
  });
  const Difference same = compare(left, left.reshape({700, 1000}).reshape({700'000}));
  CHECK(same.different == 0);
  CHECK(same.same_bits);
  const Difference opposite = compare(left, left.affine(-1, 0));
  CHECK(*opposite.cosine == Approx(-1));
  CHECK(*opposite.relative_norm == Approx(2));
  CHECK(opposite.max_relative == Approx(2));
  CHECK_FALSE(compare(left, Tensor::full(DType::float64, {700'000}, 0)).cosine);
}

TEST_CASE("NaN and infinities count as they did", "[tensor]") {
  const Tensor a = tensor_of({nan, nan, infinity, infinity, 1, 2}, DType::float32);
  const Tensor b = tensor_of({nan, 1, infinity, -infinity, 1, 2.5}, DType::float16);
  const Difference found = compare(a, b, {}, 2);
  CHECK(found.different == 3);
  CHECK(found.first == 1);
  CHECK(found.max_absolute == Number(infinity));
  CHECK(found.largest[0].position == 1);
  CHECK(found.nan_a == 1);
  CHECK(found.nan_b == 0);
  CHECK(found.infinite == 1);
  CHECK(compare(a, Tensor::full(DType::float32, {6}, 1)).nan_a == 2);
  CHECK(compare(Tensor::full(DType::float32, {6}, 1), a).nan_b == 2);
  CHECK(*found.relative_norm == Approx(0.5 / std::sqrt(7.25)));
  const Difference tolerated = compare(a, b, {.relative = 0.2, .absolute = 0});
  CHECK(tolerated.different == 2);
}

TEST_CASE("relative norm and cosine of very large and very small numbers", "[tensor]") {
  const auto check = [](const std::vector<double>& a, const std::vector<double>& b, double norm,
                        double cosine) {
    const Difference found = compare(tensor_of(a, DType::float64), tensor_of(b, DType::float64));
    CHECK(*found.relative_norm == Approx(norm));
    REQUIRE(found.cosine);
    CHECK(*found.cosine == Approx(cosine));
  };
  check({1e200, 2e200}, {2e200, 4e200}, 0.5, 1);
  check({1e-200, 2e-200}, {2e-200, 4e-200}, 0.5, 1);
  check({1e200, 1}, {1e200, 2}, 1e-200, 1);
  check({5e-324, 0}, {0, 5e-324}, std::sqrt(2.0), 0);
  std::vector<double> large(300'000, 1e300);  // a part of it is the same
  std::vector<double> other = large;
  other[299'999] = -1e300;
  check(large, other, 2 / std::sqrt(300'000.0), 1 - 2 / 300'000.0);
  const Tensor most = Tensor::from_bytes(DType::uint64, {1}, Bytes(8, std::byte{0xff}));
  Bytes less(8, std::byte{0xff});
  less[0] = std::byte{0xfe};
  const Difference one = compare(most, Tensor::from_bytes(DType::uint64, {1}, std::move(less)));
  CHECK(*one.relative_norm == Approx(0x1p-64));
}

}  // namespace
}  // namespace cbk
