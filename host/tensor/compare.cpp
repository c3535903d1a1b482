#include "host/tensor/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/blocks.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/kernels/differences.hpp"
#include "host/tensor/kernels/finite.hpp"

namespace cbk {
namespace {

constexpr int64_t compared_together = 1 << 11;  // elements; several passes go over them in the first cache
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double least_sum = 1e-250;  // of squares of doubles: smaller ones may lack some that became 0

/// The dtype of the parts of a complex number.
DType part_of(DType dtype) {
  if (dtype == DType::complex64) return DType::float32;
  return dtype == DType::complex128 ? DType::float64 : dtype;
}

/// Whether float32 can represent all numbers of a dtype.
bool fits_float(DType dtype) {
  return dtype == DType::float32 || !loses(dtype, DType::float32);
}

/// The largest distances so far.
class Largest {
 public:
  explicit Largest(size_t most) : most_(most) {}

  /// Whether a later element at this distance would be kept.
  [[nodiscard]] bool wants(double distance) const {
    return distance > 0 && (items_.size() < most_ || (most_ > 0 && distance > items_.back().distance));
  }

  void add(ElementDifference item) {
    if (!wants(item.distance)) return;
    if (items_.size() == most_) items_.pop_back();
    const auto place =
        std::upper_bound(items_.begin(), items_.end(), item,
                         [](const auto& one, const auto& other) { return one.distance > other.distance; });
    items_.insert(place, item);
  }

  [[nodiscard]] const std::vector<ElementDifference>& items() const { return items_; }

 private:
  size_t most_;
  std::vector<ElementDifference> items_;
};

/// The result for a run of elements. Runs are joined in order.
struct DifferenceOfPart {
  explicit DifferenceOfPart(size_t most) : largest(most) {}

  void join(const DifferenceOfPart& later) {
    if (first < 0) first = later.first;
    different += later.different;
    max_absolute = std::max(max_absolute, later.max_absolute);
    max_relative = std::max(max_relative, later.max_relative);
    nan_a += later.nan_a;
    nan_b += later.nan_b;
    infinite += later.infinite;
    same_bits = same_bits && later.same_bits;
    sums += later.sums;
    for (const ElementDifference& item : later.largest.items()) largest.add(item);
  }

  int64_t different = 0;
  int64_t first = -1;
  Number max_absolute = 0.0;
  double max_relative = 0;
  int64_t nan_a = 0;
  int64_t nan_b = 0;
  int64_t infinite = 0;
  bool same_bits = true;
  PairSums sums;  // while same_bits, not yet computed
  Largest largest;
};

/// Compares runs of elements of two dtypes.
class Comparer {
 public:
  Comparer(DType a, DType b, const Tolerance& tolerance, size_t most)
      : a_(a),
        b_(b),
        whole_a_(is_whole(a)),
        whole_b_(is_whole(b)),
        plain_(!whole_a_ && !whole_b_ && !is_complex(a)),
        single_(fits_float(a) && fits_float(b)),
        tolerance_(tolerance),
        found_(most) {
    if (whole_a_ && whole_b_) found_.max_absolute = Wide{0};
  }

  void add(int64_t begin, ByteView a, ByteView b) {
    const auto count = static_cast<int64_t>(a.size() / size_of(a_));
    for (int64_t at = 0; at < count; at += compared_together) {
      const int64_t size = std::min(compared_together, count - at);
      add_chunk(begin + at, size, a.data() + at * size_of(a_), b.data() + at * size_of(b_));
    }
  }

  [[nodiscard]] DifferenceOfPart& found() { return found_; }

 private:
  void add_chunk(int64_t begin, int64_t count, const std::byte* a, const std::byte* b) {
    if (plain_) {
      const bool is_done =
          single_ ? add_finite<float>(begin, count, a, b) : add_finite<double>(begin, count, a, b);
      if (is_done) return;
    }
    const int64_t numbers = is_complex(a_) ? 2 * count : count;
    const auto* x = converted<double>(a_, a, numbers, 0);
    const auto* y = converted<double>(b_, b, numbers, 1);
    for (int64_t i = 0; i < count; ++i) {
      if (is_complex(a_)) {
        add_complex(begin + i, x + 2 * i, y + 2 * i);
      } else if (whole_a_ && whole_b_) {
        add_whole(begin + i, whole_at(a_, a + i * size_of(a_)), whole_at(b_, b + i * size_of(b_)));
      } else {
        add_sums(x[i], y[i]);
        if (whole_a_ || whole_b_) {
          add_mixed(begin + i, a + i * size_of(a_), b + i * size_of(b_), x[i], y[i]);
        } else if (!agree(x[i], y[i])) {
          note(begin + i, std::abs(x[i] - y[i]), std::abs(x[i]), std::abs(y[i]));
        }
      }
    }
  }

