// Quantiles and histograms out of counted ranges.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
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

}  // namespace
}  // namespace cbk
