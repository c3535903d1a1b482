// Quantiles and histograms out of counted ranges.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "host/base/bytes.hpp"
#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/tensor/statistics.hpp"

namespace cbk {
namespace {

Tensor tensor_of(const std::vector<double>& numbers, DType dtype) {
  Bytes bytes(numbers.size() * 8);
  for (size_t i = 0; i < numbers.size(); ++i) store_le(bytes.data() + i * 8, numbers[i]);
  return Tensor::from_bytes(DType::float64, {static_cast<int64_t>(numbers.size())}, std::move(bytes))
      .cast(dtype);
}

std::vector<double> normal_numbers(size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 0.02);
  std::vector<double> out(count);
  for (double& number : out) number = normal(random);
  return out;
}

TEST_CASE("quantiles of many floats are within a bin", "[tensor]") {
  const DType dtype = GENERATE(DType::float32, DType::float64);
  std::vector<double> numbers = normal_numbers(300'001);
  if (dtype == DType::float32) {
    for (double& number : numbers) number = static_cast<double>(static_cast<float>(number));
  }
  const Distribution found = statistics(tensor_of(numbers, dtype)).distribution;
  std::sort(numbers.begin(), numbers.end());
  CHECK(found.count() == 300'001);
  const std::vector<double> shares = {0, 0.001, 0.25, 0.5, 0.9, 1};
  const std::vector<double> quantiles = found.quantiles(shares);
  for (size_t i = 0; i < shares.size(); ++i) {
    const double exact = numbers[static_cast<size_t>(std::llround(shares[i] * 300'000))];
    CHECK(std::fabs(quantiles[i] - exact) <= std::fabs(exact) / 64);
  }
  CHECK(quantiles.front() == numbers.front());
  CHECK(quantiles.back() == numbers.back());
  CHECK_THROWS_AS(found.quantiles({1.5}), Error);
  CHECK_THROWS_AS(found.quantiles({std::nan("")}), Error);
}

TEST_CASE("quantiles and histograms of numbers that are alike are fine enough", "[tensor]") {
  const auto [middle, dtype] = GENERATE(std::pair(1.0, DType::float32), std::pair(1e9, DType::float64),
                                        std::pair(-3.0, DType::float64), std::pair(1e12, DType::int64));
  std::vector<double> numbers = normal_numbers(300'001);
  const double size = dtype == DType::int64 ? 1e7 : 0.05;  // integers need more than 65,536 values
  for (double& number : numbers) number = middle + number * size;
  numbers[5] = middle * 1000;  // one far away does not matter
  for (size_t i = 100; i < 1'100; ++i) numbers[i] = 0;
  const Tensor tensor = tensor_of(numbers, dtype);
  const Bytes stored = tensor.cast(DType::float64).to_bytes();
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = load_le<double>(stored.data() + i * 8);
  const Distribution found = statistics(tensor).distribution;
  CHECK(found.count() == 300'001);
  CHECK(std::ranges::is_sorted(found.bins(), {}, &Bin::low));
  std::vector<double> sorted = numbers;
  std::sort(sorted.begin(), sorted.end());
  const std::vector<double> shares = {0, 0.01, 0.25, 0.5, 0.75, 0.99, 1};
  const std::vector<double> quantiles = found.quantiles(shares);
  for (size_t i = 0; i < shares.size(); ++i) {
    const double exact = sorted[static_cast<size_t>(std::llround(shares[i] * 300'000))];
    CHECK(std::fabs(quantiles[i] - exact) <= std::fabs(middle) / 64 / 1024 + 1e-12);
  }
  const auto zeros = std::equal_range(sorted.begin(), sorted.end(), 0.0);
  const auto below = [&](double limit) { return std::ranges::lower_bound(sorted, limit) - sorted.begin(); };
  for (const Bin& bin : found.bins()) {
    const bool has_end = bin.low == bin.high || &bin == &found.bins().back();
    auto count = (has_end ? std::ranges::upper_bound(sorted, bin.high) - sorted.begin() : below(bin.high)) -
                 below(bin.low);
    if (bin.low != bin.high && bin.low <= 0 && bin.high > 0)
      count -= zeros.second - zeros.first;  // a bin of their own
    if (bin.count != count) FAIL(bin.low << " to " << bin.high << ": " << bin.count << ", not " << count);
  }
}

TEST_CASE("dtypes of up to 16 bits have a bin for each value", "[tensor]") {
  const DType dtype = GENERATE(DType::float16, DType::bfloat16, DType::float8_e5m2, DType::int16, DType::int8,
                               DType::uint16, DType::uint8);
  std::vector<double> numbers = normal_numbers(50'000);
  for (double& number : numbers) number = is_floating(dtype) ? number : std::round(std::fabs(number) * 1000);
  numbers[7] = is_floating(dtype) ? std::nan("") : 0;
  numbers[8] = -0.0;
  const Tensor tensor = tensor_of(numbers, dtype);
  const Statistics counted = statistics(tensor);
  const Statistics wide = statistics(tensor.cast(is_floating(dtype) ? DType::float32 : DType::int32));
  CHECK(counted.min == wide.min);
  CHECK(counted.max == wide.max);
  CHECK(counted.nan == wide.nan);
  CHECK(counted.inf == wide.inf);
  CHECK(counted.zeros == wide.zeros);
  CHECK(*counted.mean == Approx(*wide.mean).epsilon(1e-12));
  CHECK(*counted.std == Approx(*wide.std).epsilon(1e-12));
  CHECK(*counted.norm == Approx(*wide.norm).epsilon(1e-12));
  CHECK(statistics(tensor, false).subnormal == counted.subnormal);
  CHECK(counted.distribution.count() == 50'000 - counted.nan - counted.inf);
  for (const Bin& bin : counted.distribution.bins()) CHECK(bin.low == bin.high);
}

TEST_CASE("negative zeros, NaN and infinities among floats are counted as such", "[tensor]") {
  const double infinity = std::numeric_limits<double>::infinity();
  const DType dtype = GENERATE(DType::float32, DType::float64);
  std::vector<double> numbers = normal_numbers(10'000);
  for (size_t i = 0; i < numbers.size(); i += 100) {
    numbers[i] = -0.0;
    numbers[i + 1] = 0.0;
    numbers[i + 2] = i % 200 == 0 ? -0x1p-140 : 0x1p-140;
  }
  for (size_t i = 5'003; i < 5'006; ++i) numbers[i] = std::nan("");
  numbers[9'995] = infinity;
  numbers[9'996] = -infinity;
  const Statistics found = statistics(tensor_of(numbers, dtype));
  CHECK(found.zeros == 200);
  CHECK(found.nan == 3);
  CHECK(found.inf == 2);
  CHECK(found.subnormal == (dtype == DType::float32 ? 100 : 0));
  CHECK(found.distribution.count() == 9'995);
  int64_t below = 0, zeros = 0;
  for (const Bin& bin : found.distribution.bins()) {
    if (bin.high <= 0 && bin.low < 0) below += bin.count;
    if (bin.low == 0 && bin.high == 0) zeros += bin.count;
  }
  CHECK(zeros == 200);
  CHECK(below == std::ranges::count_if(numbers, [&](double x) { return x < 0 && x > -infinity; }));
}

TEST_CASE("the counts of a histogram are exact for its edges", "[tensor]") {
  std::vector<double> numbers = normal_numbers(100'000);
  const Histogram found = statistics(tensor_of(numbers, DType::float32)).distribution.histogram(40);
  REQUIRE(found.counts.size() + 1 == found.edges.size());
  CHECK(found.counts.size() >= 35);
  CHECK(found.counts.size() <= 40);
  for (size_t bin = 0; bin < found.counts.size(); ++bin) {
    CHECK(found.edges[bin] < found.edges[bin + 1]);
    const bool is_last = bin + 1 == found.counts.size();
    const auto count = std::count_if(numbers.begin(), numbers.end(), [&](double number) {
      const auto stored = static_cast<double>(static_cast<float>(number));
      return stored >= found.edges[bin] &&
             (stored < found.edges[bin + 1] || (is_last && stored == found.edges[bin + 1]));
    });
    CHECK(found.counts[bin] == count);
  }
}

TEST_CASE("statistics have the same bits for any number of threads", "[tensor]") {
  const Tensor tensor = tensor_of(normal_numbers(1'500'000), DType::float32);
  const int before = thread_count();
  set_thread_count(1);
  const Statistics alone = statistics(tensor);
  for (const int threads : {2, 3, 7}) {
    set_thread_count(threads);
    const Statistics together = statistics(tensor);
    CHECK(together.mean == alone.mean);
    CHECK(together.std == alone.std);
    CHECK(together.norm == alone.norm);
    CHECK(together.distribution.quantiles({0.1, 0.5}) == alone.distribution.quantiles({0.1, 0.5}));
  }
  set_thread_count(before);
}

TEST_CASE("zeros and a constant have bins of their own", "[tensor]") {
  std::vector<double> numbers(10'000);
  numbers[0] = 1;
  const Distribution sparse = statistics(tensor_of(numbers, DType::float32)).distribution;
  CHECK(sparse.quantiles({0, 0.5, 1}) == std::vector<double>{0, 0, 1});
  const Statistics constant = statistics(Tensor::full(DType::float32, {100, 100}, 3));
  CHECK(constant.distribution.histogram(10).counts == std::vector<int64_t>{10'000});
  CHECK(constant.norm == 300.0);
  CHECK(Distribution().quantiles({0.5}).empty());
  CHECK(Distribution().histogram(4).counts.empty());
  CHECK_THROWS_AS(sparse.histogram(0), Error);
}

/// Of a dtype's elements that are cast from doubles.
void check_whole(DType dtype, const std::vector<double>& numbers) {
  const Statistics found = statistics(tensor_of(numbers, dtype));
  long double sum = 0;
  for (const double number : numbers) sum += number;
  const long double mean = sum / static_cast<long double>(numbers.size());
  long double squares = 0;
  long double deviations = 0;
  for (const double number : numbers) {
    squares += static_cast<long double>(number) * number;
    deviations += (number - mean) * (number - mean);
  }
  CHECK(*found.mean == Approx(static_cast<double>(mean)).epsilon(1e-14));
  CHECK(*found.norm == Approx(static_cast<double>(std::sqrt(squares))).epsilon(1e-14));
  const auto count = static_cast<long double>(numbers.size());
  CHECK(*found.std == Approx(static_cast<double>(std::sqrt(deviations / count))).epsilon(1e-12));
  CHECK(std::get<Wide>(*found.min) == static_cast<Wide>(std::ranges::min(numbers)));
  CHECK(std::get<Wide>(*found.max) == static_cast<Wide>(std::ranges::max(numbers)));
  CHECK(found.zeros == std::ranges::count(numbers, 0.0));
  const Histogram histogram = found.distribution.histogram(16);
  for (size_t bin = 0; bin < histogram.counts.size(); ++bin) {
    const bool is_last = bin + 1 == histogram.counts.size();
    CHECK(histogram.counts[bin] == std::ranges::count_if(numbers, [&](double number) {
            return number >= histogram.edges[bin] && (number < histogram.edges[bin + 1] || is_last);
          }));
  }
}

TEST_CASE("statistics of integers are exact, on several threads", "[tensor]") {
  std::mt19937 random(2);
  const auto numbers = [&](double low, double high, size_t count) {
    std::uniform_real_distribution<double> spread(low, high);
    std::vector<double> out(count);
    for (double& number : out) number = std::floor(spread(random));
    return out;
  };
  check_whole(DType::int8, numbers(-128, 128, 600'000));
  check_whole(DType::uint8, numbers(0, 256, 5'000));
  check_whole(DType::int16, numbers(-32768, 32768, 600'000));
  check_whole(DType::uint16, numbers(100, 200, 5'000));
  check_whole(DType::int32, numbers(-0x1p31, 0x1p31, 600'000));  // more different ones than are counted each
  check_whole(DType::int32, numbers(-20, 20, 600'000));
  check_whole(DType::uint32, numbers(0x1p32 - 9, 0x1p32, 300'000));  // the mean is far from 0
  check_whole(DType::int64, numbers(-0x1p50, 0x1p50, 600'000));
  check_whole(DType::uint64, numbers(0, 70'000, 600'000));
  std::vector<double> outlier(5'000, 0x1p31 - 1);
  outlier[0] = -0x1p31;
  check_whole(DType::int32, outlier);
  Bytes bools(5'000, std::byte{7});  // any byte but 0 is true
  bools[3] = std::byte{0};
  const Statistics truth = statistics(Tensor::from_bytes(DType::boolean, {5'000}, std::move(bools)));
  CHECK(*truth.mean == Approx(4'999.0 / 5'000));
  CHECK(std::get<Wide>(*truth.max) == 1);
}

}  // namespace
}  // namespace cbk
