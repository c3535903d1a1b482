// Converts dense elements from one dtype to another, as PyTorch's Tensor.to does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/tensor/dtype.hpp"
#include "host/tensor/kernels/losses.hpp"

namespace cbk {

/// `source` and `out` hold `count` elements each and do not overlap. Floats become integers by truncation
/// (out of range: the nearest end; NaN: 0), anything becomes bool by "not zero". Complex casts only to
/// complex. Bools are neither overflowed nor changed.
Losses cast_elements(DType from, const std::byte* source, DType to, std::byte* out, int64_t count);

/// Fails (`dtype`) for casts that cast_elements does not support.
void check_cast(DType from, DType to);

}  // namespace cbk
