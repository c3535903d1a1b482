// Compiled once for each instruction set (Highway's foreach_target).
#include "host/tensor/kernels/row_sums.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "host/tensor/kernels/cast.hpp"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/tensor/kernels/row_sums.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cbk::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;

/// Sums of one vector of numbers in each round.
struct Lane {
  V sum, squares, largest;
};

HWY_INLINE Lane empty_lane() {
  const V zero = hn::Zero(F());
  return {zero, zero, zero};
}

HWY_INLINE void add_to(Lane& lane, V v) {
  lane.sum = hn::Add(lane.sum, v);
  lane.squares = hn::MulAdd(v, v, lane.squares);
  lane.largest = hn::Max(lane.largest, hn::Abs(v));
}

double total(V vector) {
  const F f;
  HWY_ALIGN float numbers[hn::MaxLanes(F{})];
  hn::Store(vector, f, numbers);
  double out = 0;
  for (size_t i = 0; i < hn::Lanes(f); ++i) out += static_cast<double>(numbers[i]);
  return out;
}

/// Adds two vectors of numbers of a format.
struct Floats {
  static HWY_INLINE void add(const float* x, Lane& a, Lane& b) {
    const F f;
    add_to(a, hn::LoadU(f, x));
    add_to(b, hn::LoadU(f, x + hn::Lanes(f)));
  }
};

struct Halves {
  static HWY_INLINE void add(const hwy::float16_t* x, Lane& a, Lane& b) {
    const F f;
    const hn::Rebind<hwy::float16_t, F> half;
    add_to(a, hn::PromoteTo(f, hn::LoadU(half, x)));
    add_to(b, hn::PromoteTo(f, hn::LoadU(half, x + hn::Lanes(f))));
  }
};

struct BrainFloats {  // the upper halves of a float32
  static HWY_INLINE void add(const uint16_t* x, Lane& a, Lane& b) {
    const F f;
    const hn::RebindToUnsigned<F> u;
    const hn::Rebind<uint16_t, F> upper;
    add_to(a, hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(u, hn::LoadU(upper, x)))));
    add_to(b, hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(u, hn::LoadU(upper, x + hn::Lanes(f))))));
  }
};

/// Sums of as many numbers as fill vectors; their number is returned as the count.
template <typename Format, typename T>
RowSums row_by_vectors(const T* x, size_t count) {
  const size_t step = 2 * hn::Lanes(F());
  Lane a = empty_lane(), b = a, c = a, d = a;
  size_t i = 0;
  for (; i + 2 * step <= count; i += 2 * step) {
    Format::add(x + i, a, b);
    Format::add(x + i + step, c, d);
  }
  for (; i + step <= count; i += step) Format::add(x + i, a, b);
  RowSums out;
  out.count = static_cast<int64_t>(i);
  out.sum = total(hn::Add(hn::Add(a.sum, b.sum), hn::Add(c.sum, d.sum)));
  out.squares = total(hn::Add(hn::Add(a.squares, b.squares), hn::Add(c.squares, d.squares)));
  const V largest = hn::Max(hn::Max(a.largest, b.largest), hn::Max(c.largest, d.largest));
  out.largest = static_cast<double>(hn::GetLane(hn::MaxOfLanes(F(), largest)));
  return out;
}

RowSums row_of_floats(const float* x, size_t count) {
  return row_by_vectors<Floats>(x, count);
}
RowSums row_of_halves(const hwy::float16_t* x, size_t count) {
  return row_by_vectors<Halves>(x, count);
}
RowSums row_of_brain_floats(const uint16_t* x, size_t count) {
  return row_by_vectors<BrainFloats>(x, count);
}

}  // namespace cbk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cbk {

HWY_EXPORT(row_of_floats);
HWY_EXPORT(row_of_halves);
HWY_EXPORT(row_of_brain_floats);

namespace {

constexpr int64_t row_piece = 1 << 12;
constexpr double least_sure_square = 1e-30;  // below it, squares in float32 may have vanished

/// Of up to `row_piece` elements.
RowSums row_in_double(DType dtype, const std::byte* elements, int64_t count) {
  std::array<double, row_piece> numbers;
  cast_elements(dtype, elements, DType::float64, reinterpret_cast<std::byte*>(numbers.data()), count);
  RowSums out;
  for (int64_t i = 0; i < count; ++i) {
    const double number = numbers[static_cast<size_t>(i)];
    if (!std::isfinite(number)) continue;
    ++out.count;
    out.sum += number;
    out.squares += number * number;
    out.largest = std::max(out.largest, std::fabs(number));
  }
  if (out.largest > 0) out.squares = std::max(out.squares, std::numeric_limits<double>::min());
  return out;
}

/// Of as many elements as fill vectors.
RowSums row_in_float(DType dtype, const std::byte* elements, size_t count) {
  switch (dtype) {
    case DType::float32:
      return HWY_DYNAMIC_DISPATCH(row_of_floats)(reinterpret_cast<const float*>(elements), count);
    case DType::float16:
      return HWY_DYNAMIC_DISPATCH(row_of_halves)(reinterpret_cast<const hwy::float16_t*>(elements), count);
    case DType::bfloat16:
      return HWY_DYNAMIC_DISPATCH(row_of_brain_floats)(reinterpret_cast<const uint16_t*>(elements), count);
    default:
      return {};
  }
}

RowSums row_piece_sums(DType dtype, const std::byte* elements, int64_t count) {
  const RowSums found = row_in_float(dtype, elements, static_cast<size_t>(count));
  const bool is_sure =
      std::isfinite(found.squares) && (found.squares > least_sure_square || found.largest == 0);
  if (!is_sure) return row_in_double(dtype, elements, count);
  RowSums out = found;
  const int64_t done = found.count;
  if (done < count) out += row_in_double(dtype, elements + done * size_of(dtype), count - done);
  return out;
}

}  // namespace

RowSums& RowSums::operator+=(const RowSums& other) {
  count += other.count;
  sum += other.sum;
  squares += other.squares;
  largest = std::max(largest, other.largest);
  return *this;
}

RowSums sums_of_row(DType dtype, const std::byte* elements, int64_t count) {
  RowSums out;
  for (int64_t first = 0; first < count; first += row_piece) {
    out += row_piece_sums(dtype, elements + first * size_of(dtype), std::min(row_piece, count - first));
  }
  return out;
}

}  // namespace cbk
#endif
