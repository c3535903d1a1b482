// Single elements of a dtype as values, and values as elements.
#pragma once

#include "host/value/value.hpp"

namespace cbk {

/// One element as a bool, int, float or complex number.
Value element_value(DType dtype, ByteView element);

/// Fails (`value`) for a number that `dtype` cannot hold: exactly for an integer dtype, without becoming
/// infinite or NaN for a floating-point one.
void check_fits(DType dtype, const Value& value);

/// A constant tensor; `fill`: a number, a bool, or none for "not initialised", which gives zeros. Errors:
/// `value`, `dtype`.
Tensor full_tensor(DType dtype, const Shape& shape, const Value& fill);

}  // namespace cbk