  /// The elements as numbers for computation; those of another dtype are converted into room `place`.
  template <typename T>
  const T* converted(DType from, const std::byte* raw, int64_t count, size_t place) {
    constexpr DType to = sizeof(T) == 4 ? DType::float32 : DType::float64;
    if (part_of(from) == to) return reinterpret_cast<const T*>(raw);
    auto* out = reinterpret_cast<std::byte*>(room_[place]);
    cast_elements(part_of(from), raw, to, out, count);
    return reinterpret_cast<const T*>(out);
  }

  /// False if a number or its square is not finite.
  template <typename T>
  bool add_finite(int64_t begin, int64_t count, const std::byte* a, const std::byte* b) {
    const T* x = converted<T>(a_, a, count, 0);
    const T* y = converted<T>(b_, b, count, 1);
    const auto size = static_cast<size_t>(count);
    auto [sums, distances] =
        compare_pairs(x, y, size, {tolerance_.absolute, tolerance_.relative, found_.max_relative});
    if (!std::isfinite(sums.xx + sums.yy + sums.dd)) return false;
    const bool may_vanish = sizeof(T) > 4 && (sums.xx < least_sum || sums.yy < least_sum ||
                                              (sums.dd < least_sum && distances.max_absolute > 0));
    if (may_vanish) {
      sums = {};
      for (size_t i = 0; i < size; ++i) sums.add(x[i], y[i]);
    }
    found_.sums += sums;
    found_.max_absolute = std::max(found_.max_absolute, Number(distances.max_absolute));
    if (distances.may_exceed) {
      found_.max_relative = std::max(found_.max_relative, max_relative_of_pairs(x, y, size));
    }
    const auto distance = [&](int64_t i) {
      return std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    };
    for (int64_t i = 0; distances.different > 0 && found_.first < 0 && i < count; ++i) {
      if (distance(i) > allowed(std::fabs(static_cast<double>(y[i])))) found_.first = begin + i;
    }
    for (int64_t i = 0; found_.largest.wants(distances.max_absolute) && i < count; ++i) {
      if (found_.largest.wants(distance(i))) found_.largest.add({begin + i, distance(i)});
    }
    found_.different += static_cast<int64_t>(distances.different);
    return true;
  }

  static bool agree(double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); }

  void add_sums(double x, double y) {
    if (std::isfinite(x) && std::isfinite(y)) found_.sums.add(x, y);
  }

  void add_complex(int64_t position, const double* x, const double* y) {
    add_sums(x[0], y[0]);
    add_sums(x[1], y[1]);
    if (agree(x[0], y[0]) && agree(x[1], y[1])) return;
    note(position, std::hypot(x[0] - y[0], x[1] - y[1]), std::hypot(x[0], x[1]), std::hypot(y[0], y[1]));
  }

  /// A long double holds all whole numbers.
  void add_whole(int64_t position, Wide x, Wide y) {
    found_.sums.add(static_cast<long double>(x), static_cast<long double>(y));
    if (x == y) return;
    note(position, x > y ? x - y : y - x, std::abs(static_cast<double>(x)), std::abs(static_cast<double>(y)));
  }

  /// One of the two is an integer.
  void add_mixed(int64_t position, const std::byte* a, const std::byte* b, double x, double y) {
    const double distance =
        whole_a_ ? distance_between(whole_at(a_, a), y) : distance_between(whole_at(b_, b), x);
    if (distance != 0) note(position, distance, std::abs(x), std::abs(y));
  }

  /// Exact if it is small, also beyond 2^53.
  static double distance_between(Wide whole, double real) {
    if (std::trunc(real) != real || std::abs(real) > 0x1p65)
      return std::abs(static_cast<double>(whole) - real);
    const Wide other = static_cast<Wide>(real);
    return static_cast<double>(whole > other ? whole - other : other - whole);
  }

