// Matrix products of dense matrices, on all threads.
#pragma once

#include <cstdint>

#include "host/tensor/dtype.hpp"

namespace cbk::compute {

/// A matrix in memory: element (i, j) is at i·stride + j, or transposed at j·stride + i.
template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t stride = 0;
  bool is_transposed = false;

  [[nodiscard]] Matrix block(int64_t row, int64_t column) const {
    return {data + (is_transposed ? column * stride + row : row * stride + column), stride, is_transposed};
  }
};

/// out = scale·(a · b), or out += scale·(a · b). a is (rows, depth), b (depth, columns); `out` is not
/// transposed. On one thread.
template <typename T>
void gemm(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& out, int64_t rows,
          int64_t columns, int64_t depth, T scale = 1, bool adds = false);

/// The same with the work cut into tiles of a fixed size, on all threads.
template <typename T>
void parallel_gemm(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& out, int64_t rows,
                   int64_t columns, int64_t depth);

}  // namespace cbk::compute
