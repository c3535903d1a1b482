// A partitioned variable as one lazy tensor.
#pragma once

#include <vector>

#include "host/tensor/tensor.hpp"

namespace cbk::tensorflow {

/// A box of the variable.
struct Piece {
  Shape start;
  Tensor tensor;
};

/// `pieces` must fill a tensor of `shape` without overlap, in any arrangement. Errors: `format`, naming the
/// place of a gap or of an overlap.
Tensor join_slices(const Shape& shape, DType dtype, std::vector<Piece> pieces);

}  // namespace cbk::tensorflow
