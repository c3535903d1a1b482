#include "host/tensor/kernels/row_sums.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "host/base/clones.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk {
namespace {

constexpr int64_t row_piece = 1 << 12;
constexpr size_t row_lanes = 32;             // as additions take a while
constexpr double least_sure_square = 1e-30;  // below it, squares in float32 may have vanished

inline float float_at(const float* x, size_t i) {
  return x[i];
}
inline float float_at(const uint16_t* x, size_t i) {  // bfloat16
  return std::bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
}

/// Not finite where an element is not, or where a square is too large.
template <typename T>
inline RowSums row_by_lanes(const T* x, size_t count) {
  std::array<float, row_lanes> sum{}, squares{}, largest{};
  size_t i = 0;
  for (; i + row_lanes <= count; i += row_lanes) {
    for (size_t k = 0; k < row_lanes; ++k) {
      const float number = float_at(x, i + k);
      const float size = std::fabs(number);
      sum[k] += number;
      squares[k] += number * number;
      largest[k] = size > largest[k] ? size : largest[k];
    }
  }
  for (size_t k = 0; i < count; ++i, ++k) {
    const float number = float_at(x, i);
    sum[k] += number;
    squares[k] += number * number;
    largest[k] = std::max(largest[k], std::fabs(number));
  }
  RowSums out;
  out.count = static_cast<int64_t>(count);
  for (size_t k = 0; k < row_lanes; ++k) {
    out.sum += static_cast<double>(sum[k]);
    out.squares += static_cast<double>(squares[k]);
    out.largest = std::max(out.largest, static_cast<double>(largest[k]));
  }
  return out;
}
CBK_CLONES RowSums row_in_float(const float* x, size_t count) {
  return row_by_lanes(x, count);
}
CBK_CLONES RowSums row_in_float(const uint16_t* x, size_t count) {
  return row_by_lanes(x, count);
}

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

/// Of up to `row_piece` elements.
RowSums row_piece_sums(DType dtype, const std::byte* elements, int64_t count) {
  const auto size = static_cast<size_t>(count);
  RowSums out;
  if (dtype == DType::float32) {
    out = row_in_float(reinterpret_cast<const float*>(elements), size);
  } else if (dtype == DType::bfloat16) {
    out = row_in_float(reinterpret_cast<const uint16_t*>(elements), size);
  } else if (dtype == DType::float64) {
    return row_in_double(dtype, elements, count);
  } else {
    std::array<float, row_piece> numbers;
    cast_elements(dtype, elements, DType::float32, reinterpret_cast<std::byte*>(numbers.data()), count);
    out = row_in_float(numbers.data(), size);
  }
  const bool is_sure = std::isfinite(out.squares) && (out.squares > least_sure_square || out.largest == 0);
  return is_sure ? out : row_in_double(dtype, elements, count);
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
