// Single elements of a dtype as values, and values as elements.
#pragma once

#include "host/value/value.hpp"

namespace cbk {

/// One element as a bool, int, float or complex number.
Value element_value(DType dtype, ByteView element);

/// A `value` error for a number that `dtype` does not hold: one of an integer dtype exactly, one of a
/// floating dtype without becoming infinite or NaN.
void check_fits(DType dtype, const Value& value);

/// A constant tensor; `fill`: a number, a bool, or none for "not initialised", which gives zeros. Errors:
/// `value`, `dtype`.
Tensor full_tensor(DType dtype, const Shape& shape, const Value& fill);

}  // namespace cbk