  /// An infinite size would make every distance acceptable.
  [[nodiscard]] double allowed(double size_b) const {
    return tolerance_.absolute + (std::isinf(size_b) ? 0 : tolerance_.relative * size_b);
  }

  void note(int64_t position, Number exact, double size_a, double size_b) {
    double distance = std::visit([](auto number) { return static_cast<double>(number); }, exact);
    found_.nan_a += std::isnan(size_a) && !std::isnan(size_b) ? 1 : 0;
    found_.nan_b += std::isnan(size_b) && !std::isnan(size_a) ? 1 : 0;
    found_.infinite += std::isinf(distance) ? 1 : 0;
    if (std::isnan(distance)) exact = distance = infinity;
    const double larger = std::max(size_a, size_b);
    found_.max_absolute = std::max(found_.max_absolute, exact);
    found_.max_relative = std::max(found_.max_relative, std::isinf(distance) ? infinity : distance / larger);
    found_.largest.add({position, distance});
    if (distance <= allowed(size_b) && !std::isinf(distance)) return;
    if (found_.different++ == 0) found_.first = position;
  }

  DType a_;
  DType b_;
  bool whole_a_;
  bool whole_b_;
  bool plain_;   // neither whole nor complex
  bool single_;  // float32 has all numbers of both
  Tolerance tolerance_;
  DifferenceOfPart found_;
  double room_[2][2 * compared_together];
};

void check_pair(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) {
    fail(Errc::shape, "cannot compare the shapes {} and {}", to_string(a.shape()), to_string(b.shape()));
  }
  if (is_complex(a.dtype()) != is_complex(b.dtype())) {
    fail(Errc::dtype, "cannot compare {} with {}", name_of(a.dtype()), name_of(b.dtype()));
  }
}

/// One pass over a pair of tensors.
class Comparison {
 public:
  Comparison(const Tensor& a, const Tensor& b, const Tolerance& tolerance, size_t most)
      : a_(a), b_(b), tolerance_(tolerance), most_(most), blocks_({&a, &b}) {}

  DifferenceOfPart run() {
    std::vector<DifferenceOfPart> parts(static_cast<size_t>(blocks_.parts()), DifferenceOfPart(most_));
    parallel_for(blocks_.parts(),
                 [&](int64_t part) { parts[static_cast<size_t>(part)] = compare_part(part); });
    const bool is_same =
        std::all_of(parts.begin(), parts.end(), [](const DifferenceOfPart& part) { return part.same_bits; });
    if (!is_same) add_sums_of_equal(parts);
    DifferenceOfPart out = std::move(parts.front());
    for (size_t i = 1; i < parts.size(); ++i) out.join(parts[i]);
    return out;
  }

 private:
  /// Calls `visit(begin, bytes of a, bytes of b)` with the blocks of a part.
  template <typename Visit>
  void each_block(int64_t part, Visit&& visit) {
    const int64_t size_a = size_of(a_.dtype());
    const int64_t size_b = size_of(b_.dtype());
    Scratch room_a(static_cast<size_t>(blocks_.block() * size_a));
    Scratch room_b(static_cast<size_t>(blocks_.block() * size_b));
    blocks_.each(part, [&](int64_t begin, int64_t end) {
      check_interrupt();
      const auto block_a = room_a.bytes().first(static_cast<size_t>((end - begin) * size_a));
      const auto block_b = room_b.bytes().first(static_cast<size_t>((end - begin) * size_b));
      a_.read(begin, block_a);
      b_.read(begin, block_b);
      a_.expression()->drop(begin, end);
      b_.expression()->drop(begin, end);
      visit(begin, ByteView(block_a), ByteView(block_b));
    });
  }

