#include "host/tensor/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "host/base/interrupt.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk {
namespace {

constexpr int64_t block_bytes = 1 << 20;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// The numbers of a block, in the form in which they are compared: one double each, two for complex.
class Numbers {
 public:
  explicit Numbers(DType dtype) : dtype_(dtype) {}

  const double* convert(ByteView block) {
    const DType part = dtype_ == DType::complex64    ? DType::float32
                       : dtype_ == DType::complex128 ? DType::float64
                                                     : dtype_;
    const auto count = static_cast<int64_t>(block.size() / size_of(part));
    numbers_.resize(static_cast<size_t>(count));
    cast_elements(part, block.data(), DType::float64, reinterpret_cast<std::byte*>(numbers_.data()), count);
    return numbers_.data();
  }

 private:
  DType dtype_;
  std::vector<double> numbers_;
};

class Comparer {
 public:
  Comparer(DType a, DType b, const Tolerance& tolerance)
      : a_(a), b_(b), numbers_a_(a), numbers_b_(b), tolerance_(tolerance) {
    if (is_whole(a) && is_whole(b)) result.max_absolute = Wide{0};
  }

  void add(int64_t begin, ByteView a, ByteView b) {
    const auto count = static_cast<int64_t>(a.size() / size_of(a_));
    if (is_complex(a_)) {
      add_complex(begin, count, numbers_a_.convert(a), numbers_b_.convert(b));
    } else if (is_whole(a_) && is_whole(b_)) {
      add_whole(begin, count, a, b);
    } else if (is_whole(a_) || is_whole(b_)) {
      add_mixed(begin, count, a, b);
    } else {
      add_real(begin, count, numbers_a_.convert(a), numbers_b_.convert(b));
    }
  }

  Difference result;

 private:
  void add_whole(int64_t begin, int64_t count, ByteView a, ByteView b) {
    for (int64_t i = 0; i < count; ++i) {
      const Wide x = whole_at(a_, a.data() + static_cast<size_t>(i) * size_of(a_));
      const Wide y = whole_at(b_, b.data() + static_cast<size_t>(i) * size_of(b_));
      if (x == y) continue;
      note(begin + i, x > y ? x - y : y - x, std::abs(static_cast<double>(x)),
           std::abs(static_cast<double>(y)));
    }
  }

  void add_real(int64_t begin, int64_t count, const double* a, const double* b) {
    for (int64_t i = 0; i < count; ++i) {
      if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
      note(begin + i, std::abs(a[i] - b[i]), std::abs(a[i]), std::abs(b[i]));
    }
  }

  /// Whole numbers beside real ones.
  void add_mixed(int64_t begin, int64_t count, ByteView a, ByteView b) {
    const double* x = numbers_a_.convert(a);
    const double* y = numbers_b_.convert(b);
    const bool is_left = is_whole(a_);
    const DType whole = is_left ? a_ : b_;
    const std::byte* wholes = is_left ? a.data() : b.data();
    for (int64_t i = 0; i < count; ++i) {
      const Wide number = whole_at(whole, wholes + static_cast<size_t>(i) * size_of(whole));
      const double distance = distance_between(number, is_left ? y[i] : x[i]);
      if (distance != 0) note(begin + i, distance, std::abs(x[i]), std::abs(y[i]));
    }
  }

  /// Exact where it is small, also beyond 2^53.
  static double distance_between(Wide whole, double real) {
    if (std::trunc(real) != real || std::abs(real) > 0x1p65)
      return std::abs(static_cast<double>(whole) - real);
    const Wide other = static_cast<Wide>(real);
    return static_cast<double>(whole > other ? whole - other : other - whole);
  }

  void add_complex(int64_t begin, int64_t count, const double* a, const double* b) {
    const auto same = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
    for (int64_t i = 0; i < count; ++i) {
      const double* x = a + 2 * i;
      const double* y = b + 2 * i;
      if (same(x[0], y[0]) && same(x[1], y[1])) continue;
      note(begin + i, std::hypot(x[0] - y[0], x[1] - y[1]), std::hypot(x[0], x[1]), std::hypot(y[0], y[1]));
    }
  }

  void note(int64_t position, Number exact, double size_a, double size_b) {
    double distance = std::visit([](auto number) { return static_cast<double>(number); }, exact);
    if (std::isnan(distance)) exact = distance = infinity;
    const double larger = std::max(size_a, size_b);
    result.max_absolute = std::max(result.max_absolute, exact);
    result.max_relative = std::max(result.max_relative, std::isinf(distance) ? infinity : distance / larger);
    // An infinite size would make every distance acceptable.
    const double allowed = tolerance_.absolute + (std::isinf(size_b) ? 0 : tolerance_.relative * size_b);
    if (distance <= allowed && !std::isinf(distance)) return;
    if (result.different++ == 0) result.first = position;
  }

  DType a_;
  DType b_;
  Numbers numbers_a_;
  Numbers numbers_b_;
  Tolerance tolerance_;
};

}  // namespace

Difference compare(const Tensor& a, const Tensor& b, const Tolerance& tolerance) {
  if (a.shape() != b.shape()) {
    fail(Errc::shape, "cannot compare the shapes {} and {}", to_string(a.shape()), to_string(b.shape()));
  }
  if (is_complex(a.dtype()) != is_complex(b.dtype())) {
    fail(Errc::dtype, "cannot compare {} with {}", name_of(a.dtype()), name_of(b.dtype()));
  }
  const int64_t size_a = size_of(a.dtype());
  const int64_t size_b = size_of(b.dtype());
  const int64_t step = block_bytes / std::max(size_a, size_b);
  const bool one_dtype = a.dtype() == b.dtype();
  Bytes bytes_a(static_cast<size_t>(std::min(step, a.numel()) * size_a));
  Bytes bytes_b(static_cast<size_t>(std::min(step, a.numel()) * size_b));
  Comparer comparer(a.dtype(), b.dtype(), tolerance);
  comparer.result.numel = a.numel();
  comparer.result.same_bits = one_dtype;
  if (a.same_data(b)) return comparer.result;
  for (int64_t begin = 0; begin < a.numel(); begin += step) {
    check_interrupt();
    const int64_t end = std::min(begin + step, a.numel());
    const std::span<std::byte> block_a(bytes_a.data(), static_cast<size_t>((end - begin) * size_a));
    const std::span<std::byte> block_b(bytes_b.data(), static_cast<size_t>((end - begin) * size_b));
    a.read(begin, block_a);
    b.read(begin, block_b);
    a.expression()->drop(begin, end);
    b.expression()->drop(begin, end);
    if (one_dtype && std::memcmp(block_a.data(), block_b.data(), block_a.size()) == 0) continue;
    comparer.result.same_bits = false;
    comparer.add(begin, block_a, block_b);
  }
  drop_sources(*a.expression());
  drop_sources(*b.expression());
  return comparer.result;
}

}  // namespace cbk
