#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <span>
#include <thread>

#include "host/base/parallel.hpp"
#include "host/tensor/counter_random.hpp"
#include "host/tensor/merge.hpp"

using namespace cbk;

namespace {

Tensor float_tensor(const std::vector<float>& numbers) {
  const auto stored = std::as_bytes(std::span(numbers));
  Bytes bytes(stored.size());
  std::copy(stored.begin(), stored.end(), bytes.begin());
  return Tensor::from_bytes(DType::float32, {static_cast<int64_t>(numbers.size())}, std::move(bytes));
}

std::vector<float> floats_of(const Tensor& tensor) {
  const Bytes bytes = tensor.to_bytes();
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(numbers)).begin());
  return numbers;
}

/// What a rule keeps of the difference from zero.
std::vector<float> trimmed(const std::vector<float>& numbers, TrimRule rule) {
  DifferenceRule all;
  all.weights = {1};
  all.trims = {rule};
  const Tensor base = Tensor::full(DType::float32, {static_cast<int64_t>(numbers.size())}, 0);
  return floats_of(add_differences(base, {float_tensor(numbers)}, all));
}

TrimRule largest(double density) {
  return {TrimRule::Kind::magnitude, density, false, 0};
}

/// Numbers of few sizes (`values`), so that many are equal.
std::vector<float> numbers_of_few_sizes(size_t count, uint64_t values) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t random = scrambled(i);
    out[i] = static_cast<float>(random % values) * ((random & 1024U) != 0 ? -0.37F : 0.37F);
  }
  return out;
}

}  // namespace

TEST_CASE("exactly the largest elements are kept, the first of equal ones", "[merge]") {
  for (const size_t count : {1U, 7U, 1000U, 300001U, 1100003U}) {
    for (const uint64_t values : {uint64_t{1}, uint64_t{3}, uint64_t{1000000007}}) {
      const std::vector<float> numbers = numbers_of_few_sizes(count, values);
      for (const double density : {0.001, 0.25, 0.5, 0.999}) {
        const auto wanted = static_cast<size_t>(density * static_cast<double>(count));
        if (wanted == 0) continue;
        std::vector<size_t> order(count);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return std::abs(numbers[a]) > std::abs(numbers[b]); });
        std::vector<float> expected(count);
        for (size_t i = 0; i < wanted; ++i) expected[order[i]] = numbers[order[i]];
        CHECK(trimmed(numbers, largest(density)) == expected);
      }
    }
  }
}

TEST_CASE("a trim that keeps nothing is an error, and one that keeps all changes nothing", "[merge]") {
  CHECK_THROWS_WITH(trimmed({1, 2, 3}, largest(0.3)), "the density 0.3 keeps none of 3 elements");
  CHECK(trimmed({1, -2, 3}, largest(1)) == std::vector<float>{1, -2, 3});
  CHECK(trimmed({}, largest(0.5)).empty());
}

TEST_CASE("random elements are the same for any block and number of threads", "[merge]") {
  const std::vector<float> numbers(200000, 1);
  const TrimRule rule{TrimRule::Kind::random, 0.3, true, scrambled(5)};
  const int threads = thread_count();
  set_thread_count(1);
  const std::vector<float> alone = trimmed(numbers, rule);
  set_thread_count(4);
  CHECK(trimmed(numbers, rule) == alone);
  set_thread_count(threads);
  const auto kept = std::count_if(alone.begin(), alone.end(), [](float number) { return number != 0; });
  CHECK(std::abs(static_cast<double>(kept) / 200000 - 0.3) < 0.01);
  const double sum = std::accumulate(alone.begin(), alone.end(), 0.0);
  CHECK(sum == Approx(200000).epsilon(1e-6));  // rescaled

  DifferenceRule all;
  all.weights = {1};
  all.trims = {rule};
  const Tensor merged =
      add_differences(Tensor::full(DType::float32, {200000}, 0), {float_tensor(numbers)}, all);
  for (const int64_t begin : {0, 1, 77777, 199990}) {
    float element = 0;
    merged.read(begin, std::as_writable_bytes(std::span(&element, 1)));
    CHECK(element == alone[static_cast<size_t>(begin)]);
  }
  CHECK(trimmed(numbers, {TrimRule::Kind::random, 0.3, true, scrambled(6)}) != alone);
}