  DifferenceOfPart compare_part(int64_t part) {
    Comparer comparer(a_.dtype(), b_.dtype(), tolerance_, most_);
    DifferenceOfPart& found = comparer.found();
    const bool one_dtype = a_.dtype() == b_.dtype();
    long double equal_squares = 0;
    each_block(part, [&](int64_t begin, ByteView block_a, ByteView block_b) {
      if (one_dtype && std::memcmp(block_a.data(), block_b.data(), block_a.size()) == 0) {
        if (!found.same_bits) equal_squares += squares_of(block_a);
        return;
      }
      // Blocks before the first difference are read again: most tensors that differ do so at once.
      if (found.same_bits) equal_squares += squares_before(part, begin);
      found.same_bits = false;
      comparer.add(begin, block_a, block_b);
    });
    found.sums += {equal_squares, equal_squares, equal_squares, 0};
    return std::move(found);
  }

  /// Parts without a difference were only compared byte by byte.
  void add_sums_of_equal(std::vector<DifferenceOfPart>& parts) {
    parallel_for(blocks_.parts(), [&](int64_t part) {
      DifferenceOfPart& found = parts[static_cast<size_t>(part)];
      if (!found.same_bits) return;
      const long double squares = squares_before(part, a_.numel());
      found.sums = {squares, squares, squares, 0};
      found.same_bits = false;
    });
  }

  /// Of the elements of `part` before `end`.
  long double squares_before(int64_t part, int64_t end) {
    const int64_t itemsize = size_of(a_.dtype());
    Scratch room(static_cast<size_t>(blocks_.block() * itemsize));
    long double out = 0;
    blocks_.each(part, [&](int64_t begin, int64_t block_end) {
      if (begin >= end) return;
      const auto block = room.bytes().first(static_cast<size_t>((block_end - begin) * itemsize));
      a_.read(begin, block);
      out += squares_of(block);
    });
    return out;
  }

  [[nodiscard]] long double squares_of(ByteView block) const {
    const DType dtype = part_of(a_.dtype());
    const auto count = static_cast<int64_t>(block.size() / size_of(dtype));
    double numbers[compared_together];
    long double out = 0;
    for (int64_t at = 0; at < count; at += compared_together) {
      const int64_t size = std::min(compared_together, count - at);
      cast_elements(dtype, block.data() + at * size_of(dtype), DType::float64,
                    reinterpret_cast<std::byte*>(numbers), size);
      if (first_not_finite(DType::float64, reinterpret_cast<std::byte*>(numbers), size) >= 0) {
        std::replace_if(
            numbers, numbers + size, [](double number) { return !std::isfinite(number); }, 0.0);
      }
      const double sum = sum_of_squares(numbers, static_cast<size_t>(size));
      const bool is_outside = dtype == DType::float64 && !(sum >= least_sum && std::isfinite(sum));
      for (int64_t i = 0; is_outside && i < size; ++i)
        out += static_cast<long double>(numbers[i]) * numbers[i];
      if (!is_outside) out += sum;
    }
    return out;
  }

  const Tensor& a_;
  const Tensor& b_;
  Tolerance tolerance_;
  size_t most_;
  Blocks blocks_;
};

}  // namespace

Difference compare(const Tensor& a, const Tensor& b, const Tolerance& tolerance, size_t most) {
  check_pair(a, b);
  Difference out;
  out.numel = a.numel();
  out.same_bits = a.dtype() == b.dtype();
  if (is_whole(a.dtype()) && is_whole(b.dtype())) out.max_absolute = Wide{0};
  if (a.same_data(b) || a.numel() == 0) return out;
  DifferenceOfPart found = Comparison(a, b, tolerance, most).run();
  verify_read(*a.expression());
  verify_read(*b.expression());
  drop_sources(*a.expression());
  drop_sources(*b.expression());
  out.different = found.different;
  out.first = found.first;
  out.max_absolute = found.max_absolute;
  out.max_relative = found.max_relative;
  out.nan_a = found.nan_a;
  out.nan_b = found.nan_b;
  out.infinite = found.infinite;
  out.same_bits = out.same_bits && found.same_bits;
  out.largest = found.largest.items();
  if (found.same_bits) return out;
  const PairSums& sums = found.sums;
  out.relative_norm = static_cast<double>(sums.dd == 0 ? 0 : std::sqrt(sums.dd / sums.yy));
  if (sums.xx > 0 && sums.yy > 0) {
    const long double cosine = sums.xy / (std::sqrt(sums.xx) * std::sqrt(sums.yy));
    out.cosine = static_cast<double>(std::clamp(cosine, -1.0L, 1.0L));
  }
  return out;
}

}  // namespace cbk
