#include "host/tensor/kernels/elementwise.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "host/base/error.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk {
namespace {

// --- whole numbers

/// Holds any sum of two 64-bit integers, and the product of one with a factor below 2^53.
__extension__ using Wide = __int128;

template <typename T>
T nearest(Wide value) {
  using Limits = std::numeric_limits<T>;
  return static_cast<T>(std::clamp(value, Wide{Limits::min()}, Wide{Limits::max()}));
}

/// The largest product that overflows is that of two uint64, which no dtype holds.
Wide product(Wide a, Wide b) {
  Wide result = 0;
  return __builtin_mul_overflow(a, b, &result) ? Wide{std::numeric_limits<uint64_t>::max()} : result;
}

/// element = compute(element, index), exact; what the dtype cannot hold becomes the nearest that it can.
template <typename T, typename Compute>
void integer_loop(std::byte* elements, int64_t count, Compute&& compute) {
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    T number;
    std::memcpy(&number, elements + i * sizeof number, sizeof number);
    number = nearest<T>(compute(Wide{number}, i));
    std::memcpy(elements + i * sizeof number, &number, sizeof number);
  }
}

/// Calls `body` with the C++ type that an integer dtype is stored as; false for other dtypes.
template <typename Body>
bool with_integer(DType dtype, Body&& body) {
  const auto is = [&]<typename T>(DType one, std::type_identity<T> type) {
    if (dtype == one) body(type);
    return dtype == one;
  };
  return is(DType::uint8, std::type_identity<uint8_t>{}) || is(DType::int8, std::type_identity<int8_t>{}) ||
         is(DType::uint16, std::type_identity<uint16_t>{}) ||
         is(DType::int16, std::type_identity<int16_t>{}) ||
         is(DType::uint32, std::type_identity<uint32_t>{}) ||
         is(DType::int32, std::type_identity<int32_t>{}) ||
         is(DType::uint64, std::type_identity<uint64_t>{}) || is(DType::int64, std::type_identity<int64_t>{});
}

/// A whole number that a double holds exactly.
bool is_whole(double number) {
  constexpr double exact_limit = 9007199254740992.0;  // 2^53
  return std::abs(number) <= exact_limit && std::trunc(number) == number;
}

bool apply_whole(const ElementOp& op, DType dtype, std::byte* elements, int64_t count) {
  if (op.kind != ElementOp::Kind::affine || !is_whole(op.a) || !is_whole(op.b)) return false;
  const auto a = static_cast<Wide>(op.a);
  const auto b = static_cast<Wide>(op.b);
  return with_integer(dtype, [&]<typename T>(std::type_identity<T>) {
    integer_loop<T>(elements, count, [&](Wide number, size_t) { return number * a + b; });
  });
}

bool apply_whole(BinaryOp op, DType dtype, std::byte* elements, const std::byte* other, int64_t count) {
  return with_integer(dtype, [&]<typename T>(std::type_identity<T>) {
    integer_loop<T>(elements, count, [&](Wide number, size_t i) {
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

/// Runs `body(numbers, first, count)` on elements converted to the compute type, and stores them back.
template <typename T, typename Body>
void for_each_converted(DType dtype, DType compute, std::byte* elements, int64_t count, Body&& body) {
  std::array<T, chunk> numbers;
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t length = std::min(chunk, count - first);
    std::byte* part = elements + static_cast<size_t>(first) * size_of(dtype);
    cast_elements(dtype, part, compute, reinterpret_cast<std::byte*>(numbers.data()), length);
    body(numbers.data(), first, length);
    cast_elements(compute, reinterpret_cast<const std::byte*>(numbers.data()), dtype, part, length);
  }
}

template <typename T>
void element_loop(const ElementOp& op, T* numbers, int64_t count) {
  const auto a = static_cast<T>(op.a);
  const auto b = static_cast<T>(op.b);
  if (op.kind == ElementOp::Kind::replace_nan) {
    for (int64_t i = 0; i < count; ++i) numbers[i] = std::isnan(numbers[i]) ? a : numbers[i];
  } else if (op.b == 0) {
    for (int64_t i = 0; i < count; ++i) numbers[i] *= a;
  } else {
    for (int64_t i = 0; i < count; ++i) numbers[i] = numbers[i] * a + b;
  }
}

template <typename T>
void binary_loop(BinaryOp op, T* numbers, const T* other, int64_t count) {
  if (op == BinaryOp::add) {
    for (int64_t i = 0; i < count; ++i) numbers[i] += other[i];
  } else {
    for (int64_t i = 0; i < count; ++i) numbers[i] *= other[i];
  }
}

template <typename T>
void apply_binary_as(BinaryOp op, DType dtype, DType compute, std::byte* elements, const std::byte* other,
                     int64_t count) {
  std::array<T, chunk> right;
  for_each_converted<T>(dtype, compute, elements, count, [&](T* numbers, int64_t first, int64_t length) {
    cast_elements(dtype, other + static_cast<size_t>(first) * size_of(dtype), compute,
                  reinterpret_cast<std::byte*>(right.data()), length);
    binary_loop(op, numbers, right.data(), length);
  });
}

}  // namespace

void check_arithmetic(DType dtype) {
  if (dtype == DType::boolean || is_complex(dtype))
    fail(Errc::dtype, "cannot compute with {} tensors; cast them first", name_of(dtype));
}

void apply_elementwise(const ElementOp& op, DType dtype, std::byte* elements, int64_t count) {
  if (apply_whole(op, dtype, elements, count)) return;
  const DType compute = compute_type(dtype);
  if (compute == DType::float32) {
    for_each_converted<float>(dtype, compute, elements, count, [&](float* numbers, int64_t, int64_t length) {
      element_loop(op, numbers, length);
    });
  } else {
    for_each_converted<double>(
        dtype, compute, elements, count,
        [&](double* numbers, int64_t, int64_t length) { element_loop(op, numbers, length); });
  }
}

void apply_binary(BinaryOp op, DType dtype, std::byte* elements, const std::byte* other, int64_t count) {
  if (apply_whole(op, dtype, elements, other, count)) return;
  const DType compute = compute_type(dtype);
  if (compute == DType::float32) {
    apply_binary_as<float>(op, dtype, compute, elements, other, count);
  } else {
    apply_binary_as<double>(op, dtype, compute, elements, other, count);
  }
}

}  // namespace cbk
