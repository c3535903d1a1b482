#include "host/tensor/kernels/elementwise.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "host/base/error.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk {
namespace {

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
  const DType compute = compute_type(dtype);
  if (compute == DType::float32) {
    apply_binary_as<float>(op, dtype, compute, elements, other, count);
  } else {
    apply_binary_as<double>(op, dtype, compute, elements, other, count);
  }
}

}  // namespace cbk
