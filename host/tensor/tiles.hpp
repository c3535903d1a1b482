// A tensor that is cut into boxes, as the ranks of a training run write it.
#pragma once

#include <vector>

#include "host/tensor/tensor.hpp"

namespace cbk {

/// A box of a larger tensor: elements [offsets, offsets + tensor.shape()).
struct Tile {
  Shape offsets;
  Tensor tensor;
};

/// The tensor of `shape` that the tiles fill without gap or overlap, in any order; those without elements do
/// not count. Lazy. Errors: `format`: a hole or an overlap, with its place; boxes that no straight cuts part.
Tensor joined_tiles(DType dtype, const Shape& shape, std::vector<Tile> tiles);

}  // namespace cbk
