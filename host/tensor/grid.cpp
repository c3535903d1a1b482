#include "host/tensor/grid.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "host/base/error.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk {
namespace {

constexpr int64_t cells_together = 1 << 16;  // elements that are read at once

/// The beginning of block `i` of `count` over `extent`.
int64_t begin_of(int64_t i, int64_t count, int64_t extent) {
  return extent / count * i + extent % count * i / count;  // i * extent may be too large
}

/// Sums over the elements of a block. Squares of float64 may exceed double; those of other dtypes do not.
template <typename Sum>
struct Sums {
  int64_t finite = 0;
  int64_t nan = 0;
  int64_t inf = 0;
  Sum sum = 0;
  Sum squares = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  void add(const double* numbers, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const double number = numbers[i];
      if (!std::isfinite(number)) {
        ++(std::isnan(number) ? nan : inf);
        continue;
      }
      ++finite;
      sum += number;
      squares += static_cast<Sum>(number) * number;
      min = std::min(min, number);
      max = std::max(max, number);
    }
  }

  [[nodiscard]] GridCell cell() const {
    constexpr double none = std::numeric_limits<double>::quiet_NaN();
    if (finite == 0) return {none, none, none, none, nan, inf};
    const auto count = static_cast<Sum>(finite);
    return {static_cast<double>(sum / count),
            static_cast<double>(std::sqrt(squares / count)),
            min,
            max,
            nan,
            inf};
  }
};

/// Adds elements from `begin` on of a matrix of `width` columns to the blocks of their columns.
template <typename Sum>
void add_elements(const std::vector<double>& numbers, int64_t begin, int64_t count, int64_t width,
                  std::vector<Sums<Sum>>& blocks) {
  const auto columns = static_cast<int64_t>(blocks.size());
  const int64_t end = begin + count;
  int64_t block = 0;
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / width * width;
    while (row + begin_of(block + 1, columns, width) <= at) ++block;
    const int64_t stop = std::min(end, row + begin_of(block + 1, columns, width));
    blocks[static_cast<size_t>(block)].add(numbers.data() + (at - begin), stop - at);
    if (stop == row + width) block = 0;
    at = stop;
  }
}

/// The blocks of one row of the grid: elements [begin, end) of the matrix.
template <typename Sum>
std::vector<Sums<Sum>> row_of_blocks(const Tensor& matrix, int64_t begin, int64_t end, int64_t columns) {
  const auto itemsize = static_cast<int64_t>(size_of(matrix.dtype()));
  const int64_t most = std::min(cells_together, end - begin);
  std::vector<Sums<Sum>> blocks(static_cast<size_t>(columns));
  std::vector<double> numbers(static_cast<size_t>(most));
  Scratch raw(static_cast<size_t>(most * itemsize));
  for (; begin < end; begin += cells_together) {
    check_interrupt();
    const int64_t count = std::min(cells_together, end - begin);
    matrix.read(begin, raw.bytes().first(static_cast<size_t>(count * itemsize)));
    cast_elements(matrix.dtype(), raw.data(), DType::float64, reinterpret_cast<std::byte*>(numbers.data()),
                  count);
    add_elements(numbers, begin, count, matrix.shape()[1], blocks);
  }
  return blocks;
}

template <typename Sum>
void fill_grid(const Tensor& matrix, Grid& out) {
  const int64_t height = matrix.shape()[0];
  const int64_t width = matrix.shape()[1];
  parallel_for(out.rows, [&](int64_t row) {
    const auto blocks = row_of_blocks<Sum>(matrix, begin_of(row, out.rows, height) * width,
                                           begin_of(row + 1, out.rows, height) * width, out.columns);
    for (int64_t column = 0; column < out.columns; ++column)
      out.cells[static_cast<size_t>(row * out.columns + column)] = blocks[static_cast<size_t>(column)].cell();
  });
}

}  // namespace

Grid grid(const Tensor& matrix, int64_t rows, int64_t columns) {
  if (is_complex(matrix.dtype())) {
    fail(Errc::dtype, "{} numbers have no order, so they have no picture", name_of(matrix.dtype()));
  }
  if (matrix.dim() != 2) fail(Errc::shape, "a grid expects 2 dims, got {}", to_string(matrix.shape()));
  if (matrix.numel() == 0) return {};
  Grid out{std::min(rows, matrix.shape()[0]), std::min(columns, matrix.shape()[1]), {}};
  out.cells.resize(static_cast<size_t>(out.rows * out.columns));
  if (matrix.dtype() == DType::float64) {
    fill_grid<long double>(matrix, out);
  } else {
    fill_grid<double>(matrix, out);
  }
  verify_read(*matrix.expression());
  return out;
}

}  // namespace cbk
