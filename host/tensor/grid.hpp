// A matrix divided into a few blocks, for a picture of it: statistics of each block, in one pass.
#pragma once

#include <cstdint>
#include <vector>

#include "host/tensor/tensor.hpp"

namespace cbk {

/// Statistics of the finite elements of a block; NaN if there are none.
struct GridCell {
  double mean = 0;
  double rms = 0;  // the root of the mean square
  double min = 0;
  double max = 0;
  int64_t nan = 0;
  int64_t inf = 0;
};

struct Grid {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<GridCell> cells;  // row by row
};

/// At most `rows` times `columns` blocks of nearly one size over a tensor with two dims. The result has the
/// same bits for any number of threads. Errors: `dtype` of a complex tensor, `shape` for other dims.
Grid grid(const Tensor& matrix, int64_t rows, int64_t columns);

}  // namespace cbk
