#include "host/tensor/kernels/elementwise.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "host/base/clones.hpp"
#include "host/base/error.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/number.hpp"

namespace cbk {
namespace {

// --- whole numbers

template <typename T>
T nearest(Wide value) {
  using Limits = std::numeric_limits<T>;
  return static_cast<T>(std::clamp(value, Wide{Limits::min()}, Wide{Limits::max()}));
}

/// The product of two uint64 may overflow: then the result is any number that no dtype can hold.
Wide product(Wide a, Wide b) {
  Wide result = 0;
  return __builtin_mul_overflow(a, b, &result) ? Wide{1} << 126 : result;
}

/// element = compute(element, index), exact; numbers out of range become the nearest in range.
template <typename T, typename Compute>
Losses integer_loop(std::byte* elements, int64_t count, Compute&& compute) {
  Losses lost;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    T number;
    std::memcpy(&number, elements + i * sizeof number, sizeof number);
    const Wide exact = compute(Wide{number}, i);
    number = nearest<T>(exact);
    lost.changed += static_cast<int64_t>(exact != number);
    std::memcpy(elements + i * sizeof number, &number, sizeof number);
  }
  return lost;
}

/// The result of `body` for the C++ type of an integer dtype; nothing for other dtypes.
template <typename Body>
std::optional<Losses> with_integer(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::uint8:
      return body(std::type_identity<uint8_t>{});
    case DType::int8:
      return body(std::type_identity<int8_t>{});
    case DType::uint16:
      return body(std::type_identity<uint16_t>{});
    case DType::int16:
      return body(std::type_identity<int16_t>{});
    case DType::uint32:
      return body(std::type_identity<uint32_t>{});
    case DType::int32:
      return body(std::type_identity<int32_t>{});
    case DType::uint64:
      return body(std::type_identity<uint64_t>{});
    case DType::int64:
      return body(std::type_identity<int64_t>{});
    default:
      return std::nullopt;
  }
}

/// A whole number that a double holds exactly.
bool is_whole_number(double number) {
  constexpr double exact_limit = 9007199254740992.0;  // 2^53
  return std::abs(number) <= exact_limit && std::trunc(number) == number;
}

std::optional<Losses> apply_whole(const UnaryOp& op, DType dtype, std::byte* elements, int64_t count) {
  if (op.kind != UnaryOp::Kind::affine || !is_whole_number(op.a) || !is_whole_number(op.b))
    return std::nullopt;
  const auto a = static_cast<Wide>(op.a);
  const auto b = static_cast<Wide>(op.b);
  return with_integer(dtype, [&]<typename T>(std::type_identity<T>) {
    return integer_loop<T>(elements, count, [&](Wide number, size_t) { return number * a + b; });
  });
}

std::optional<Losses> apply_whole(BinaryOp op, DType dtype, std::byte* elements, const std::byte* other,
                                  int64_t count) {
  return with_integer(dtype, [&]<typename T>(std::type_identity<T>) {
    return integer_loop<T>(elements, count, [&](Wide number, size_t i) {
      T right;
      std::memcpy(&right, other + i * sizeof right, sizeof right);
      return op == BinaryOp::add ? number + right : product(number, right);
    });
  });
}

// --- floating point

/// The type an element is computed in: float64 for itself and for integers, else float32.
DType compute_type(DType dtype) {
  return is_floating(dtype) && dtype != DType::float64 ? DType::float32 : DType::float64;
}

constexpr int64_t chunk = 1024;

template <typename T>
bool is_finite(T number) {
  using Bits = std::conditional_t<std::is_same_v<T, float>, uint32_t, uint64_t>;
  constexpr Bits exponent = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  return (std::bit_cast<Bits>(number) & exponent) != exponent;
}

/// Whether elements are numbers of the compute type as they lie in memory.
template <typename T>
bool is_number(DType dtype, DType compute, const std::byte* elements) {
  return dtype == compute && reinterpret_cast<uintptr_t>(elements) % alignof(T) == 0;
}

/// Runs `body(numbers, first, count)` on elements converted to the compute type, and stores them back. `body`
/// returns how many results are not finite although their inputs are.
template <typename T, typename Body>
Losses for_each_converted(DType dtype, DType compute, std::byte* elements, int64_t count, Body&& body) {
  std::array<T, chunk> room;
  Losses lost;
  const bool in_place = is_number<T>(dtype, compute, elements);
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t length = std::min(chunk, count - first);
    std::byte* part = elements + static_cast<size_t>(first) * size_of(dtype);
    T* numbers = in_place ? reinterpret_cast<T*>(part) : room.data();
    auto* converted = reinterpret_cast<std::byte*>(room.data());
    if (!in_place) cast_elements(dtype, part, compute, converted, length);
    lost.overflowed += body(numbers, first, length);
    if (!in_place) lost += cast_elements(compute, converted, dtype, part, length);
  }
  return lost;
}

