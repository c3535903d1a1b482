// Kernels that are compiled for several instruction sets: a machine that lacks the newest ones computes the
// same values. A sanitizer sees only the loops that run, so all of them run here.

#include <hwy/targets.h>
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "host/compute/element_op.hpp"
#include "host/compute/small_gemm.hpp"
#include "host/tensor/kernels/differences.hpp"
#include "host/tensor/kernels/float_sums.hpp"

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
