// Arithmetic on dense elements, in place. Narrow floats are computed in float32 and rounded. Whole numbers
// are exact as long as factor and term are whole; numbers out of range become the nearest in range.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/tensor/dtype.hpp"
#include "host/tensor/kernels/losses.hpp"

namespace cbk {

/// An operation on single elements of a lazy tensor.
struct UnaryOp {
  enum class Kind { affine, replace_nan };
  Kind kind = Kind::affine;
  double a = 1;  // affine: the factor; replace_nan: the new value
  double b = 0;  // affine: the term
};

enum class BinaryOp { add, multiply };

/// Fails (`dtype`) for dtypes without arithmetic (bool, complex).
void check_arithmetic(DType dtype);

/// Results that are not finite although element, factor and term are count as overflowed; integers that had
/// to be brought to the nearest, or cut to a whole number, as changed.
Losses apply_unary(const UnaryOp& op, DType dtype, std::byte* elements, int64_t count);

/// elements[i] = elements[i] ∘ other[i].
Losses apply_binary(BinaryOp op, DType dtype, std::byte* elements, const std::byte* other, int64_t count);

}  // namespace cbk