template <typename T>
inline __attribute__((always_inline)) void replace(T& number, T result, uint32_t was_finite,
                                                   uint32_t& overflowed) {
  overflowed += was_finite & uint32_t{!is_finite(result)};
  number = result;
}

/// Numbers times `a`. Returns how many finite ones overflow.
template <typename T>
inline __attribute__((always_inline)) uint32_t scale(T* numbers, T a, int64_t count) {
  uint32_t overflowed = 0;
  for (int64_t i = 0; i < count; ++i)
    replace(numbers[i], numbers[i] * a, uint32_t{is_finite(numbers[i])}, overflowed);
  return overflowed;
}
CBK_CLONES uint32_t scale_loop(float* numbers, float a, int64_t count) {
  return scale(numbers, a, count);
}
uint32_t scale_loop(double* numbers, double a, int64_t count) {
  return scale(numbers, a, count);
}

template <typename T>
int64_t element_loop(const UnaryOp& op, T* numbers, int64_t count) {
  const auto a = static_cast<T>(op.a);
  const auto b = static_cast<T>(op.b);
  if (op.kind == UnaryOp::Kind::replace_nan) {
    for (int64_t i = 0; i < count; ++i) numbers[i] = std::isnan(numbers[i]) ? a : numbers[i];
    return 0;
  }
  uint32_t overflowed = 0;
  if (op.b == 0) {
    overflowed = scale_loop(numbers, a, count);
  } else {
    for (int64_t i = 0; i < count; ++i)
      replace(numbers[i], numbers[i] * a + b, uint32_t{is_finite(numbers[i])}, overflowed);
  }
  return std::isfinite(op.a) && std::isfinite(op.b) ? overflowed : 0;
}

template <typename T>
inline __attribute__((always_inline)) uint32_t binary(BinaryOp op, T* numbers, const T* other,
                                                      int64_t count) {
  uint32_t overflowed = 0;
  const auto each = [&](auto&& compute) __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t were_finite = uint32_t{is_finite(numbers[i])} & uint32_t{is_finite(other[i])};
      replace(numbers[i], compute(numbers[i], other[i]), were_finite, overflowed);
    }
  };
  if (op == BinaryOp::add) {
    each([](T a, T b) { return a + b; });
  } else {
    each([](T a, T b) { return a * b; });
  }
  return overflowed;
}
CBK_CLONES uint32_t binary_loop(BinaryOp op, float* numbers, const float* other, int64_t count) {
  return binary(op, numbers, other, count);
}
uint32_t binary_loop(BinaryOp op, double* numbers, const double* other, int64_t count) {
  return binary(op, numbers, other, count);
}

template <typename T>
Losses apply_binary_as(BinaryOp op, DType dtype, DType compute, std::byte* elements, const std::byte* other,
                       int64_t count) {
  std::array<T, chunk> room;
  const bool is_plain = is_number<T>(dtype, compute, other);
  return for_each_converted<T>(
      dtype, compute, elements, count, [&](T* numbers, int64_t first, int64_t length) {
        if (is_plain) return binary_loop(op, numbers, reinterpret_cast<const T*>(other) + first, length);
        cast_elements(dtype, other + static_cast<size_t>(first) * size_of(dtype), compute,
                      reinterpret_cast<std::byte*>(room.data()), length);
        return binary_loop(op, numbers, room.data(), length);
      });
}

}  // namespace

void check_arithmetic(DType dtype) {
  if (dtype == DType::boolean || is_complex(dtype))
    fail(Errc::dtype, "cannot compute with {} tensors; cast them first", name_of(dtype));
}

Losses apply_unary(const UnaryOp& op, DType dtype, std::byte* elements, int64_t count) {
  if (const auto lost = apply_whole(op, dtype, elements, count)) return *lost;
  const DType compute = compute_type(dtype);
  if (compute == DType::float32) {
    return for_each_converted<float>(
        dtype, compute, elements, count,
        [&](float* numbers, int64_t, int64_t length) { return element_loop(op, numbers, length); });
  }
  return for_each_converted<double>(
      dtype, compute, elements, count,
      [&](double* numbers, int64_t, int64_t length) { return element_loop(op, numbers, length); });
}

Losses apply_binary(BinaryOp op, DType dtype, std::byte* elements, const std::byte* other, int64_t count) {
  if (const auto lost = apply_whole(op, dtype, elements, other, count)) return *lost;
  const DType compute = compute_type(dtype);
  if (compute == DType::float32) return apply_binary_as<float>(op, dtype, compute, elements, other, count);
  return apply_binary_as<double>(op, dtype, compute, elements, other, count);
}

}  // namespace cbk
