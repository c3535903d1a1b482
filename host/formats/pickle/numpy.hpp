// numpy's scalars and arrays in pickles.
#pragma once

#include "host/formats/pickle/calls.hpp"

namespace cbk::pickle {

/// numpy.dtype('f4', False, True): an Object "numpy.dtype" with the code as repr, which begins with the byte
/// order once BUILD set it.
Value numpy_dtype(CallContext& context, const Arguments& arguments);
void build_numpy_dtype(Object& dtype, const Value& state);

/// numpy.float64 becomes a float, every other scalar a leaf with the role np_scalar.
Value numpy_scalar(CallContext& context, const Arguments& arguments);

/// An array without content, to be filled by `build_numpy_array`, which returns the filled one.
Value numpy_reconstruct(CallContext& context, const Arguments& arguments);
Value build_numpy_array(CallContext& context, const std::shared_ptr<TensorLeaf>& leaf, const Value& state);

/// Protocol 5's form: buffer, dtype, shape, order.
Value numpy_frombuffer(CallContext& context, const Arguments& arguments);

/// Whether the code, with or without a byte order, is for numbers.
bool is_numpy_number(std::string_view code);

/// The dtype of a code such as "<f4", "|b1", "c16".
DType dtype_of_numpy(std::string_view code);
/// The code of a dtype without byte order: "f4", "b1"; `dtype` error for dtypes that numpy lacks (bfloat16,
/// float8).
std::string numpy_code(DType dtype);

}  // namespace cbk::pickle
