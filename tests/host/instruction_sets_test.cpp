// Kernels that are compiled for several instruction sets: a machine that lacks the newest ones computes the
// same values. A sanitizer sees only the loops that run, so all of them run here.

#include <hwy/targets.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "host/compute/element_op.hpp"
#include "host/compute/small_gemm.hpp"
#include "host/tensor/kernels/differences.hpp"
#include "host/tensor/kernels/float_sums.hpp"
#include "host/tensor/kernels/merge.hpp"
#include "host/tensor/kernels/small_float.hpp"
#include "host/tensor/kernels/to_bfloat16.hpp"

using namespace cbk;
using namespace cbk::compute;

namespace {

/// Makes this instruction set the best one of the machine.
class OnlyTarget {
 public:
  explicit OnlyTarget(int64_t target) { set(target); }
  OnlyTarget(const OnlyTarget&) = delete;
  OnlyTarget& operator=(const OnlyTarget&) = delete;
  ~OnlyTarget() { set(0); }

 private:
  static void set(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

std::vector<int64_t> targets_of_this_machine() {
  std::vector<int64_t> out;
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_EMU128}) {
    if ((hwy::SupportedTargets() & target) != 0) out.push_back(target);
  }
  return out;
}

/// Numbers around 0, and what is special.
template <typename T>
std::vector<T> numbers(size_t count, int seed) {
  const T infinity = std::numeric_limits<T>::infinity();
  const T special[] = {0, -T{0}, infinity, -infinity, std::numeric_limits<T>::quiet_NaN(), 100, -100};
  std::vector<T> out(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t mixed = i * 37 + static_cast<size_t>(seed) * 11;
    out[i] = mixed % 5 == 0 ? special[mixed / 5 % std::size(special)]
                            : static_cast<T>(static_cast<double>(mixed % 101) / 16 - 3);
  }
  return out;
}

template <typename T>
std::vector<T> results(ElementOp op, unsigned scalars, size_t count) {
  std::vector<T> operands[3], out(count);
  for (int i = 0; i < 3; ++i) operands[i] = numbers<T>((scalars >> i & 1) != 0 ? 1 : count, i + 1);
  const ElementLoop loop = find_loop<T>(op, scalars);
  REQUIRE(loop != nullptr);
  loop(operands[0].data(), operands[1].data(), operands[2].data(), out.data(), count);
  return out;
}

template <typename T>
bool are_near(T a, T b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(a - b) <= tolerance * std::max<double>(1, std::abs(b));
}

}  // namespace

TEMPLATE_TEST_CASE("element loops of all instruction sets", "[compute]", float, double) {
  const double tolerance = sizeof(TestType) == 4 ? 2e-6 : 1e-13;
  const std::vector<int64_t> targets = targets_of_this_machine();
  for (int i = 0; i < element_op_count; ++i) {
    const auto op = static_cast<ElementOp>(i);
    for (unsigned scalars = 0; scalars < 1U << traits_of(op).operands; ++scalars) {
      for (const size_t count : {1, 3, 8, 17, 100}) {
        std::vector<TestType> expected;
        for (const int64_t target : targets) {
          const OnlyTarget only(target);
          const std::vector<TestType> found = results<TestType>(op, scalars, count);
          if (expected.empty()) expected = found;
          for (size_t k = 0; k < count; ++k) {
            INFO(traits_of(op).name << " of element " << k << ": " << found[k] << " with "
                                    << hwy::TargetName(target) << ", " << expected[k] << " with the best");
            if (!are_near(found[k], expected[k], tolerance)) FAIL();
          }
        }
      }
    }
  }
  CHECK(!targets.empty());
}

TEMPLATE_TEST_CASE("small products of all instruction sets", "[compute]", float, double) {
  for (const int64_t target : targets_of_this_machine()) {
    const OnlyTarget only(target);
    for (const int64_t columns : {1, 4, 31, 64}) {
      const int64_t rows = 13, depth = 5;
      std::vector<TestType> a(rows * depth), b(static_cast<size_t>(depth * columns));
      for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<TestType>(i % 7) - 3;
      for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<TestType>(i % 5) - 2;
      std::vector<TestType> out(static_cast<size_t>(rows * columns), 1);
      small_gemm<TestType>({a.data(), depth, false}, {b.data(), columns, false}, {out.data(), columns, false},
                           rows, columns, depth, 2, true);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          TestType want = 0;
          for (int64_t k = 0; k < depth; ++k) want += a[i * depth + k] * b[k * columns + j];
          REQUIRE(out[i * columns + j] == 1 + 2 * want);  // whole numbers: exact
        }
      }
    }
  }
}

