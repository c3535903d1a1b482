// Reading and writing ranges of strided views.
#pragma once

#include <vector>

#include "host/compute/kernel.hpp"

namespace cbk::compute {

/// The same elements in the same order with as few dimensions as possible for all views together; all have
/// one shape.
void collapse(std::vector<Operand>& views);

/// Elements [begin, begin + count) of the view's C order to `out`, densely; and back.
void gather(const Operand& view, int64_t begin, int64_t count, std::byte* out);
void scatter(const Operand& view, int64_t begin, int64_t count, const std::byte* from);

/// Contiguous strides, for a new buffer.
Operand whole(BufferPtr buffer, DType dtype, Shape shape);

/// The view with extents of one repeated to `shape`: their strides become 0. Errors: `shape`.
Operand expanded(const Operand& view, const Shape& shape);

/// PyTorch's broadcast of shapes; a `shape` error names both.
Shape broadcast(const Shape& a, const Shape& b);

}  // namespace cbk::compute
