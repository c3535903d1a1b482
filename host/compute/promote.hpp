// The result dtype of operands with different dtypes, as in PyTorch.
#pragma once

#include <initializer_list>

#include "host/compute/operators.hpp"

namespace cbk::compute {

/// Floats win over integers, and these over bool. Within a kind the wider one wins, and tensors with
/// dimensions win over those without. Numbers take the kind of the tensors, but a fraction, or a number that
/// int64 cannot hold, makes integers float32.
/// float16 with bfloat16 is float32.
DType result_dtype(std::initializer_list<const Input*> operands);

/// Error: `value` for NaN and numbers outside the range of an integer dtype. Fractions are cut off, as in
/// PyTorch.
void check_reach(DType dtype, double number);

/// The dtype of computation: float32 for narrow floats and bool, float64, or int64 for integers.
DType compute_type(DType dtype);

}  // namespace cbk::compute