TEST_CASE("sums of floats of all instruction sets", "[tensor]") {
  for (const int64_t target : targets_of_this_machine()) {
    const OnlyTarget only(target);
    for (const size_t count : {1, 31, 32, 100}) {
      std::vector<float> x(count);
      for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>(i % 7) - 3.5F;
      std::vector<uint32_t> counters(1 << 16);
      double sum = 0, squares = 0;
      for (const float number : x) {
        sum += number - 1;
        squares += (number - 1) * (number - 1);
      }
      const FloatSums found = sums_of_floats(x.data(), count, 1, counters.data());
      CHECK(found.sum == sum);  // multiples of 1/4: exact
      CHECK(found.squares == squares);
      CHECK(found.least == -3.5F);
      CHECK(found.most == (count == 1 ? -3.5F : 2.5F));
      CHECK(found.smallest == (count == 1 ? 3.5F : 0.5F));
      CHECK(counters[0xc060] == (count + 6) / 7);  // -3.5
      CHECK(sums_of_floats(x.data(), count, 1, nullptr).squares == squares);
    }
  }
}

TEMPLATE_TEST_CASE("differences of all instruction sets", "[tensor]", float, double) {
  for (const int64_t target : targets_of_this_machine()) {
    const OnlyTarget only(target);
    for (const size_t count : {1, 7, 8, 50}) {
      std::vector<TestType> x(count), y(count);
      PairSums sums;
      size_t different = 0;
      double most = 0;
      for (size_t i = 0; i < count; ++i) {
        x[i] = static_cast<TestType>(i % 7) - 3;
        y[i] = static_cast<TestType>(i % 5) / 2;
        sums.add(x[i], y[i]);
        most = std::max<double>(most, std::abs(x[i] - y[i]));
        different += std::abs(x[i] - y[i]) > 1 + std::abs(y[i]) / 2 ? 1 : 0;
      }
      const PairResults found = compare_pairs(x.data(), y.data(), count, {1, 0.5, 0.25});
      CHECK(found.sums.xy == sums.xy);  // multiples of 1/4: exact
      CHECK(found.sums.xx == sums.xx);
      CHECK(found.sums.yy == sums.yy);
      CHECK(found.sums.dd == sums.dd);
      CHECK(found.distances.max_absolute == most);
      CHECK(found.distances.different == different);
      CHECK(found.distances.may_exceed);
      CHECK(!compare_pairs(x.data(), x.data(), count, {0, 0, 0.25}).distances.may_exceed);
    }
  }
}

TEST_CASE("bfloat16 of all instruction sets", "[tensor]") {
  std::vector<float> source = numbers<float>(1003, 1);
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {  // all signs and exponents, around ties
    for (const uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      source.push_back(std::bit_cast<float>(upper << 16 | lower));
  }
  Losses expected;
  std::vector<uint16_t> wanted;
  for (const float number : source) {
    wanted.push_back(float_to_bfloat16(number));
    const uint32_t size = wanted.back() & 0x7fffU;
    expected.overflowed += static_cast<int64_t>(std::isfinite(number) && size == 0x7f80);
    expected.vanished += static_cast<int64_t>(number != 0 && size == 0);
  }
  for (const int64_t target : targets_of_this_machine()) {
    const OnlyTarget only(target);
    for (const size_t count : {source.size(), size_t{0}, size_t{1}, size_t{17}}) {
      std::vector<uint16_t> found(count);
      const Losses lost =
          to_bfloat16(reinterpret_cast<const std::byte*>(source.data()),
                      reinterpret_cast<std::byte*>(found.data()), static_cast<int64_t>(count));
      CHECK(std::equal(found.begin(), found.end(), wanted.begin()));
      if (count != source.size()) continue;
      CHECK(lost.overflowed == expected.overflowed);
      CHECK(lost.vanished == expected.vanished);
    }
  }
}

TEMPLATE_TEST_CASE("merging on all instruction sets", "[merge]", float, double) {
  constexpr DType dtype = sizeof(TestType) == 4 ? DType::float32 : DType::float64;
  constexpr int64_t count = 5003;
  std::vector<std::vector<TestType>> parts(3);
  for (size_t k = 0; k < parts.size(); ++k) {
    for (int64_t i = 0; i < count; ++i)
      parts[k].push_back(
          static_cast<TestType>(std::sin(static_cast<double>(i * 7 + static_cast<int64_t>(k) * 3))));
  }
  const std::vector<double> weights = {0.3, 1.7, 0.123456789};
  std::vector<std::vector<TestType>> results;
  std::vector<double> sums;
  for (const int64_t target : targets_of_this_machine()) {
    const OnlyTarget only(target);
    std::vector<std::byte*> bytes;
    for (auto& part : parts) bytes.push_back(reinterpret_cast<std::byte*>(part.data()));
    std::vector<TestType> out(2 * count);
    auto* first = reinterpret_cast<std::byte*>(out.data());
    auto* second = reinterpret_cast<std::byte*>(out.data() + count);
    add_weighted(dtype, bytes, weights, 1.3, first, count);
    mix_differences(dtype, {weights, true, true, 0.7}, bytes, first, second, count);
    results.push_back(out);
    const Products products = products_of(dtype, bytes[0], bytes[1], count);
    sums.push_back(products.ab + products.aa + sum_of_sizes(dtype, bytes[2], count));
  }
  for (const auto& result : results) CHECK(result == results.front());
  for (const double sum : sums) CHECK(sum == sums.front());
}
