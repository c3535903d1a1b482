#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "host/base/parallel.hpp"
#include "host/compute/dense_svd.hpp"
#include "host/compute/low_rank.hpp"
#include "host/tensor/expression.hpp"

using namespace cbk;
using namespace cbk::compute;

namespace {

std::vector<float> floats_of(const Tensor& tensor) {
  const Bytes bytes = tensor.to_bytes();
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

Tensor random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  return Tensor::normal(DType::float32, {rows, columns}, 0, 1, seed);
}

std::shared_ptr<const LowRank> product_of(const Tensor& tuned, const Tensor& base, int64_t rank) {
  return std::make_shared<LowRank>(tuned, base, rank);
}

Tensor joined(const std::shared_ptr<const LowRank>& product) {
  return low_rank_side(product, LowRank::Side::left).matmul(low_rank_side(product, LowRank::Side::right));
}

double largest_distance(const Tensor& a, const Tensor& b) {
  const std::vector<float> left = floats_of(a), right = floats_of(b);
  double most = 0;
  for (size_t i = 0; i < left.size(); ++i)
    most = std::max(most, std::abs(double{left[i]} - double{right[i]}));
  return most;
}

}  // namespace

TEST_CASE("a difference of a low rank is found, by both decompositions", "[low rank]") {
  struct Case {
    int64_t rows, columns, rank;
  };
  for (const auto& [rows, columns, rank] :
       {Case{20, 30, 3}, Case{30, 20, 20}, Case{1, 7, 5}, Case{150, 401, 5}, Case{401, 150, 1}}) {
    const Tensor base = random_matrix(rows, columns, 1);
    const Tensor difference = random_matrix(rows, rank, 2).matmul(random_matrix(rank, columns, 3));
    const auto product = product_of(base.add(difference), base, rank);
    CHECK(product->rank() == std::min({rank, rows, columns}));
    CHECK_FALSE(product->energy());
    CHECK(largest_distance(joined(product), difference) < 1e-4);
    const Energy energy = product->energy().value();
    CHECK(energy.kept == Approx(energy.all).epsilon(1e-5));
  }
}

TEST_CASE("the largest singular values are kept", "[low rank]") {
  const Tensor zero = Tensor::full(DType::float32, {4, 3}, 0);
  const float values[] = {5, 0, 0, 0, -7, 0, 0, 0, 1, 0, 0, 0};
  Bytes bytes(sizeof values);
  std::memcpy(bytes.data(), values, sizeof values);
  const Tensor diagonal = Tensor::from_bytes(DType::float32, {4, 3}, std::move(bytes));
  const auto product = product_of(diagonal, zero, 1);
  const std::vector<float> found = floats_of(joined(product));
  for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(i == 4 ? -7 : 0).margin(1e-6));
  CHECK(product->energy()->all == Approx(75));
  CHECK(product->energy()->kept == Approx(49));
}

TEST_CASE("factors are the same for any number of threads, and after they were dropped", "[low rank]") {
  const Tensor base = random_matrix(300, 280, 1), tuned = random_matrix(300, 280, 2);
  const int threads = thread_count();
  std::vector<std::vector<float>> found;
  for (const int count : {1, 3}) {
    set_thread_count(count);
    const auto product = product_of(tuned, base, 6);
    const Tensor left = low_rank_side(product, LowRank::Side::left);
    found.push_back(floats_of(left));
    left.expression()->drop(0, left.numel());
    product->drop(product->rank() * product->columns());
    found.push_back(floats_of(left));
  }
  set_thread_count(threads);
  for (const auto& each : found) CHECK(each == found.front());
}

TEST_CASE("matrices that cannot be decomposed are refused before they are read", "[low rank]") {
  const Tensor one = random_matrix(3, 4, 1);
  CHECK_THROWS_WITH(product_of(one, one.transpose(0, 1), 1),
                    "expected two matrices of one shape, found [3, 4] and [4, 3]");
  CHECK_THROWS_WITH(product_of(one, one, 0), "expected a rank of at least 1, found 0");
  CHECK_THROWS_WITH(product_of(one.cast(DType::float64), one, 1),
                    "expected two float32 matrices, found float64 and float32");
  const Tensor huge = Tensor::full(DType::float32, {40000, 40000}, 0);
  CHECK_THROWS_WITH(product_of(huge, huge, 20000), Catch::Contains("choose a smaller rank"));
  CHECK(product_of(huge, huge, 64)->rank() == 64);
}

TEST_CASE("an orthonormal basis also of columns that depend on each other", "[low rank]") {
  std::vector<float> matrix = {1, 2, 2, 4, 3, 6, 0, 0};  // (4, 2): the second column is twice the first
  orthonormalize(matrix, 4, 2);
  const auto dot = [&](size_t a, size_t b) {
    double sum = 0;
    for (size_t i = 0; i < 4; ++i) sum += double{matrix[2 * i + a]} * double{matrix[2 * i + b]};
    return sum;
  };
  CHECK(dot(0, 0) == Approx(1));
  CHECK(dot(1, 1) == Approx(1));
  CHECK(dot(0, 1) == Approx(0).margin(1e-6));
  CHECK(std::abs(matrix[0]) == Approx(1 / std::sqrt(14)));
}
