// torch's functions that rebuild tensors from storages.
#pragma once

#include "host/formats/pickle/calls.hpp"

namespace cbk::pickle {

/// The scheme of quantized tensors with fractional zero points.
inline constexpr std::string_view float_scheme = "torch.per_channel_affine_float_qparams";

Value rebuild_tensor(CallContext& context, const Arguments& arguments);
Value rebuild_tensor_v3(CallContext& context, const Arguments& arguments);
Value rebuild_parameter(CallContext& context, const Arguments& arguments);
Value rebuild_meta(CallContext& context, const Arguments& arguments);
Value rebuild_sparse(CallContext& context, const Arguments& arguments);

/// What torch 1.13 calls for CSR tensors, and later releases lack. Such a tensor keeps the name in its state.
inline constexpr const char* sparse_csr_function = "torch._utils._rebuild_sparse_csr_tensor";
Value rebuild_sparse_csr(CallContext& context, const Arguments& arguments);
Value rebuild_quantized(CallContext& context, const Arguments& arguments);
/// From a numpy array or a tensor, with a dtype of its own.
Value rebuild_converted(CallContext& context, const Arguments& arguments);
/// _rebuild_from_type_v2: a tensor that may carry attributes.
Value rebuild_from_type(CallContext& context, const Arguments& arguments);

/// (3, 4) as a Shape; `format` for anything but a tuple of whole numbers that are not negative.
Shape shape_of(const Value& value);

}  // namespace cbk::pickle
