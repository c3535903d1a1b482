#include "host/compute/gemm.hpp"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <vector>

#include "host/base/error.hpp"
#include "host/compute/parallel.hpp"
#include "host/compute/row_math.hpp"

namespace cbk::compute {
namespace {

constexpr int64_t small =
    16384;  // products of fewer multiplications are done here: a library call costs more
constexpr int64_t tile_rows = 512, tile_columns = 1024;

template <typename T>
T at(const Matrix<const T>& m, int64_t i, int64_t j) {
  return m.is_transposed ? m.data[j * m.stride + i] : m.data[i * m.stride + j];
}

/// Row by row: out[i] += a[i, k] · b[k], where rows of b are dense; a transposed b is copied first.
template <typename T>
void plain_gemm(const Matrix<const T>& a, Matrix<const T> b, const Matrix<T>& out, int64_t rows,
                int64_t columns, int64_t depth, T scale, bool adds) {
  thread_local std::vector<T> dense;
  if (b.is_transposed) {
    dense.resize(static_cast<size_t>(depth * columns));
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t k = 0; k < depth; ++k) dense[k * columns + j] = b.data[j * b.stride + k];
    }
    b = {dense.data(), columns, false};
  }
  for (int64_t i = 0; i < rows; ++i) {
    T* to = out.data + i * out.stride;
    if (!adds) std::fill_n(to, columns, T{});
    for (int64_t k = 0; k < depth; ++k) row_add(to, b.data + k * b.stride, scale * at(a, i, k), columns);
  }
}

/// oneDNN parallelises with OpenMP; here a product belongs to one of our own threads.
void use_one_thread() {
  thread_local const bool done = [] {
    omp_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

template <>
void gemm<float>(const Matrix<const float>& a, const Matrix<const float>& b, const Matrix<float>& out,
                 int64_t rows, int64_t columns, int64_t depth, float scale, bool adds) {
  if (rows * columns * depth <= small) return plain_gemm<float>(a, b, out, rows, columns, depth, scale, adds);
  use_one_thread();
  const auto status =
      dnnl_sgemm(a.is_transposed ? 'T' : 'N', b.is_transposed ? 'T' : 'N', rows, columns, depth, scale,
                 a.data, std::max<int64_t>(1, a.stride), b.data, std::max<int64_t>(1, b.stride),
                 adds ? 1.0F : 0.0F, out.data, std::max<int64_t>(1, out.stride));
  if (status != dnnl_success)
    fail(Errc::internal, "matrix product ({}, {}) x ({}, {}) failed: status {}", rows, depth, depth, columns,
         static_cast<int>(status));
}

template <>
void gemm<double>(const Matrix<const double>& a, const Matrix<const double>& b, const Matrix<double>& out,
                  int64_t rows, int64_t columns, int64_t depth, double scale, bool adds) {
  plain_gemm<double>(a, b, out, rows, columns, depth, scale, adds);
}

template <typename T>
void parallel_gemm(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& out, int64_t rows,
                   int64_t columns, int64_t depth) {
  const int64_t down = (rows + tile_rows - 1) / tile_rows;
  const int64_t across = (columns + tile_columns - 1) / tile_columns;
  parallel_for(down * across, [&](int64_t tile) {
    const int64_t row = tile / across * tile_rows, column = tile % across * tile_columns;
    gemm<T>(a.block(row, 0), b.block(0, column), out.block(row, column), std::min(tile_rows, rows - row),
            std::min(tile_columns, columns - column), depth);
  });
}

template void parallel_gemm<float>(const Matrix<const float>&, const Matrix<const float>&,
                                   const Matrix<float>&, int64_t, int64_t, int64_t);
template void parallel_gemm<double>(const Matrix<const double>&, const Matrix<const double>&,
                                    const Matrix<double>&, int64_t, int64_t, int64_t);

}  // namespace cbk::compute
