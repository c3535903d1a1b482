// Which dtype comes out of operands of several, as in PyTorch.
#pragma once

#include <initializer_list>

#include "host/compute/operators.hpp"

namespace cbk::compute {

/// Floats win over whole numbers, those over bool; within a kind the wider one, and tensors with dimensions
/// over those without; numbers take the kind of the tensors, but a fraction, or one that int64
/// cannot hold, makes whole numbers float32.
/// float16 with bfloat16 is float32.
DType result_dtype(std::initializer_list<const Input*> operands);

/// Error: `value` for NaN and numbers beyond a dtype of whole numbers. Fractions are cut off, as in PyTorch.
void check_reach(DType dtype, double number);

/// What is computed in: float32 for narrow floats and bool, float64, or int64 for whole numbers.
DType compute_type(DType dtype);

}  // namespace cbk::compute
