#include "host/tensor/kernels/matmul.hpp"

#include <algorithm>

namespace cbk {
namespace {

/// Row by row: the row of sums stays in the first-level cache.
template <typename T>
void accumulate(const T* a, const T* b, T* out, int64_t rows, int64_t depth, int64_t columns) {
  constexpr int64_t width = 1024;
  for (int64_t column = 0; column < columns; column += width) {
    const int64_t count = std::min(width, columns - column);
    for (int64_t row = 0; row < rows; ++row) {
      T* sums = out + row * columns + column;
      for (int64_t k = 0; k < depth; ++k) {
        const T factor = a[row * depth + k];
        const T* line = b + k * columns + column;
        for (int64_t j = 0; j < count; ++j) sums[j] += factor * line[j];
      }
    }
  }
}

}  // namespace

void accumulate_matmul(DType dtype, const std::byte* a, const std::byte* b, std::byte* out, int64_t rows,
                       int64_t depth, int64_t columns) {
  if (dtype == DType::float64) {
    accumulate(reinterpret_cast<const double*>(a), reinterpret_cast<const double*>(b),
               reinterpret_cast<double*>(out), rows, depth, columns);
  } else {
    accumulate(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b),
               reinterpret_cast<float*>(out), rows, depth, columns);
  }
}

}  // namespace cbk