TEST_CASE("several threads measure a tensor once, and agree", "[merge]") {
  const std::vector<float> numbers = numbers_of_few_sizes(100000, 50);
  DifferenceRule rule;
  rule.weights = {0.5, 2};
  rule.trims = {largest(0.4), largest(0.7)};
  rule.has_consensus = true;
  rule.is_normalized = true;
  const Tensor base = float_tensor(std::vector<float>(numbers.rbegin(), numbers.rend()));
  const auto make = [&] { return add_differences(base, {float_tensor(numbers), base.affine(3, 1)}, rule); };
  const std::vector<float> alone = floats_of(make());
  const Tensor shared = make();
  std::vector<std::vector<float>> found(4);
  {
    std::vector<std::jthread> threads;
    for (auto& one : found) threads.emplace_back([&] { one = floats_of(shared); });
  }
  for (const auto& one : found) CHECK(one == alone);
}

TEST_CASE("signs are elected by the weighted sum", "[merge]") {
  DifferenceRule rule;
  rule.weights = {1, 1, 1};
  rule.trims = {TrimRule{}, TrimRule{}, TrimRule{}};
  rule.has_consensus = true;
  rule.is_normalized = true;
  const Tensor base = float_tensor({0, 10, 0, 5});
  const std::vector<Tensor> tuned = {float_tensor({1, 7, 0, 5}), float_tensor({2, 12, 4, 5}),
                                     float_tensor({-9, 9, 0, 5})};
  CHECK(floats_of(add_differences(base, tuned, rule)) == std::vector<float>{-9, 8, 4, 5});
  rule.has_consensus = false;
  rule.is_normalized = false;
  rule.factor = 0.5;
  CHECK(floats_of(add_differences(base, tuned, rule)) == std::vector<float>{-3, 9, 2, 5});
}

TEST_CASE("weighted sums divide by the sum of the weights", "[merge]") {
  const std::vector<Tensor> tensors = {float_tensor({1, 2}), float_tensor({3, 6})};
  CHECK(floats_of(weighted_sum(tensors, {1, 3}, true)) == std::vector<float>{2.5, 5});
  CHECK(floats_of(weighted_sum(tensors, {1, 3}, false)) == std::vector<float>{10, 20});
  CHECK_THROWS_WITH(weighted_sum(tensors, {1, -1}, true), Catch::Contains("the sum 0"));
  CHECK_THROWS_WITH(weighted_sum(tensors, {1}, true), "2 tensors have 1 weights");
  CHECK_THROWS_WITH(weighted_sum({}, {}, true), "there are no tensors to merge");
  CHECK_THROWS_WITH(weighted_sum({tensors[0], tensors[1].cast(DType::float64)}, {1, 1}, true),
                    "cannot merge float32 with float64");
  CHECK_THROWS_WITH(weighted_sum({tensors[0], tensors[1].slice(0, 0, 1)}, {1, 1}, true),
                    "cannot merge the shapes [2] and [1]");
  CHECK_THROWS_WITH(weighted_sum({tensors[0].cast(DType::bfloat16)}, {1}, true),
                    Catch::Contains("cannot merge bfloat16"));
}

TEST_CASE("slerp keeps the length of vectors of one length, and is linear for parallel ones", "[merge]") {
  const Tensor x = float_tensor({3, 0});
  const Tensor y = float_tensor({0, 3});
  const std::vector<float> middle = floats_of(slerp(x, y, 0.5));
  CHECK(middle[0] == Approx(3 / std::sqrt(2)));
  CHECK(middle[1] == Approx(3 / std::sqrt(2)));
  CHECK(floats_of(slerp(x, float_tensor({9, 0}), 0.25)) == std::vector<float>{4.5, 0});
  CHECK(floats_of(slerp(x, float_tensor({0, 0}), 0.5))[0] == Approx(3 * std::sin(std::acos(-1) / 4)));
}

TEST_CASE("results that overflow are counted, those of infinite elements are not", "[merge]") {
  const float huge = 3e38F;
  const float inf = INFINITY;
  const Tensor merged =
      weighted_sum({float_tensor({huge, 1, inf}), float_tensor({huge, 1, 0})}, {1, 1}, false);
  Bytes out(merged.nbytes());
  CHECK(merged.expression()->read(0, out).overflowed == 1);
}

TEST_CASE("merged tensors are described by all that they depend on", "[merge]") {
  const Tensor a = float_tensor({1, 2});
  const auto text = [&](double density, uint64_t stream, double factor) {
    DifferenceRule rule;
    rule.weights = {1};
    rule.trims = {{TrimRule::Kind::random, density, false, stream}};
    rule.factor = factor;
    return add_differences(a, {a}, rule).expression()->parameters();
  };
  CHECK(text(0.5, 1, 1) == text(0.5, 1, 1));
  CHECK(text(0.5, 1, 1) != text(0.25, 1, 1));
  CHECK(text(0.5, 1, 1) != text(0.5, 2, 1));
  CHECK(text(0.5, 1, 1) != text(0.5, 1, 2));
  CHECK(slerp(a, a, 0.1).expression()->parameters() != slerp(a, a, 0.2).expression()->parameters());
}
